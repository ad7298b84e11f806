"""The engine that has one layer of a model in memory at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from embedlib.engines.base import Lane
from embedlib.engines.openvino import layerwise
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.layerwise import LayerwiseEngine
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.errors import EngineBuildError, EngineRunError
from embedlib.models.reading.files import read_model_files
from embedlib.models.weights.load import load_weights
from embedlib.testing import check_engine, make_batch
from tests.comparing import relative_errors
from tests.tiny_models.groups import GRAPHS
from tests.waiting import WAIT_SECONDS

IDS = [[5, 6, 7, 8, 9], [8], [9, 10], [5, 6, 7]]


def make(folder: Path) -> LayerwiseEngine:
    files = read_model_files(folder)
    layout = Layout(threads=1, shares_lanes=True, is_large=True)
    return LayerwiseEngine(files.spec, load_weights(files), layout)


def right(folder: Path) -> NDArray[np.float32]:
    """Return the vectors of `IDS` as the engine with all layers computes them."""
    files = read_model_files(folder)
    engine = OpenVINOEngine(files.spec, load_weights(files), Layout(threads=1))
    vectors = engine.compute(make_batch(IDS, Lane.QUERY))
    engine.close()
    return vectors


class Submitted:
    """A batch that was submitted."""

    def __init__(self, engine: LayerwiseEngine, ids: list[list[int]]) -> None:
        self._is_done = threading.Event()
        self.pending = engine.submit(make_batch(ids, Lane.BULK), self._is_done.set)

    def result(self) -> NDArray[np.float32]:
        assert self._is_done.wait(WAIT_SECONDS)
        return self.pending.result()


class FirstLayer:
    """Holds the first layer's compiling until the test has submitted all, and counts layers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_go_on = threading.Event()
        self.is_compiled = threading.Event()
        self.num_layers = 0
        compile_model = ov.Core.compile_model

        def compile_slowly(*args: Any) -> Any:
            self.num_layers += 1
            self.is_compiled.set()
            assert self.may_go_on.wait(WAIT_SECONDS)
            return compile_model(*args)

        monkeypatch.setattr(ov.Core, "compile_model", compile_slowly)

    def submit(self, engine: LayerwiseEngine) -> list[Submitted]:
        """Submit each of `IDS` as a batch, the others while the first layer is compiled."""
        first = Submitted(engine, IDS[:1])
        assert self.is_compiled.wait(WAIT_SECONDS)
        return [first, *(Submitted(engine, [ids]) for ids in IDS[1:])]


@pytest.fixture
def first_layer(monkeypatch: pytest.MonkeyPatch) -> FirstLayer:
    return FirstLayer(monkeypatch)


@pytest.mark.parametrize("variant", GRAPHS)
def test_vectors_are_those_of_the_whole_model(
    variant: str, tiny_folder: Callable[[str], Path], golden: Callable[[str], Any]
) -> None:
    engine = make(tiny_folder(variant))
    spec = read_model_files(tiny_folder(variant)).spec
    events, found = [], []
    for case in golden(variant).cases:
        batch = make_batch(case.ids, num_prompt_tokens=case.num_prompt_tokens)
        events.append(threading.Event())
        found.append(engine.submit(batch, events[-1].set))
    for case, is_done, pending in zip(golden(variant).cases, events, found, strict=True):
        assert is_done.wait(WAIT_SECONDS)
        vectors = pending.result()[:, : spec.truncate_dim]
        assert relative_errors(vectors, case.vectors).max() <= 2e-5
    engine.close()


@pytest.mark.parametrize("variant", ["bert", "mistral"])
def test_it_keeps_the_promises_of_an_engine(
    variant: str, tiny_folder: Callable[[str], Path]
) -> None:
    check_engine(make(tiny_folder(variant)), read_model_files(tiny_folder(variant)).spec)


def test_weights_are_read_once_for_all_that_waits(
    tiny_folder: Callable[[str], Path], first_layer: FirstLayer
) -> None:
    engine = make(tiny_folder("bert"))
    submitted = first_layer.submit(engine)
    first_layer.may_go_on.set()
    found = np.concatenate([one.result() for one in submitted])
    engine.close()
    assert first_layer.num_layers == read_model_files(tiny_folder("bert")).spec.encoder.num_layers
    assert relative_errors(found, right(tiny_folder("bert"))).max() < 2e-5


