"""The graph of a large model is kept without its weights, which are read from the model's file."""

from __future__ import annotations

import json
import mmap
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.typing import NDArray

from embedlib.config import Config
from embedlib.engines.base import Lane
from embedlib.engines.kind import ChosenPrecision
from embedlib.engines.machine import Machine
from embedlib.engines.openvino import pages
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.kept import weightless
from embedlib.engines.openvino.kept.model_cache import ModelCache, WeightsFile
from embedlib.engines.openvino.library import op, ov
from embedlib.engines.openvino.pages import LibraryMapping, let_all_go, mapped_by
from embedlib.engines.openvino.plans import memory
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.engines.openvino.plans.memory import memory_needs
from embedlib.models.compiled.int8 import INT8_GROUPS
from embedlib.models.compiled.int8_file import write_int8
from embedlib.models.compiled.role_file import RoleFile
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.models.weights.load import load_weights
from embedlib.models.weights.mapped import mapped_paths
from embedlib.models.weights.tensor_roles import linear_roles
from embedlib.session.loading import load_model
from embedlib.testing import make_batch
from tests.machines import fake_machine

IDS = [[5, 6, 7, 8, 9, 10], [8]]


@pytest.fixture(autouse=True)
def _tiny_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weightless, "SMALLEST_BYTES", 1)


def vectors(
    files: ModelFiles, cache: Path, weights: Any = None, *, shares_lanes: bool = True
) -> NDArray[np.float32]:
    weights = load_weights(files) if weights is None else weights
    layout = Layout(threads=2, shares_lanes=shares_lanes, is_large=True)
    is_float32 = files.spec.encoder.family == "bert"
    file = WeightsFile(mapped_paths(weights)[0], is_packed_at_once=is_float32)
    kept = ModelCache(cache, "these weights", file)
    engine = OpenVINOEngine(files.spec, weights, layout, kept)
    rows = engine.compute(make_batch(IDS, Lane.QUERY))
    engine.close()
    return rows


def kept_blob(cache: Path) -> Path:
    [blob] = cache.glob("*/model.blob")
    return blob


@pytest.mark.parametrize(
    ("variant", "precision", "shares_lanes"),
    [
        ("bert", "float32", True),
        ("bert", "float32", False),
        ("mistral", "float32", True),
        ("mistral", "int8", True),
    ],
)
def test_a_second_start_imports_the_graph_and_gives_the_same_vectors(
    variant: str,
    precision: str,
    shares_lanes: bool,
    tiny_folder: Callable[[str], Path],
    tmp_path: Path,
    calls: list[str],
) -> None:
    files = read_model_files(tiny_folder(variant))
    weights: Any = load_weights(files)
    if precision == "int8":
        path = tmp_path / "model.int8.safetensors"
        coded = {f"{role}.weight" for role in linear_roles(files.spec.encoder)}
        for job in write_int8(weights, path, coded, INT8_GROUPS["int8"]):
            job(lambda *_: None)
        weights = RoleFile(path)
    without = OpenVINOEngine(
        files.spec, weights, Layout(threads=2, shares_lanes=shares_lanes, is_large=True)
    )
    expected = without.compute(make_batch(IDS, Lane.QUERY))
    without.close()
    calls.clear()
    cache = tmp_path / "cache"
    first = vectors(files, cache, weights, shares_lanes=shares_lanes)
    assert set(calls) == {"compile"}, "what was compiled is used"
    num_models = len(calls)
    parts = json.loads(kept_blob(cache).with_name("entry.json").read_bytes())["parts"]
    assert len(parts) == (files.spec.encoder.num_layers if shares_lanes else 1)
    calls.clear()
    second = vectors(files, cache, weights, shares_lanes=shares_lanes)
    assert calls == ["import"] * num_models
    assert (first == expected).all()
    assert (second == expected).all()


