"""Weights in 16 bits are copied as float32 where the CPU computes that faster."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from embedlib.config import Config
from embedlib.engines.base import Lane
from embedlib.engines.kind import ChosenPrecision
from embedlib.engines.machine import Machine
from embedlib.engines.openvino.kept import float32_copy
from embedlib.engines.openvino.kept.float32_copy import pays
from embedlib.engines.openvino.kind import KIND
from embedlib.engines.openvino.plans import memory
from embedlib.engines.openvino.plans.memory import memory_needs, stores_16_bits
from embedlib.engines.openvino.stored import own_weights
from embedlib.engines.select import plan_engine
from embedlib.errors import ModelWeightsError
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.models.weights.load import load_weights
from embedlib.models.weights.mapped import stored_bits
from embedlib.models.weights.safetensors_files import map_file
from embedlib.session.loading import load_model
from embedlib.testing import make_batch
from embedlib.testing.models.table import SCORING_VARIANTS, VARIANTS
from embedlib.testing.models.write import write_variant
from tests.comparing import relative_errors
from tests.machines import fake_machine
from tests.tiny_models.sparse import SPARSE_VARIANTS

FLOAT32: Final = ChosenPrecision(name="float32")
CONFIG: Final = Config(threads=2, prepare=True)


def cpu(vendor: str, flags: str) -> Machine:
    return fake_machine(files={"/proc/cpuinfo": f"vendor_id : {vendor}\nflags : {flags}\n"})


@pytest.fixture(autouse=True)
def _zen3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU be one where float32 is faster."""
    monkeypatch.setattr(float32_copy, "Machine", lambda: cpu("AuthenticAMD", "avx avx2 fma"))


@pytest.fixture
def stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[ModelFiles], Mapping[str, Any]]:
    """Return a function that maps the copy of a model's weights, which it writes first."""
    monkeypatch.setattr(memory, "SMALL_BYTES", 0)

    def weights(files: ModelFiles) -> Mapping[str, Any]:
        needs = memory_needs(files, FLOAT32, CONFIG, is_widened=True)
        config = replace(CONFIG, engine_cache_dir=tmp_path)
        return own_weights(files, needs, tmp_path / "openvino", config)

    return weights


def copies(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("**/float32-*"))


@pytest.mark.parametrize(
    ("variant", "with_head"),
    [
        ("mistral", False),  # in three files
        ("qwen2", False),
        ("modernbert-splade", False),
        ("xlm-roberta-reranker", True),
        ("qwen3-logit-score", True),  # has a head that is computed when it is loaded
    ],
)
def test_a_copy_has_the_same_numbers(
    variant: str,
    with_head: bool,
    stored: Callable[[ModelFiles], Mapping[str, Any]],
    tmp_path: Path,
) -> None:
    rows = {**VARIANTS, **SCORING_VARIANTS, **SPARSE_VARIANTS}
    folder = write_variant(tmp_path / "model", variant, rows[variant])
    files = read_model_files(folder, with_head=with_head)
    own, found = load_weights(files), stored(files)
    assert found.keys() == own.keys()
    for role, values in own.items():
        assert (found[role] == values).all(), role
        assert found[role].dtype == np.float32
        kept = stored_bits(found, role) is not None
        assert kept == (role == "tokens" and stored_bits(own, role) is not None), role


