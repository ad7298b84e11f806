"""How the CPU engine computes models that are too large for copies of their weights."""

from __future__ import annotations

import mmap
import threading
from collections import ChainMap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embedlib.engines.base import Lane
from embedlib.engines.openvino import pages
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.graphs import matrices
from embedlib.engines.openvino.graphs.graph import build_stages
from embedlib.engines.openvino.graphs.graph_options import GraphOptions
from embedlib.engines.openvino.graphs.matrices import matrix_rows, parts_packed_once
from embedlib.engines.openvino.library import op, ov
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.models.compiled.int8 import INT8_GROUPS
from embedlib.models.compiled.int8_file import write_int8
from embedlib.models.compiled.role_file import RoleFile
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.models.weights.load import load_weights
from embedlib.models.weights.mapped import let_go, mapped_files, stored_bits
from embedlib.models.weights.tensor_roles import linear_roles
from embedlib.testing.batches import make_batch
from tests.comparing import relative_errors
from tests.waiting import WAIT_SECONDS

IDS = [[5, 6, 7, 8, 9, 10, 11, 12, 5], [8], [9, 10]]


def int8_weights(files: ModelFiles, folder: Path) -> RoleFile:
    path = folder / "model.int8.safetensors"
    quantized = {f"{role}.weight" for role in linear_roles(files.spec.encoder)}
    for job in write_int8(load_weights(files), path, quantized, INT8_GROUPS["int8"]):
        job(lambda *_: None)
    return RoleFile(path)