def test_the_weights_are_not_kept(
    tiny_folder: Callable[[str], Path], tmp_path: Path, calls: list[str]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder("bert"), folder)
    files = read_model_files(folder)
    vectors(files, tmp_path / "cache")
    content = kept_blob(tmp_path / "cache").read_bytes()
    matrix = load_weights(files)["layers.1.up.weight"].tobytes()
    stored = folder / "model.safetensors"
    assert matrix in stored.read_bytes()
    assert matrix not in content
    # The same file with another matrix: the trial sees it, and the graph is compiled again.
    other = stored.read_bytes().replace(matrix, np.full(len(matrix) // 4, 0.1, "<f4").tobytes())
    stored.unlink()  # the first one is mapped
    stored.write_bytes(other)
    calls.clear()
    vectors(read_model_files(folder), tmp_path / "cache")
    assert set(calls) == {"import", "compile"}


def test_a_graph_with_many_weights_of_its_own_is_not_kept(
    tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weightless, "MOST_BYTES", 0)
    files = read_model_files(tiny_folder("bert"))
    first = vectors(files, tmp_path)
    assert list(tmp_path.glob("*/*")) == []
    assert (vectors(files, tmp_path) == first).all()


def test_constants_that_are_not_in_the_file_stay_and_are_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    around = np.arange(30, dtype=np.float32)
    file = around[10:20]
    floats = [around[start : start + 10] for start in (0, 5, 10, 15, 20)]
    constants = [op.constant(part, shared_memory=True) for part in (*floats, file[:3])]
    integers = op.constant(file.view(np.int32), shared_memory=True)
    parts = [*constants, op.convert(integers, "f32")]
    graph = ov.Model([op.concat(parts, 0)], [], "of them")
    monkeypatch.setattr(weightless, "SMALLEST_BYTES", file.nbytes)
    num_left = sum(part.nbytes for part in floats) + file[:3].nbytes
    monkeypatch.setattr(weightless, "MOST_BYTES", num_left - 9)
    assert weightless.refer(ov.Core(), [graph], file.view(np.uint8), copied_bytes=8) is None
    assert weightless.refer(ov.Core(), [graph], file.view(np.uint8), copied_bytes=9) is not None
    (joined,) = [node for node in graph.get_ops() if node.get_type_name() == "Concat"]
    given = [value.get_node().get_friendly_name() for value in joined.input_values()]
    names = [part.get_friendly_name() for part in parts]
    assert given == [*names[:2], "weight0", *names[3:]]


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "i8"])
def test_constants_of_each_type_of_weights_lie_in_the_file(kind: str) -> None:
    file, element = np.zeros(64, np.uint8), getattr(ov.Type, kind)
    stored = ov.Tensor(file, ov.Shape([file.nbytes // element.size]), element)
    graph = ov.Model([op.convert(op.constant(stored, shared_memory=True), "f64")], [], "of one")
    assert weightless.refer(ov.Core(), [graph], file) is not None
    names = [node.get_friendly_name() for node in graph.get_ops()]
    assert "weight0" in names


def test_a_load_keeps_the_graph_until_the_weights_change(
    tiny_folder: Callable[[str], Path],
    tmp_path: Path,
    calls: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "SMALL_BYTES", 0)
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder("bert"), folder)
    config = Config(threads=2, precision="float32", engine_cache_dir=tmp_path / "cache")
    room = memory_needs(read_model_files(folder), ChosenPrecision(name="float32"), config).shared
    shared = fake_machine(files={"/proc/meminfo": f"MemAvailable: {room // 1024 + 1} kB\n"})

    def load(machine: Machine = shared) -> set[str]:
        calls.clear()
        load_model(folder, config, machine=machine).engine.close()
        return set(calls)

    separate = fake_machine(files={})
    assert [load(separate), load(separate)] == [{"compile"}] * 2, "float32, and one stage"

    assert [load(), load()] == [{"compile"}, {"import"}]
    stored = folder / "model.safetensors"
    stored.write_bytes(stored.read_bytes())
    assert [load(), load()] == [{"compile"}, {"import"}]


def map_shared(path: Path, count: int) -> list[NDArray[np.uint8]]:
    """Map a file as the library does."""
    return [np.memmap(path, np.uint8, mode="r") for _ in range(count)]


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="needs Linux's /proc/self/maps"
)


@needs_proc
def test_pages_that_the_library_has_mapped_are_let_go_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a file.bin"
    path.write_bytes(bytes(range(256)) * 64)
    others = map_shared(path, 1)
    loaded, mappings = mapped_by(path, lambda: map_shared(path, 2))
    starts = {mapping.start for mapping in mappings if isinstance(mapping, LibraryMapping)}
    assert starts == {array.ctypes.data for array in loaded}
    assert all(array.sum() == others[0].sum() for array in loaded)
    smaps = Path("/proc/self/smaps")

    def resident(array: NDArray[np.uint8]) -> str:
        rows = smaps.read_text().partition(f"{array.ctypes.data:08x}-")[2].splitlines()
        return next(row.split()[1] for row in rows if row.startswith("Rss:"))

    assert resident(loaded[0]) != "0"
    let_all_go(mappings)
    assert [resident(array) for array in loaded] == ["0", "0"]
    assert resident(others[0]) != "0"
    assert all(array.sum() == others[0].sum() for array in loaded)


@needs_proc
def test_mappings_that_may_be_of_others_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a file.bin"
    path.write_bytes(b"x" * 9000)
    others: list[Sequence[NDArray[np.uint8]]] = []

    def load() -> list[NDArray[np.uint8]]:
        others.append(map_shared(path, 1))  # by another thread meanwhile
        return map_shared(path, 2)

    assert mapped_by(path, load)[1] == []
    assert pages._mappings(tmp_path / "a file.bin")
    path.write_bytes(b"x" * 90000)
    assert pages._mappings(path) == [], "of another size than the file"


@needs_proc
def test_a_private_mapping_is_none_of_the_librarys(tmp_path: Path) -> None:
    path = tmp_path / "a \r\v\x85 file.bin"
    path.write_bytes(b"x" * 9000)
    ours = np.memmap(path, np.uint8, mode="c")
    assert pages._mappings(path) == []
    (library,) = map_shared(path, 1)
    assert pages._mappings(path) == [
        LibraryMapping(library.ctypes.data, -(-9000 // mmap.PAGESIZE) * mmap.PAGESIZE)
    ]
    del ours
    other, link = tmp_path / "another.bin", tmp_path / "link.bin"
    other.write_bytes(path.read_bytes())
    others = map_shared(other, 1)
    link.symlink_to(path)
    assert pages._mappings(link) == pages._mappings(path) != pages._mappings(other)
    assert len(pages._mappings(link)) == len(others)


@needs_proc
def test_what_is_in_memory_is_read_from_the_system() -> None:
    status = Path("/proc/self/status").read_text().partition("VmRSS:")[2]
    assert pages._resident_bytes() == pytest.approx(1024 * int(status.split()[0]), rel=0.1)


def test_a_system_that_tells_nothing_of_memory_is_asked_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_bytes", Mock(side_effect=FileNotFoundError))
    assert pages._resident_bytes() == 0
    assert mapped_by(tmp_path, lambda: ["a model"]) == (["a model"], [])