def test_a_number_that_is_added_on_reading_is_added_once(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    files = read_model_files(tiny_folder("gemma2"))
    weights = load_weights(files)
    assert weights.stored("final_norm.weight").added
    config = replace(CONFIG, engine_cache_dir=tmp_path)
    copy = float32_copy.copied_weights(files, weights, tmp_path, config)
    assert copy is not None
    assert (copy["final_norm.weight"] == weights["final_norm.weight"]).all()


def test_without_prepare_a_copy_that_is_there_is_used(
    tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = read_model_files(tiny_folder("qwen2"))
    weights = load_weights(files)
    config = replace(CONFIG, engine_cache_dir=tmp_path / "cache")
    found = [
        float32_copy.copied_weights(files, weights, tmp_path / "copies", each)
        for each in (config, replace(config, prepare=False))
    ]
    assert [copy is not None for copy in found] == [True, True]
    other = read_model_files(tiny_folder("mistral"))
    read = replace(config, prepare=False)  # beside the copy of another model, it writes none
    copy = float32_copy.copied_weights(other, load_weights(other), tmp_path / "copies", read)
    assert copy is None
    assert len(copies(tmp_path)) == 1

    def refuse(*_: object) -> None:
        raise AssertionError("read gigabytes to look for what is not there")

    monkeypatch.setattr(float32_copy, "weights_digest", refuse)
    none = tmp_path / "none"
    assert float32_copy.copied_weights(files, weights, none, replace(config, prepare=False)) is None


def test_a_copy_is_written_once_for_each_content(
    tiny_folder: Callable[[str], Path],
    stored: Callable[[ModelFiles], Mapping[str, Any]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    folder, other = tmp_path / "model", tmp_path / "other"
    for place in (folder, other):
        shutil.copytree(tiny_folder("qwen2"), place)
    for place in (folder, other, folder):
        stored(read_model_files(place))
    assert len(copies(tmp_path)) == 1
    [written] = [line for line in caplog.messages if "writing" in line]
    assert written.startswith("writing the weights of model in float32 to ")
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    changed = stored(read_model_files(folder))
    own = load_weights(read_model_files(folder))
    assert all((changed[role] == own[role]).all() for role in own)
    assert len(copies(tmp_path)) == 1, "the one of the content before is removed"


def test_the_copy_of_a_model_that_is_gone_is_removed_when_another_is_written(
    tiny_folder: Callable[[str], Path],
    stored: Callable[[ModelFiles], Mapping[str, Any]],
    tmp_path: Path,
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder("qwen2"), folder)
    stored(read_model_files(folder))
    before = copies(tmp_path)
    shutil.rmtree(folder)
    stored(read_model_files(tiny_folder("mistral")))
    assert len(copies(tmp_path)) == 1
    assert copies(tmp_path) != before


def test_a_copy_that_is_used_is_not_removed_as_old_though_it_be_of_another_user(
    tiny_folder: Callable[[str], Path],
    stored: Callable[[ModelFiles], Mapping[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = read_model_files(tiny_folder("qwen2"))
    stored(files)
    [copy] = copies(tmp_path)
    os.utime(copy, (0, 0))
    stored(files)
    assert copy.stat().st_mtime > 0
    monkeypatch.setattr(os, "utime", Mock(side_effect=PermissionError(1, "not permitted")))
    assert stored_bits(stored(files), "layers.0.q.weight") is None


def test_what_nobody_used_for_long_makes_room_for_a_copy(
    tiny_folder: Callable[[str], Path],
    stored: Callable[[ModelFiles], Mapping[str, Any]],
    tmp_path: Path,
) -> None:
    old = tmp_path / "openvino" / "0123"
    old.mkdir(parents=True)
    os.utime(old, (0, 0))
    stored(read_model_files(tiny_folder("qwen2")))
    assert not old.exists()


@pytest.mark.parametrize("content", ["5", "[5]", "[", "[" * 100_000])
def test_a_list_of_files_that_is_damaged_costs_nothing(
    content: str,
    tiny_folder: Callable[[str], Path],
    stored: Callable[[ModelFiles], Mapping[str, Any]],
    tmp_path: Path,
) -> None:
    stored(read_model_files(tiny_folder("qwen2")))
    [damaged] = copies(tmp_path)
    (damaged / float32_copy.SOURCE).write_text(content)
    stored(read_model_files(tiny_folder("mistral")))
    assert len(copies(tmp_path)) == 2


def test_a_copy_that_cannot_be_read_is_left_alone(
    tiny_folder: Callable[[str], Path],
    stored: Callable[[ModelFiles], Mapping[str, Any]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = read_model_files(tiny_folder("qwen2"))
    stored(files)
    [folder] = copies(tmp_path)
    path = folder / float32_copy.NAME
    path.rename(folder / "kept")
    path.mkdir()  # nobody may open it as a file
    assert stored_bits(stored(files), "layers.0.q.weight") is not None
    assert any("more slowly" in line for line in caplog.messages)
    assert (folder / "kept").exists()


def test_a_copy_that_there_is_no_memory_for_is_left_alone(
    tiny_folder: Callable[[str], Path],
    stored: Callable[[ModelFiles], Mapping[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = read_model_files(tiny_folder("qwen2"))
    stored(files)

    def refuse(path: Path) -> Any:
        if path.name == float32_copy.NAME:
            raise ModelWeightsError("the weights need 1 GiB of memory")
        return map_file(path)

    monkeypatch.setattr("embedlib.models.weights.load.map_file", refuse)
    assert stored_bits(stored(files), "layers.0.q.weight") is not None
    assert len(copies(tmp_path)) == 1


@pytest.mark.parametrize("content", [b"", b"x" * 100])
def test_a_damaged_copy_is_removed_and_written_again(
    content: bytes,
    tiny_folder: Callable[[str], Path],
    stored: Callable[[ModelFiles], Mapping[str, Any]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = read_model_files(tiny_folder("qwen2"))
    stored(files)
    [path] = copies(tmp_path)
    (path / float32_copy.NAME).write_bytes(content)
    assert stored_bits(stored(files), "layers.0.q.weight") is not None
    assert any("damaged" in line for line in caplog.messages)
    assert copies(tmp_path) == []
    assert stored_bits(stored(files), "layers.0.q.weight") is None


def test_a_damaged_copy_that_cannot_be_removed_costs_speed_alone(
    tiny_folder: Callable[[str], Path],
    stored: Callable[[ModelFiles], Mapping[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = read_model_files(tiny_folder("qwen2"))
    stored(files)
    [path] = copies(tmp_path)
    (path / float32_copy.NAME).write_bytes(b"")

    def rmtree(folder: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert stored_bits(stored(files), "layers.0.q.weight") is not None
    *_, damage, left = caplog.messages
    assert "is damaged and will be removed: " in damage  # not "is removed": it stays
    assert "more slowly: [Errno 13] Permission denied" in left


@pytest.mark.parametrize(
    ("machine", "precision", "expected"),
    [
        (cpu("AuthenticAMD", "avx2"), "float32", True),
        (cpu("AuthenticAMD", "avx2"), "int8", False),
        (cpu("AuthenticAMD", "avx2 avx512f"), "float32", False),
        (cpu("GenuineIntel", "avx2"), "float32", False),
        (cpu("", ""), "float32", False),
    ],
)
def test_where_a_copy_pays(
    machine: Machine, precision: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(float32_copy, "Machine", lambda: machine)
    assert pays(ChosenPrecision(name=precision)) == expected


def test_the_plan_counts_what_the_copy_needs(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "SMALL_BYTES", 0)
    files = read_model_files(tiny_folder("qwen2"))
    config = Config(threads=2)
    found = [memory_needs(files, FLOAT32, config, is_widened=way) for way in (False, True)]
    assert [needs.is_widened for needs in found] == [False, True]
    assert found[0].shared < found[1].shared
    plan = plan_engine(files, replace(config, precision="float32"))
    told = KIND.describe_memory(plan, files, config)  # type: ignore[misc]
    assert told.endswith("; 16-bit weights are copied to the cache as float32")
    exact = memory_needs(read_model_files(tiny_folder("bert")), FLOAT32, config, is_widened=True)
    assert not exact.is_widened, "its file has float32"


def test_a_disk_without_room_costs_speed_alone(
    tiny_folder: Callable[[str], Path],
    stored: Callable[[ModelFiles], Mapping[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(float32_copy, "FREE_SHARE", 0.0)
    files = read_model_files(tiny_folder("qwen2"))
    found = stored(files)
    assert stored_bits(found, "layers.0.q.weight") is not None
    assert any("more than a tenth of the" in line for line in caplog.messages)
    assert copies(tmp_path) == []
    assert list((tmp_path / "openvino").iterdir()) == []


def test_a_place_that_cannot_be_written_costs_speed_alone(
    tiny_folder: Callable[[str], Path],
    stored: Callable[[ModelFiles], Mapping[str, Any]],
    tmp_path: Path,
) -> None:
    (tmp_path / "openvino").write_text("a file is here")
    found = stored(read_model_files(tiny_folder("qwen2")))
    assert stored_bits(found, "layers.0.q.weight") is not None


Load = Callable[..., NDArray[np.float32]]


@pytest.fixture
def load(tiny_folder: Callable[[str], Path], tmp_path: Path) -> Load:
    """Return a function that loads a model and returns the vectors of two texts."""

    def vectors(
        variant: str, machine: Machine | None = None, **options: Any
    ) -> NDArray[np.float32]:
        config = Config(
            **{
                "precision": "float32",
                "threads": 2,
                "prepare": True,
                "engine_cache_dir": tmp_path,
                **options,
            }
        )
        engine = load_model(tiny_folder(variant), config, machine=machine).engine
        rows = engine.compute(make_batch([[5, 6, 7], [8]], Lane.QUERY))
        engine.close()
        return rows

    return vectors


def test_a_load_computes_the_same_vectors_from_the_copy(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "SMALL_BYTES", 0)
    expected = load("mistral", prepare=False)
    assert copies(tmp_path) == []
    found = [load("mistral"), load("mistral"), load("mistral", prepare=False)]
    assert len(copies(tmp_path)) == 1
    assert relative_errors(found[0], expected).max() < 2e-5
    assert (found[1] == found[0]).all()
    assert (found[2] == found[0]).all(), "what is there is used"


def test_a_small_model_is_widened_in_memory(
    load: Load,
    tiny_folder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [load("qwen2"), load("qwen2")]
    monkeypatch.setattr(float32_copy, "Machine", lambda: cpu("AuthenticAMD", "avx2 avx512f"))
    expected = load("qwen2", engine_cache_dir=tmp_path / "other")
    assert relative_errors(found[0], expected).max() < 2e-5
    assert (found[1] == found[0]).all()
    assert copies(tmp_path) == []
    weights = load_weights(read_model_files(tiny_folder("qwen2")))
    widened = float32_copy.widened_weights(weights)
    assert widened.keys() == weights.keys()
    assert all((widened[role] == weights[role]).all() for role in weights)
    assert [role for role in widened if stored_bits(widened, role) is not None] == ["tokens"]


def test_a_float32_file_is_not_copied(
    load: Load, tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "SMALL_BYTES", 0)
    load("bert")
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder("bert"), folder)
    shutil.copy(tiny_folder("qwen2") / "model.safetensors", folder / "model.fp16.safetensors")
    assert not stores_16_bits(read_model_files(folder), None), "that file is not read"
    assert copies(tmp_path) == []


def test_a_table_of_tokens_alone_is_not_worth_a_copy(tmp_path: Path) -> None:
    folder = write_variant(tmp_path / "model", "qwen2", VARIANTS["qwen2"])
    path = folder / "model.safetensors"
    tensors = load_file(path)
    table = max(tensors, key=lambda name: tensors[name].size)
    assert "embed_tokens" in table
    wide = {name: array.astype(np.float32) for name, array in tensors.items()}
    save_file({**wide, table: tensors[table]}, path)
    assert not stores_16_bits(read_model_files(folder), None)


def test_a_load_that_has_no_memory_for_the_copy_does_without(
    load: Load,
    tiny_folder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "SMALL_BYTES", 0)
    files = read_model_files(tiny_folder("qwen2"))
    room = memory_needs(files, FLOAT32, Config(threads=2)).shared
    small = fake_machine(files={"/proc/meminfo": f"MemAvailable: {room // 1024 + 1} kB\n"})
    load("qwen2", small)
    assert copies(tmp_path) == []