@pytest.mark.parametrize(
    ("variant", "precision"),
    [("bert", "float32"), ("gemma2", "float32"), ("mistral", "float32"), ("mistral", "int8")],
)
def test_a_large_model_gives_the_vectors_of_a_small_one(
    variant: str, precision: str, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    files = read_model_files(tiny_folder(variant))
    weights: Any = load_weights(files)
    if precision == "int8":
        weights = ChainMap(int8_weights(files, tmp_path), weights)  # type: ignore[arg-type]
    small = OpenVINOEngine(files.spec, weights, Layout(threads=2))
    large = OpenVINOEngine(files.spec, weights, Layout(threads=2, shares_lanes=True, is_large=True))
    expected = small.compute(make_batch(IDS, Lane.QUERY))
    together = large.compute(make_batch(IDS, Lane.QUERY))
    assert relative_errors(together, expected).max() < 2e-5
    # Alone, each of these is padded to the fewest rows.
    alone = [large.compute(make_batch([ids], Lane.QUERY)) for ids in IDS]
    assert relative_errors(np.concatenate(alone), expected).max() < 2e-5
    many = large.compute(make_batch(IDS * 20, Lane.QUERY))
    assert relative_errors(many, np.tile(expected, (20, 1))).max() < 2e-5
    small.close()
    large.close()


def test_nothing_is_fused_with_the_products_of_a_large_model(
    tiny_folder: Callable[[str], Path],
) -> None:
    """Else oneDNN would multiply in place of MLAS, and pack a matrix a second time."""
    files = read_model_files(tiny_folder("bert"))
    [graph] = build_stages(files.spec, load_weights(files), GraphOptions(multiplier="mlas"))
    compiled = ov.Core().compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    known = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
    names = [
        info["originalLayersNames"].astype(str)
        for info in known
        if info["layerType"].astype(str) == "FullyConnected"
    ]
    assert len(names) == 6 * files.spec.encoder.num_layers
    assert not [name for name in names if "," in name]


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_the_parts_of_a_matrix_are_packed_once_and_have_all_its_rows(
    precision: str,
    tiny_folder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = read_model_files(tiny_folder("mistral"))
    weights: Any = load_weights(files)
    if precision == "int8":
        weights = int8_weights(files, tmp_path)
    monkeypatch.setattr(matrices, "rounds_activations", lambda: False)
    role = "layers.0.up.weight"
    parts = parts_packed_once(weights, role)
    rows = [part.get_output_partial_shape(0)[0].get_length() for part in parts]
    assert len(rows) == 2
    assert all(number % 32 for number in rows), "the library would pack it in two forms"
    graph = ov.Model([op.concat(parts, 0), matrix_rows(weights, role)], [], "both")
    joined, whole = ov.Core().compile_model(graph, "CPU")([]).values()
    np.testing.assert_array_equal(joined, whole)
    monkeypatch.setattr(matrices, "ONE_FORM_WEIGHTS", whole.size)
    assert len(parts_packed_once(weights, role)) == 1, "it is large enough for one form"


def test_a_matrix_that_has_one_form_is_one_part(
    tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = read_model_files(tiny_folder("bert"))
    role = "layers.0.up.weight"
    assert len(parts_packed_once(load_weights(files), role)) == 1, "MLAS multiplies float32"
    monkeypatch.setattr(matrices, "rounds_activations", lambda: True)
    assert len(parts_packed_once(int8_weights(files, tmp_path), role)) == 1


def test_padding_of_a_short_text_gives_no_row(tiny_folder: Callable[[str], Path]) -> None:
    files = read_model_files(tiny_folder("bert"))
    spec = replace(files.spec, modules=())
    engines = [
        OpenVINOEngine(spec, load_weights(files), Layout(threads=2, is_large=is_large))
        for is_large in (False, True)
    ]
    small, large = (engine.compute(make_batch([[5, 6], [7]], Lane.QUERY)) for engine in engines)
    assert relative_errors(large, small).max() < 2e-5
    for engine in engines:
        engine.close()


def test_sixteen_bits_are_read_as_they_are_stored(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    files = read_model_files(tiny_folder("mistral"))
    weights = load_weights(files)
    narrow = stored_bits(weights, "tokens")
    assert narrow is not None
    assert any(np.shares_memory(narrow.bits, file) for file in mapped_files(weights))
    both: Any = ChainMap(int8_weights(files, tmp_path), weights)  # type: ignore[arg-type]
    assert stored_bits(both, "layers.0.q.weight") is None, "it is int8"
    assert stored_bits(both, "tokens") is not None
    assert len(mapped_files(both)) == 1 + len(mapped_files(weights))
    assert stored_bits(dict(weights), "tokens") is None
    assert mapped_files(dict(weights)) == []


def resident(file: Any) -> int:
    """Return the KiB of a mapped file that are in this process's memory."""
    address = f"{file.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE:08x}-"
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.startswith(address):
            return int(next(row for row in lines if row.startswith("Rss:")).split()[1])
    raise AssertionError("the file is not mapped")


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's /proc")
def test_pages_are_let_go_and_read_again(tiny_folder: Callable[[str], Path]) -> None:
    weights = load_weights(read_model_files(tiny_folder("bert")))
    (file,) = mapped_files(weights)
    before = file.copy()
    assert resident(file) > 0
    let_go([file, before])
    assert resident(file) == 0
    assert (file == before).all()
    pages.let_all_go([file, before])
    assert resident(file) == 0


def test_pages_are_let_go_again_and_again_until_a_block_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, by, name = threading.Semaphore(0), list[str](), "embedlib-openvino-pages"

    def note(files: Any) -> None:
        by.append(threading.current_thread().name)
        seen.release()

    monkeypatch.setattr(pages, "let_all_go", note)
    with pages.letting_go([]):
        assert name not in [thread.name for thread in threading.enumerate()]
    assert by == []
    with suppress(KeyError), pages.letting_go([np.zeros(9, np.uint8)]):
        for _ in range(2):
            assert seen.acquire(timeout=WAIT_SECONDS)
        raise KeyError
    assert by[:2] == [name, name]
    assert by[-1] == threading.current_thread().name
    assert name not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("begins", [False, True])
def test_nothing_lets_pages_go_behind_a_load_that_is_interrupted_as_it_begins(
    begins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would do so for ever, and of other memory once the library has let go of the mapping."""
    start = pages.WorkerThread.start

    def interrupt(thread: pages.WorkerThread) -> None:
        if begins:
            start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(pages.WorkerThread, "start", interrupt)
    with pytest.raises(KeyboardInterrupt), pages.letting_go([np.zeros(9, np.uint8)]):
        pass
    assert "embedlib-openvino-pages" not in [thread.name for thread in threading.enumerate()]


def test_another_c_library_than_glibc_is_asked_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trimmed: list[int] = []
    for library in (SimpleNamespace(), SimpleNamespace(malloc_trim=trimmed.append)):
        monkeypatch.setattr(pages.ctypes, "CDLL", lambda _, library=library: library)
        pages.return_freed()
    assert trimmed == [0]
