from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from embedlib.config import Config
from embedlib.engines.cuda.device_weights import Fp8Matrix
from embedlib.engines.cuda.engine_directory import open_weights
from embedlib.engines.cuda.resident import resident
from embedlib.models.compiled.compile import compile_model
from embedlib.models.reading.files import read_model_files


def test_the_model_waits_on_the_gpu_where_there_is_room(
    tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = read_model_files(tiny_folder("bert"))
    folder = compile_model(files, "fp8", (), Config(), out=tmp_path / "out")
    weights = open_weights(files, folder)
    stored = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    for free, device in ((3 * stored, "meta"), (2 * stored, "cpu")):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, 9 * stored))
        found = resident(weights, "meta")
        assert found.keys() == weights.keys()
        matrix = found["layers.0.q.weight"]
        assert isinstance(matrix, Fp8Matrix)
        for tensor in (matrix.codes, matrix.scales, found["tokens"]):
            assert tensor.device.type == device