def test_what_is_in_memory_is_bounded(
    tiny_folder: Callable[[str], Path], first_layer: FirstLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six tokens at a time: 5 + 1, 2 + 3."""
    monkeypatch.setattr(layerwise, "MAX_TOGETHER_TOKENS", 6)
    engine = make(tiny_folder("bert"))
    submitted = first_layer.submit(engine)
    first_layer.may_go_on.set()
    found = np.concatenate([one.result() for one in submitted])
    engine.close()
    num_layers = read_model_files(tiny_folder("bert")).spec.encoder.num_layers
    assert first_layer.num_layers == 2 * num_layers
    assert relative_errors(found, right(tiny_folder("bert"))).max() < 2e-5


def test_a_cancelled_batch_spares_the_others(
    tiny_folder: Callable[[str], Path], first_layer: FirstLayer
) -> None:
    engine = make(tiny_folder("bert"))
    submitted = first_layer.submit(engine)
    submitted[0].pending.cancel()
    first_layer.may_go_on.set()
    with pytest.raises(EngineRunError, match="cancelled"):
        submitted[0].result()
    found = np.concatenate([one.result() for one in submitted[1:]])
    engine.close()
    assert relative_errors(found, right(tiny_folder("bert"))[1:]).max() < 2e-5


@pytest.mark.parametrize("most_tokens", [7, 99], ids=["some wait", "all together"])
def test_nothing_is_read_for_batches_that_nobody_wants(
    most_tokens: int,
    tiny_folder: Callable[[str], Path],
    first_layer: FirstLayer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layerwise, "MAX_TOGETHER_TOKENS", most_tokens)
    engine = make(tiny_folder("bert"))
    submitted = first_layer.submit(engine)
    for one in submitted:
        one.pending.cancel()
    first_layer.may_go_on.set()
    for one in submitted:
        with pytest.raises(EngineRunError, match="cancelled"):
            one.result()
    engine.close()
    assert read_model_files(tiny_folder("bert")).spec.encoder.num_layers > 1
    assert first_layer.num_layers == 1


def test_a_graph_that_cannot_be_built_is_told(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("Check failed:\nno such operator")

    monkeypatch.setattr(layerwise, "build_stages", fail)
    with pytest.raises(EngineBuildError, match=r"building failed: no such operator$"):
        make(tiny_folder("bert"))


def test_every_batch_learns_why_a_layer_failed(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_model = ov.Core.compile_model
    engine = make(tiny_folder("bert"))

    def fail(*_: Any) -> Any:
        raise RuntimeError("Check failed:\nno such kernel")

    monkeypatch.setattr(ov.Core, "compile_model", fail)
    submitted = [Submitted(engine, [ids]) for ids in IDS]
    for one in submitted:
        with pytest.raises(EngineRunError, match="engine openvino: no such kernel"):
            one.result()
    monkeypatch.setattr(ov.Core, "compile_model", compile_model)
    assert Submitted(engine, IDS).result().shape[0] == len(IDS), "the next one is computed"
    engine.close()


def test_no_error_ends_the_thread(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(tiny_folder("bert"))
    with monkeypatch.context() as patch:
        patch.setattr(layerwise, "Request", lambda _: {}["a bug"])
        with pytest.raises(KeyError, match="a bug"):
            Submitted(engine, IDS).result()
    assert Submitted(engine, IDS).result().shape[0] == len(IDS)
    engine.close()


def test_closing_waits_for_what_was_submitted(tiny_folder: Callable[[str], Path]) -> None:
    engine = make(tiny_folder("bert"))
    submitted = [Submitted(engine, [ids]) for ids in IDS]
    engine.close(WAIT_SECONDS)
    found = np.concatenate([one.pending.result() for one in submitted])
    assert relative_errors(found, right(tiny_folder("bert"))).max() < 2e-5
    assert not [t for t in threading.enumerate() if t.name == "embedlib-openvino-layerwise"]
