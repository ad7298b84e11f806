"""The search for the layers to keep: the algorithm, int8 on the CPU, FP8 emulated."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from embedlib import Embedder
from embedlib.config import Config
from embedlib.engines.cuda.kind import KIND as CUDA_KIND
from embedlib.engines.kind import ChosenPrecision, EngineKind, EnginePlan
from embedlib.engines.openvino import kind as cpu_kind
from embedlib.engines.openvino.graphs.matrices import rounds_activations
from embedlib.engines.precision import choose_precision
from embedlib.errors import ConfigError, EngineBuildError, EngineUnavailableError
from embedlib.fidelity import (
    FidelityTexts,
    Gate,
    built_in_texts,
    compile_to_gate,
    measure,
    plans,
    to_gate,
    verify,
)
from embedlib.fidelity.choices import (
    MAX_UNITS,
    MIN_UNITS,
    LayerChoices,
    layer_units,
    most_units,
)
from embedlib.fidelity.measure import NOTHING_REMEMBERED, plan_cpu_reference
from embedlib.fidelity.model import open_model
from embedlib.fidelity.outputs import Embedded
from embedlib.fidelity.plans import plan_measurement
from embedlib.fidelity.search import (
    LayerSearch,
    OutOfReachError,
    Target,
    Unit,
    _allowed_share,
    max_measurements,
)
from embedlib.models.compiled.cache import compiled_versions, int8_weights
from embedlib.models.compiled.compile import compile_model
from embedlib.models.compiled.engine_folder import compiled_folder, verify_engine_folder
from embedlib.models.compiled.fidelity_report import read_report, read_reports, write_report
from embedlib.models.reading.files import read_model_files
from embedlib.models.weights.load import load_weights
from embedlib.models.weights.tensor_roles import FUSED_LAYERS, linear_weights
from embedlib.testing import fake_spec
from embedlib.testing.models.write import write_tiny_model
from tests.machines import CUDA, TRTLLM, fake_machine, gpu
from tests.reference_engine import reference_engine

FEW = FidelityTexts(("a cat", "who ran"), ("two dogs ran", "the cat sat on the mat", "no", "it"))
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="FP8 is emulated with torch"
)


NO_GPU = fake_machine(packages=CUDA)


@pytest.fixture
def config(new_cache: Path) -> Config:
    return Config(engine_cache_dir=new_cache, threads=2)


@pytest.fixture
def few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let layers be chosen on a few texts."""
    monkeypatch.setattr(to_gate, "MIN_TEXTS", 1)


