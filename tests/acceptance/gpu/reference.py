"""Reference vectors for the engine's: float32 on the same weights, by another library."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from embedlib.config import Config
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.models.weights.load import load_weights
from embedlib.vectors.arrays import Vectors
from tests.acceptance.gpu.gate import alone, gate_texts


class ReferenceCalls:
    """The calls that the parent can make."""

    def __init__(self, device: str) -> None:
        self._device = device

    def vectors(self, folder: str, path: str) -> dict[str, Any]:
        """Write the vectors of the gate's texts; transformers computes them where it is installed.

        Else embedlib's own engine for CPUs does, which is tested against transformers.
        """
        files = read_model_files(Path(folder))
        by = "transformers" if importlib.util.find_spec("transformers") else "openvino"
        compute = self._by_transformers if by == "transformers" else self._by_openvino
        np.save(path, compute(files))
        return {"by": f"{by} {importlib.metadata.version(by)}, float32"}

    def _by_transformers(self, files: ModelFiles) -> Vectors:
        import torch
        from transformers import AutoModel

        model = AutoModel.from_pretrained(
            str(files.folder), dtype=torch.float32, local_files_only=True
        )
        model = model.eval().to(self._device)
        place = {"cls": 0, "last_token": -1}[files.spec.pooling.modes[0]]
        rows = []
        with torch.inference_mode():
            for ids in gate_texts(files.spec.encoder.vocab_size):
                inputs = torch.from_numpy(ids).long()[None].to(self._device)
                hidden = model(input_ids=inputs).last_hidden_state[0, place]
                rows.append(torch.nn.functional.normalize(hidden, dim=0).cpu().numpy())
        return np.stack(rows)

    def _by_openvino(self, files: ModelFiles) -> Vectors:
        from embedlib.engines.openvino.engine import OpenVINOEngine
        from embedlib.engines.openvino.plans.layout import Layout

        threads = Config().num_threads
        engine = OpenVINOEngine(files.spec, load_weights(files), Layout(threads=threads))
        vectors = alone(engine, gate_texts(files.spec.encoder.vocab_size))
        engine.close()
        return vectors