@pytest.fixture
def few_units(few_texts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search six kinds of layers, in two layers each, on a few texts: quicker."""
    monkeypatch.setattr("embedlib.fidelity.choices.most_units", lambda encoder: 6)


def change(folder: Path, matrices: Mapping[str, Callable[[NDArray[np.float32]], Any]]) -> Path:
    """Write some matrices of a model anew."""
    weights = load_weights(read_model_files(folder))
    with (folder / "model.safetensors").open("r+b") as stream:
        for layer, function in matrices.items():
            stream.seek(weights.stored(f"{layer}.weight").start)
            changed = function(np.array(weights[f"{layer}.weight"]))
            stream.write(changed.astype("<f4").tobytes())
    return folder


# --- the algorithm --------------------------------------------------------------------------------


class Angles:
    """Layers that each turn all vectors by an angle unless they are kept."""

    precision = "fp8"
    kept_in = "bf16"

    def __init__(self, angles: Mapping[str, float], sizes: Mapping[str, int]) -> None:
        self.units = tuple(Unit((name,), sizes.get(name, 1)) for name in angles)
        self.angles = angles
        self.asked: list[tuple[int, tuple[str, ...]]] = []

    def embed(self, kept: Collection[str], texts: FidelityTexts) -> Embedded:
        self.asked.append((len(texts.all), tuple(sorted(kept))))
        angle = sum(angle for name, angle in self.angles.items() if name not in kept)
        return rows(len(texts.queries), angle)


def rows(num_queries: int, angle: float) -> Embedded:
    row = np.array([[np.cos(angle), np.sin(angle)]], np.float32)
    return Embedded(queries=row.repeat(num_queries, 0), documents=np.zeros((0, 2), np.float32))


EIGHT = Target(FidelityTexts(tuple("abcdefgh"), ()), rows(8, 0))
TWO = Target(FidelityTexts(tuple("ae"), ()), rows(2, 0))


def test_the_shortest_beginning_of_the_order_is_kept() -> None:
    angles = {"a": 0.01, "b": 0.1, "c": 0.02, "d": 0.2, "e": 0.0, "f": 0.0, "g": 0.0, "h": 0.0}
    search = Angles(angles, {})
    calls: list[tuple[int, int]] = []
    gate = Gate(mean=float(np.cos(0.05)), p1=0)
    found = LayerSearch(search, EIGHT, TWO, lambda *told: calls.append(told)).find(gate)
    assert found == ("b", "d")
    assert search.asked[0] == (8, ())
    assert search.asked[1] == (2, ())  # on fewer texts
    assert search.asked[2:10] == [(2, (name,)) for name in angles]
    assert search.asked[10:] == [(8, ("b", "d")), (8, ("d",))]  # what the gains promise, one less
    most = max_measurements(search)
    assert calls == [(number, most) for number in range(1, len(search.asked) + 1)]
    assert len(calls) <= most


@given(
    st.lists(st.floats(0, 0.1), min_size=1, max_size=12),
    st.lists(st.sampled_from([1, 1, 2, 4]), min_size=12, max_size=12),
    st.floats(0.0, 1.0),
)
def test_no_shorter_beginning_passes(angles: list[float], sizes: list[int], share: float) -> None:
    names = [f"{index:02}" for index in range(len(angles))]
    model = Angles(dict(zip(names, angles, strict=True)), dict(zip(names, sizes, strict=False)))
    gate = Gate(mean=float(np.cos(share * sum(angles))), p1=0)
    try:
        kept = LayerSearch(model, EIGHT, TWO).find(gate)
    except OutOfReachError:
        half = sum(unit.num_weights for unit in model.units) / 2
        last = [asked for num_texts, asked in model.asked if num_texts == 8][-1]
        assert sum(unit.num_weights for unit in model.units if unit.layers[0] in last) <= half
    else:
        whole = {asked for num_texts, asked in model.asked if num_texts == 8}
        assert kept in whole, "it was measured"
        assert not kept or any(len(asked) == len(kept) - 1 for asked in whole)
    assert len(model.asked) <= max_measurements(model)


@pytest.mark.parametrize(
    ("whole", "few", "gate", "sizes"),
    [
        # One layer is promised to be enough, and it takes thirty.
        ([0.01] * 64, [0.2], np.cos(0.345), [1, 2, 4, 8, 16, 32, 24, 28, 30, 29]),
        # Many are promised to be needed, and three are.
        ([0.2] * 3, [0.01] * 64, np.cos(0.1), [32, 31, 29, 25, 17, 1, 9, 5, 3, 2]),
        ([0.2] * 3, [0.01] * 64, np.cos(0.158), [31, 30, 28, 24, 16, 1, 8, 4, 2, 3]),
        # Two are promised to be enough, and all others to do harm.
        ([0.2] * 3, [0.2, 0.2, 0.0] + [-0.004] * 61, np.cos(0.1), [2, 3]),
    ],
)
def test_a_wrong_promise_costs_some_measurements(
    whole: list[float], few: list[float], gate: float, sizes: list[int]
) -> None:
    names = [f"{index:02}" for index in range(64)]
    angles = {
        target.texts: dict(itertools.zip_longest(names, given, fillvalue=0.0))
        for target, given in ((EIGHT, whole), (TWO, few))
    }

    class Misled(Angles):
        def embed(self, kept: Collection[str], texts: FidelityTexts) -> Embedded:
            self.angles = angles[texts]
            return super().embed(kept, texts)

    search = Misled(angles[EIGHT.texts], {})
    found = LayerSearch(search, EIGHT, TWO).find(Gate(mean=float(gate), p1=0))
    tried = [asked for num_texts, asked in search.asked if num_texts == 8]
    assert [len(asked) for asked in tried[1:]] == sizes
    assert len(found) == (30 if sizes[0] == 1 else 3)
    assert len(search.asked) <= max_measurements(search)


def test_a_unit_of_more_than_half_of_the_weights_is_out_of_reach() -> None:
    with pytest.raises(OutOfReachError, match=r"with half of their weights kept 0\.99500"):
        LayerSearch(Angles({"a": 0.1}, {}), EIGHT, TWO).find(Gate())


def test_a_large_layer_is_kept_only_for_a_large_gain() -> None:
    angles = {"large": 0.2, "small": 0.15, "c": 0.0, "d": 0.0, "e": 0.0}
    gate = Gate(mean=float(np.cos(0.21)), p1=0)
    assert LayerSearch(Angles(angles, {}), EIGHT, TWO).find(gate) == ("large",)
    assert LayerSearch(Angles(angles, {"large": 3}), EIGHT, TWO).find(gate) == ("small",)


def test_nothing_is_searched_where_all_in_8_bits_passes_or_half_kept_fails() -> None:
    search = Angles({"a": 0.1, "b": 0.1, "c": 0.1, "d": 0.1}, {})
    assert LayerSearch(search, EIGHT, TWO).find(Gate(mean=0.9, p1=0.9)) == ()
    assert search.asked == [(8, ())]
    with pytest.raises(EngineBuildError) as caught:
        LayerSearch(search, EIGHT, TWO).find(Gate(mean=0.99, p1=0.98))
    assert str(caught.value) == (
        "fp8 does not reach a mean cosine of 0.99 and 0.98 for 99 of 100 texts: with all linear "
        "layers in fp8 it has 0.92106 and 0.92106, with half of their weights kept 0.98007 "
        "and 0.98007; lower the gate or stay with bf16"
    )
    assert search.asked[-1] == (8, ("a", "b"))


@pytest.mark.parametrize("p1", [0.5, 0.999])
def test_the_worst_texts_count_too(p1: float) -> None:
    class OneText(Angles):
        def embed(self, kept: Collection[str], texts: FidelityTexts) -> Embedded:
            found = super().embed(kept, texts)
            found.queries[1:] = EIGHT.right.queries[0]
            return found

    angles = {"a": 0.1, "b": 0.0, "c": 0.0}
    found = LayerSearch(OneText(angles, {}), EIGHT, TWO).find(Gate(mean=0.9, p1=p1))
    assert found == (() if p1 == 0.5 else ("a",))


def test_which_share_of_a_loss_is_allowed() -> None:
    one_off = np.array([0.5, *[1.0] * 255])
    assert _allowed_share(one_off, Gate()) == pytest.approx(0.001 * 256 / 0.5)
    some_off = np.array([*[0.9] * 5, *[1.0] * 95])  # of which the first percentile tells more
    assert _allowed_share(some_off, Gate()) == pytest.approx(0.002 / 0.1)
    hardly = np.array([*[1 - 2**-53] * 3, *[1.0] * 253])  # their mean is 1 when it is rounded
    assert _allowed_share(hardly, Gate(mean=1, p1=1)) == 0


def test_a_loss_that_the_few_texts_do_not_show() -> None:
    class OtherText(Angles):
        def embed(self, kept: Collection[str], texts: FidelityTexts) -> Embedded:
            found = super().embed(kept, texts)
            return found if texts is EIGHT.texts else TWO.right

    model = OtherText({"a": 0.0, "b": 0.1, "c": 0.0, "d": 0.0}, {})
    assert LayerSearch(model, EIGHT, TWO).find(Gate()) == ("a", "b")


def test_layers_computed_as_one_are_kept_together(tiny_folder: Callable[[str], Path]) -> None:
    files = read_model_files(tiny_folder("mistral"))
    single = layer_units(files, ())
    assert all(len(unit.layers) == 1 for unit in single)
    assert sum(unit.num_weights for unit in single) == linear_weights(files.spec.encoder)
    fused = layer_units(files, FUSED_LAYERS)
    assert {tuple(sorted(unit.layers)) for unit in fused} == {
        tuple(f"layers.{layer}.{leaf}" for leaf in leaves)
        for layer in (0, 1)
        for leaves in ("kqv", "o", ("gate", "up"), ("down",))
    }
    units = layer_units(files, (), len(single) // 2)
    assert units[0].layers == ("layers.0.q", "layers.1.q")
    assert len(units) <= len(single) // 2 + 1
    assert len(layer_units(files, (), len(single) - 1)) < len(single)
    for some in (fused, units):
        assert sum(unit.num_weights for unit in some) == sum(unit.num_weights for unit in single)
        assert sorted(itertools.chain(*(unit.layers for unit in some))) == sorted(
            itertools.chain(*(unit.layers for unit in single))
        )


@pytest.mark.parametrize(
    ("hidden", "layers", "units"),
    [(384, 6, MAX_UNITS), (1024, 24, 13), (4096, 32, MIN_UNITS)],
    ids=["MiniLM", "BERT-large", "seven billion"],
)
def test_a_search_of_a_larger_model_measures_fewer_units(
    hidden: int, layers: int, units: int
) -> None:
    small = fake_spec(512).encoder
    encoder = replace(
        small,
        hidden_size=hidden,
        head_dim=hidden // small.num_heads,
        num_kv_heads=small.num_heads,
        intermediate_size=4 * hidden,
        num_layers=layers,
        windows=(None,) * layers,
        is_gated=False,
    )
    assert most_units(encoder) == units


# --- int8 -----------------------------------------------------------------------------------------


@pytest.fixture
def spoiled(tmp_path: Path) -> Path:
    """A model with one layer whose rows have an outlier each, which int8 does badly."""

    def outlier(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
        matrix[:, 3] = 300
        return matrix

    return change(write_tiny_model(tmp_path / "model", "bert"), {"layers.1.o": outlier})


@pytest.mark.usefixtures("few_units")
def test_the_layer_that_costs_int8_most_is_kept(
    spoiled: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On some CPUs a kept layer is computed in bf16, which the outliers spoil too.
    monkeypatch.setattr(cpu_kind, "number_type", lambda precision: "float32")
    seen: list[tuple[int, int]] = []
    gate = Gate(mean=0.9995, p1=0.999)
    folder, comparison = compile_to_gate(
        spoiled,
        "int8",
        gate=gate,
        texts=FEW,
        config=config,
        report=lambda *numbers: seen.append(numbers),
    )
    assert verify_engine_folder(folder).excluded == ("layers.0.o", "layers.1.o")
    report = comparison.report
    assert report.passes(gate)
    assert report.excluded == ("layers.0.o", "layers.1.o")
    assert report.texts_digest == FEW.digest
    assert report.versions.keys() == {"embedlib", "numpy", "openvino"}
    done, totals = zip(*seen, strict=True)
    assert list(done) == list(range(1, len(done) + 1))
    assert len(set(totals)) == 1
    assert done[-1] <= totals[0] == 3 + 6 + 2 * 3, "of six units: an engine fuses none in int8"

    versions = compiled_versions(read_model_files(spoiled), config)
    stored = {version.folder: version.report for version in versions}
    assert stored[folder] == report
    assert len(stored) == 2  # that with all layers in int8 was the start of the search


def test_measuring_again_gives_the_same_to_the_last_bit(
    tiny_folder: Callable[[str], Path], config: Config
) -> None:
    # So a search takes the same way. A text's batch would make a difference in int8.
    model = open_model(tiny_folder("bert"), config)
    weights = int8_weights(compile_model(model.files, "int8", (), config))
    texts = FidelityTexts(FEW.queries, FEW.documents * 4)
    found = [model.embed(reference_engine(model, weights), texts).all for _ in range(2)]
    # Without VNNI activations stay in float32, and a rounding depends on what a thread did before.
    most = 0 if rounds_activations() else 1e-6
    assert np.abs(found[0] - found[1]).max() <= most
    assert np.abs(found[0][2:6] - found[0][-4:]).max() <= most


def test_layers_of_int8_are_kept_in_float32(
    tiny_folder: Callable[[str], Path], config: Config
) -> None:
    model = open_model(tiny_folder("bert"), config)
    plan = plan_measurement(model.files, replace(config, precision="int8"), NO_GPU)
    assert LayerChoices(model, plan, NOTHING_REMEMBERED).kept_in == "float32"


@pytest.mark.parametrize(
    ("kind", "budgets"), [(cpu_kind.KIND, [1, 1]), (CUDA_KIND, [None, None])], ids=["CPU", "GPU"]
)
def test_on_a_cpu_each_text_is_measured_alone(
    kind: EngineKind,
    budgets: list[int | None],
    tiny_folder: Callable[[str], Path],
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int | None] = []

    def make(*given: Any) -> Any:
        asked.append(given[-1].max_batch_tokens)

    monkeypatch.setattr(measure, "make_engine", make)
    monkeypatch.setattr(measure.MeasuredModel, "embed", lambda *_: None)
    plan = EnginePlan(
        kind=replace(kind, lower=make),
        devices=kind.device_types,
        hardware="",
        precision=ChosenPrecision(name="int8"),
    )
    model = open_model(tiny_folder("bert"), config)
    measure.planned_vectors(model, plan, FEW)
    measure.lowered(model, {}, plan)
    assert asked == budgets


def test_a_folder_that_must_not_be_replaced_is_told_before_anything_is_measured(
    tiny_folder: Callable[[str], Path],
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compute(*_: object) -> None:
        pytest.fail("the reference is computed")

    monkeypatch.setattr(to_gate, "reference_vectors", compute)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError, match=r"holds files that embedlib did not write"):
        compile_to_gate(tiny_folder("bert"), "int8", config=config, out=tmp_path)


@pytest.mark.usefixtures("few_texts")
def test_nothing_is_kept_that_need_not_be_and_the_reference_takes_its_share_of_the_memory(
    tiny_folder: Callable[[str], Path],
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, int | None]] = []

    def note(model: Any, machine: Any) -> Any:
        asked.append((model.memory_share, model.longest_tokens))
        return plan_cpu_reference(model, machine)

    monkeypatch.setattr(measure, "plan_cpu_reference", note)
    folder, comparison = compile_to_gate(
        tiny_folder("bert"),
        "int8",
        gate=Gate(mean=0.9, p1=0.9),
        texts=FEW,
        config=config,
        out=tmp_path / "out",
        memory_share=2,
    )
    assert folder == tmp_path / "out"
    assert comparison.report.excluded == ()
    assert 0.9 < comparison.report.mean < 0.99999
    assert {share for share, _ in asked} == {2}
    assert all(0 < (longest or 0) < 10_000 for _, longest in asked)


def test_what_has_no_search_is_refused(tiny_folder: Callable[[str], Path], config: Config) -> None:
    folder = tiny_folder("bert")
    told = r"^precision = 'bf16': layers are searched for fp8, int8, int8-g128$"
    with pytest.raises(ConfigError, match=told):
        compile_to_gate(folder, "bf16", config=config)  # type: ignore[arg-type]
    wrong = replace(config, engine="tensorrt_llm")
    with pytest.raises(ConfigError, match=r"searched on the engine cuda; leave engine out$"):
        compile_to_gate(folder, "fp8", config=wrong)
    with pytest.raises(ConfigError, match=r"^texts has 6 texts; choosing layers needs 100 or more"):
        compile_to_gate(folder, "int8", texts=FEW, config=config)
    with pytest.raises(ConfigError, match=r"^reference = 'bf16': the engine openvino has float32"):
        compile_to_gate(folder, "int8", reference="bf16", config=config)


@pytest.mark.parametrize(
    ("variant", "texts", "asked"),
    [
        ("bert", None, built_in_texts(16)),
        ("bert-reranker", FidelityTexts(("a cat",) * 50, ("a", "b")), None),  # 100 rows
    ],
)
def test_what_a_search_measures(
    variant: str,
    texts: FidelityTexts | None,
    asked: FidelityTexts | None,
    tiny_folder: Callable[[str], Path],
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[FidelityTexts] = []

    def compute(model: object, plan: object, some: FidelityTexts, *_: object) -> None:
        found.append(some)
        raise KeyboardInterrupt

    monkeypatch.setattr(to_gate, "reference_vectors", compute)
    config = replace(config, max_seq_tokens=16)
    with pytest.raises(KeyboardInterrupt):
        compile_to_gate(tiny_folder(variant), "int8", texts=texts, config=config)
    assert found == [asked or texts]


def test_on_which_engine_a_search_measures(
    tiny_folder: Callable[[str], Path], config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Config] = []

    def plan(files: object, config: Config, machine: object) -> None:
        asked.append(config)
        raise KeyboardInterrupt

    monkeypatch.setattr(to_gate, "plan_measurement", plan)
    for precision in ("fp8", "int8"):
        with pytest.raises(KeyboardInterrupt):
            compile_to_gate(tiny_folder("bert"), precision, config=config)  # type: ignore[arg-type]
    assert [(each.engine, each.precision) for each in asked] == [
        ("cuda", "fp8"),
        ("openvino", "int8"),
    ]


# --- FP8 ------------------------------------------------------------------------------------------


@pytest.fixture
def one_layer(tmp_path: Path) -> Path:
    """A model whose second MLP makes nearly all of what is added to the embeddings."""
    others = ("layers.0.o", "layers.0.down", "layers.1.o")
    less = {layer: lambda matrix: matrix * 0.01 for layer in others}
    return change(write_tiny_model(tmp_path / "model", "bert"), less)


@needs_torch
@pytest.mark.usefixtures("few_texts")
def test_fp8_misses_a_gate_and_one_layer_kept_passes_it(one_layer: Path, config: Config) -> None:
    gate = Gate(mean=0.99983, p1=0.99975)
    measured = replace(config, precision="fp8")
    plain = verify(one_layer, texts=FEW, config=measured, machine=NO_GPU).report
    assert not plain.passes(gate)
    folder, comparison = compile_to_gate(
        one_layer, "fp8", gate=gate, texts=FEW, config=config, machine=NO_GPU
    )
    report = comparison.report
    assert report.passes(gate)
    assert report.excluded == verify_engine_folder(folder).excluded == ("layers.1.down",)
    assert (report.engine, report.precision) == ("cuda", "fp8")
    assert report.hardware.startswith("emulated on ")
    assert report.versions.keys() >= {"embedlib", "numpy", "torch"}
    assert read_report(folder) == report

    # What a GPU has is another name: auto does not go by an emulation.
    files = read_model_files(one_layer)
    for hardware in ("NVIDIA H200", "x86_64"):
        auto = choose_precision(CUDA_KIND, hardware, files, replace(config, precision="auto"))
        assert auto.name == "bf16"


@needs_torch
def test_an_engine_directory_of_the_search_is_honoured(one_layer: Path, config: Config) -> None:
    from embedlib.engines.cuda.engine import CudaEngine
    from embedlib.engines.cuda.engine_directory import open_weights

    model = open_model(one_layer, replace(config, device="cpu"))
    kept = ("layers.1.down",)
    plan = plan_measurement(model.files, replace(config, precision="fp8"), NO_GPU)
    choices = LayerChoices(model, plan, NOTHING_REMEMBERED)
    compiled = {
        excluded: compile_model(model.files, "fp8", excluded, config) for excluded in ((), kept)
    }
    # The search's vectors, of numbers at hand, are those of the directory to the last bit.
    for excluded, folder in compiled.items():
        engine = CudaEngine(
            model.files.spec,
            open_weights(model.files, folder),
            precision="fp8",
            excluded=verify_engine_folder(folder).excluded,
            device="cpu",
            bucket_tokens=(16,),
        )
        of_directory = model.embed(engine, FEW).all
        np.testing.assert_array_equal(choices.embed(excluded, FEW).all, of_directory)
    others = choices.embed((), FEW).all
    assert np.abs(others - of_directory).max() > 1e-3


@needs_torch
def test_bf16_can_be_what_is_right(one_layer: Path, config: Config) -> None:
    config = replace(config, device="cpu", precision="fp8")
    report = verify(one_layer, texts=FEW, reference="bf16", config=config).report
    assert report.reference == "bf16"
    assert 0.999 < report.mean < 0.99999
    assert compiled_folder(read_model_files(one_layer), "bf16", (), config) is not None


@pytest.mark.usefixtures("few_texts")
def test_without_torch_and_without_a_gpu(
    tiny_folder: Callable[[str], Path], config: Config
) -> None:
    with pytest.raises(EngineUnavailableError) as caught:
        compile_to_gate(
            tiny_folder("bert"), "fp8", texts=FEW, config=config, machine=fake_machine()
        )
    assert str(caught.value) == (
        "precision = 'fp8': no GPU that has it was found, and emulating it takes the package "
        "torch, which is missing; pip install torch"
    )


@pytest.mark.parametrize(
    ("capability", "options", "is_emulated"),
    [
        ((9, 0), {}, False),
        ((9, 0), {"engine": "cuda"}, False),
        ((9, 0), {"device": "cpu"}, True),
        ((9, 0), {"device": "cuda:0"}, False),
        ((8, 0), {}, True),  # Ampere has none
        ((8, 0), {"device": "cuda:0"}, False),  # refused by name
        ((8, 0), {"engine": "tensorrt_llm"}, False),
        ((8, 0), {"precision": "bf16"}, False),
        (None, {}, True),
    ],
)
def test_where_fp8_is_emulated(
    tiny_folder: Callable[[str], Path],
    config: Config,
    capability: tuple[int, int] | None,
    options: dict[str, Any],
    is_emulated: bool,
) -> None:
    gpus = [] if capability is None else [gpu("G", 80 << 10, 79 << 10, capability)]
    machine = fake_machine(*gpus, packages={**CUDA, **TRTLLM})
    files = read_model_files(tiny_folder("bert"))
    config = replace(config, **{"precision": "fp8", **options})
    if not is_emulated and config.precision == "fp8" and capability == (8, 0):
        with pytest.raises(EngineUnavailableError, match="G has no FP8"):
            plan_measurement(files, config, machine)
        return
    plan = plan_measurement(files, config, machine)
    assert plans.is_emulated(plan.hardware) is is_emulated
    if is_emulated:
        assert (plan.engine, plan.devices, plan.precision.name) == ("cuda", ("cpu",), "fp8")


def test_the_reference_is_computed_by_the_engine_that_is_measured(
    tiny_folder: Callable[[str], Path], config: Config
) -> None:
    machine = fake_machine(gpu("G", 80 << 10, 79 << 10, (9, 0)), packages={**CUDA, **TRTLLM})
    files = read_model_files(tiny_folder("bert"))
    measured = plan_measurement(files, replace(config, engine="cuda", precision="fp8"), machine)
    plan = plans.plan_reference(measured, files, replace(config, precision="bf16"), machine)
    assert (plan.engine, plan.precision.name) == (measured.engine, "bf16") == ("cuda", "bf16")


@pytest.mark.usefixtures("few_units")
def test_an_emulation_does_not_take_the_place_of_a_measurement(
    spoiled: Path, config: Config
) -> None:
    folder, comparison = compile_to_gate(
        spoiled, "int8", gate=Gate(mean=0, p1=0), texts=FEW, config=config
    )
    emulated = replace(comparison.report, hardware="emulated on x86_64")
    write_report(folder, emulated)
    assert read_report(folder) == comparison.report
    assert read_reports(folder) == [comparison.report, emulated]


def has_fp8() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)


@pytest.mark.skipif(not has_fp8(), reason="needs an NVIDIA GPU with FP8")
@pytest.mark.usefixtures("few_texts")
def test_on_a_gpu_it_is_a_measurement(one_layer: Path, config: Config) -> None:
    gate = Gate(mean=0.99983, p1=0.99975)
    folder, comparison = compile_to_gate(one_layer, "fp8", gate=gate, texts=FEW, config=config)
    assert verify_engine_folder(folder).excluded == ("layers.1.down",)
    assert comparison.report.passes(gate)
    assert not plans.is_emulated(comparison.report.hardware)
    emulated = verify(one_layer, texts=FEW, config=replace(config, precision="fp8", device="cpu"))
    np.testing.assert_allclose(emulated.cosines, comparison.cosines, atol=1e-4)
    with Embedder(folder, config=config) as embedder:
        assert embedder.encode("a cat").shape == (32,)


# --- prompts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["BAAI/bge-small-en-v1.5", "BAAI/bge-en-icl"])
def test_known_prompts_are_those_of_an_embedder(
    name: str,
    tiny_folder: Callable[[str], Path],
    config: Config,
    put_on_hub: Callable[[str, Path], dict[str, Any]],
) -> None:
    config = replace(config, **put_on_hub(name, tiny_folder("qwen3")))
    model = open_model(name, config)
    found = model.embed(reference_engine(model, load_weights(model.files)), FEW)
    config = replace(config, precision="float32", on_truncate="ignore")
    with Embedder(name, config=config) as embedder:
        queries = embedder.encode_query(list(FEW.queries))
        np.testing.assert_allclose(found.queries, queries, atol=1e-6)
        documents = embedder.encode_document(list(FEW.documents))
        np.testing.assert_allclose(found.documents, documents, atol=1e-6)
        bare = embedder.encode(list(FEW.queries), prompt="")
    assert np.abs(found.queries - bare).max() > 0.01
