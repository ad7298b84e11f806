"""The process that measures faster precisions, run inside this one."""

from __future__ import annotations

import ctypes
import errno
import io
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import numpy as np
import pytest

from embedlib.config import Config
from embedlib.engines.kind import EnginePlan
from embedlib.engines.machine import Machine
from embedlib.errors import (
    CloseTimeoutError,
    EmbedlibError,
    EngineBuildError,
    EngineError,
    EngineOutOfMemoryError,
    EngineRunError,
    EngineUnavailableError,
    PassingBuildError,
)
from embedlib.fidelity import measure, preparing, preparing_process
from embedlib.fidelity.known_here import Here
from embedlib.fidelity.model import MeasuredModel, open_model
from embedlib.fidelity.outputs import Embedded
from embedlib.fidelity.preparing import prepare, texts_beside_work
from embedlib.fidelity.preparing_process import end_untried, end_with_input, main, read_task
from embedlib.fidelity.remembered import RememberedVectors
from embedlib.fidelity.search import OutOfReachError
from embedlib.fidelity.texts import FidelityTexts, built_in_texts, quick_texts
from embedlib.models.compiled.cache import compiled_versions
from embedlib.models.compiled.compile import compile_model
from embedlib.models.compiled.engine_folder import verify_engine_folder
from embedlib.models.compiled.fidelity_report import MIN_TEXTS, FidelityReport, write_report
from embedlib.models.compiled.new_folder import place_lock, try_place_lock
from embedlib.models.compiled.report_cache import (
    give_up,
    has_given_up,
    model_place,
    stored_reports,
)
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.session.estimates import QUICK, QUICK_PAIRS
from embedlib.session.preparing import Task
from tests.fidelity_reports import make_report
from tests.machines import fake_machine


def task_in(cache: Path, folder: Path) -> Task:
    return Task(
        model=str(folder),
        precisions=("int8-g128",),
        is_background=False,
        options={"engine": "openvino", "threads": 1, "engine_cache_dir": str(cache)},
    )


@pytest.fixture
def task(tiny_folder: Callable[[str], Path], new_cache: Path) -> Task:
    return task_in(new_cache, tiny_folder("bert"))


@pytest.fixture(scope="module")
def measured_cache(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A cache folder in which the task has been done; do not modify it."""
    cache = tmp_path_factory.mktemp("measured")
    prepare(task_in(cache, tiny_folder("bert")))
    return cache


def searches(place: Path) -> list[Path]:
    """Return the folders of searches that were not ended."""
    return [path for path in place.glob("search-*") if path.is_dir()]


def report_of(task: Task) -> FidelityReport:
    """Return the one report that was stored."""
    config = Config(**task.options)
    (report,) = (
        version.report
        for version in compiled_versions(read_model_files(Path(task.model)), config)
        if version.report is not None
    )
    return report


def refuse(*_: object, **__: object) -> Any:
    raise AssertionError("it was measured before")


def test_what_is_measured_is_stored(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    found = prepare(task)
    report = report_of(task)
    assert found == f"int8-g128 has a mean cosine of {report.mean:.5f}, p1 {report.p1:.5f}"
    assert MIN_TEXTS <= report.num_texts < 256
    assert report.excluded == ()
    monkeypatch.setattr(preparing, "compare_planned", refuse)
    assert prepare(task) == "all that can be measured is measured"


def test_the_first_precision_that_passes_is_the_last_one_that_is_measured(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing.FidelityReport, "passes", lambda *_: True)
    prepare(replace(task, precisions=("int8-g128", "int8")))
    assert report_of(task).precision == "int8-g128"


def test_an_error_in_one_precision_leaves_the_next_one_to_be_measured(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_planned, reference_vectors = measure.compare_planned, measure.reference_vectors
    computed: list[FidelityTexts] = []

    def compare(measured: Any, plan: EnginePlan, *others: Any) -> Any:
        if plan.precision.name == "int8-g128":
            raise EngineRunError("row 3 has NaN")
        return compare_planned(measured, plan, *others)

    def compute(measured: Any, plan: Any, texts: FidelityTexts, *others: Any) -> Any:
        computed.append(texts)
        return reference_vectors(measured, plan, texts, *others)

    monkeypatch.setattr(preparing, "compare_planned", compare)
    monkeypatch.setattr(preparing, "reference_vectors", compute)
    found = prepare(replace(task, precisions=("int8-g128", "int8"))).split("; ")
    assert found[0] == "int8-g128: row 3 has NaN"
    assert found[1].startswith("int8 has a mean cosine of ")
    assert computed == [quick_texts(24, are_pairs=False)], "the model's limit; once for both"


def test_measurements_of_one_model_take_turns(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[object] = []

    @contextmanager
    def lock(place: Path) -> Iterator[None]:
        order.append(place)
        yield
        order.append("free")

    def measured(*_: object) -> Any:
        order.append("measured")
        raise EngineOutOfMemoryError("out of memory")

    monkeypatch.setattr(preparing, "place_lock", lock)
    monkeypatch.setattr(preparing, "reference_vectors", measured)
    prepare(task)
    place = model_place(read_model_files(Path(task.model)), Config(**task.options))
    assert order == [place, "measured", "free"]


def test_what_a_measurement_may_take(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[MeasuredModel] = []

    def note(model: MeasuredModel, _: Machine) -> None:
        asked.append(model)
        raise EngineUnavailableError("no memory")

    monkeypatch.setattr(preparing, "plan_cpu_reference", note)
    for is_needed in (False, True):
        assert prepare(replace(task, is_needed=is_needed)) == "int8-g128: no memory"
    assert [model.memory_share for model in asked] == [2, 1]
    assert all(model.longest_tokens for model in asked)
    assert not any(model.config.prepare for model in asked), "it writes no copy in float32"


def machine_with(flags: str) -> Machine:
    here = Machine()
    return replace(
        here, read=lambda path: f"flags: {flags}\n" if "cpuinfo" in path else here.read(path)
    )


def test_machines_of_two_kinds_that_share_a_cache_each_measure_once(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_vnni, without = (machine_with(flags) for flags in ("avx512_vnni avx512f", "avx2"))
    assert with_vnni.cpu_hardware() != without.cpu_hardware()
    for machine in (with_vnni, without):
        assert prepare(task, machine).startswith("int8-g128 has a mean cosine of ")
    monkeypatch.setattr(preparing, "compare_planned", refuse)
    for machine in (with_vnni, without):
        assert prepare(task, machine) == "all that can be measured is measured"
    versions = compiled_versions(read_model_files(Path(task.model)), Config(**task.options))
    assert len({version.folder for version in versions}) == 1
    measured_on = {version.report.hardware for version in versions if version.report}
    assert measured_on == {with_vnni.cpu_hardware(), without.cpu_hardware()}


def test_texts_of_a_load_are_enough_for_a_report() -> None:
    for texts in QUICK:
        assert len(quick_texts(texts.max_tokens, are_pairs=False).all) >= MIN_TEXTS
    for texts in QUICK_PAIRS:
        assert len(quick_texts(texts.max_tokens, are_pairs=True).queries) * 2 >= MIN_TEXTS


def test_texts_of_a_load_are_few() -> None:
    for are_pairs, counts in ((False, (32, 96)), (True, (64, 96))):
        texts = quick_texts(32, are_pairs=are_pairs)
        assert (len(texts.queries), len(texts.documents)) == counts


def test_a_task_says_where_texts_are_cut(task: Task) -> None:
    prepare(replace(task, max_text_tokens=16))
    expected = quick_texts(16, are_pairs=False).digest
    assert report_of(task).texts_digest == expected != quick_texts(128, are_pairs=False).digest


@pytest.mark.parametrize(
    ("hidden_size", "num_layers", "folder", "cut"),
    [
        pytest.param(384, 6, "bert", 1024, id="MiniLM"),
        pytest.param(768, 12, "bert", 1024, id="BERT-base"),
        pytest.param(1024, 24, "bert", 256, id="BERT-large"),
        pytest.param(1024, 32, "bert", 128, id="a third more layers"),
        pytest.param(4096, 32, "bert", 32, id="7 billion"),
        pytest.param(384, 6, "bert-reranker", 1024, id="MiniLM, reranker"),
        pytest.param(768, 12, "bert-reranker", 128, id="BERT-base, reranker"),
    ],
)
def test_a_larger_model_is_measured_on_shorter_texts(
    hidden_size: int,
    num_layers: int,
    folder: str,
    cut: int,
    tiny_folder: Callable[[str], Path],
) -> None:
    measured = open_model(tiny_folder(folder), Config())
    spec = measured.files.spec
    assert texts_beside_work(measured) == built_in_texts(spec.max_seq_tokens)
    encoder = replace(
        spec.encoder,
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size,
        num_layers=num_layers,
        windows=(None,) * num_layers,
        num_heads=hidden_size // 64,
        num_kv_heads=hidden_size // 64,
        head_dim=64,
    )
    scaled = replace(measured.files, spec=replace(spec, encoder=encoder, max_seq_tokens=4096))
    texts = texts_beside_work(replace(measured, files=scaled))
    assert texts == built_in_texts(cut)


def test_a_search_beside_the_work_takes_those_texts(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[FidelityTexts] = []

    def search(*_: object, texts: FidelityTexts, **__: object) -> Any:
        searched.append(texts)
        raise OutOfReachError("int8-g128 does not reach it")

    monkeypatch.setattr(preparing, "CUTS", (8,))
    monkeypatch.setattr(preparing, "compile_to_gate", search)
    monkeypatch.setattr(preparing.FidelityReport, "passes", lambda *_: False)
    prepare(replace(task, is_background=True))
    assert searched == [built_in_texts(8)]
    assert report_of(task).texts_digest == built_in_texts(8).digest


def test_a_reranker_is_measured_by_its_scores(
    tiny_folder: Callable[[str], Path], task: Task
) -> None:
    task = replace(task, model=str(tiny_folder("bert-reranker")))
    assert prepare(task).startswith("int8-g128 has a mean cosine of ")
    config = Config(**task.options)
    (version,) = compiled_versions(read_model_files(Path(task.model), with_head=True), config)
    assert version.report is not None
    assert version.report.num_texts >= MIN_TEXTS


@pytest.fixture
def failed(
    task: Task, measured_cache: Path, new_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Task:
    """The task, which was done and whose precision has failed the gate."""
    is_shared = shutil.ignore_patterns("openvino")
    shutil.copytree(measured_cache, new_cache, dirs_exist_ok=True, ignore=is_shared)
    monkeypatch.setattr(preparing.FidelityReport, "passes", lambda *_: False)
    return task


@pytest.mark.parametrize(
    ("error", "is_lasting"),
    [
        (EngineRunError("row 3 has NaN"), True),
        (EngineBuildError("the graph cannot be compiled"), True),
        (EngineOutOfMemoryError("out of memory"), False),
        (PassingBuildError("no more threads can be started"), False),
        (CloseTimeoutError("a thread still runs"), False),
        (EngineUnavailableError("this process lacks the memory"), False),
        (OSError(28, "No space left on device"), False),
    ],
)
def test_an_error_that_comes_again_is_remembered(
    error: Exception, is_lasting: bool, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(error, OSError):
        os_error, error = error, EngineBuildError("cannot write")
        error.__cause__ = os_error

    def fail(*_: object) -> Any:
        raise error

    monkeypatch.setattr(preparing, "reference_vectors", fail)
    again = "all that can be measured is measured" if is_lasting else f"int8-g128: {error}"
    assert (prepare(task), prepare(task)) == (f"int8-g128: {error}", again)
    facts = (read_model_files(Path(task.model)), "int8-g128", "openvino")
    hardware = Machine().cpu_hardware()
    assert has_given_up(*facts, hardware, Config(**task.options)) == is_lasting


def test_an_error_is_not_remembered_where_nothing_else_can_be_loaded(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Any:
        raise EngineRunError("row 3 has NaN")

    monkeypatch.setattr(preparing, "reference_vectors", fail)
    needed = replace(task, is_needed=True)
    assert prepare(needed) == prepare(needed) == "int8-g128: row 3 has NaN"


def test_the_search_runs_beside_the_work_and_once(
    failed: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[str] = []

    def search(model: str, precision: str, **_: object) -> Any:
        searched.append(precision)
        raise OutOfReachError("int8-g128 does not reach it")

    monkeypatch.setattr(preparing, "compile_to_gate", search)
    assert prepare(failed) == "all that can be measured is measured"
    assert searched == [], "a load does not wait for it"
    later = replace(failed, is_background=True)
    assert prepare(later) == "int8-g128 does not reach it"
    assert prepare(later) == "all that can be measured is measured"
    assert searched == ["int8-g128"]


def test_a_search_leaves_half_of_the_memory_too(
    failed: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reference is computed layer by layer where all of them would take more."""
    options: list[dict[str, Any]] = []

    def search(*_: object, **given: Any) -> Any:
        options.append(given)
        raise OutOfReachError("int8-g128 does not reach it")

    monkeypatch.setattr(preparing, "compile_to_gate", search)
    machine = Machine()
    prepare(replace(failed, is_background=True), machine)
    assert [(given["memory_share"], given["machine"]) for given in options] == [(2, machine)]


def test_a_search_without_memory_is_not_begun(
    failed: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int | None] = []

    def note(model: MeasuredModel, _: Machine) -> None:
        asked.append(model.longest_tokens)
        raise EngineUnavailableError("no memory")

    monkeypatch.setattr(preparing, "plan_cpu_reference", note)
    monkeypatch.setattr(preparing, "compile_to_gate", refuse)
    assert prepare(replace(failed, is_background=True)) == "int8-g128: no memory"
    assert all(asked)


def test_a_search_that_fails_is_told_and_may_be_tried_again(
    failed: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise EngineOutOfMemoryError("out of memory")

    monkeypatch.setattr(preparing, "compile_to_gate", fail)
    later = replace(failed, is_background=True)
    assert prepare(later) == prepare(later) == "int8-g128: out of memory"


def test_a_coarser_form_is_removed_where_the_closer_one_passes(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is neither searched nor measured again."""
    monkeypatch.setattr(
        preparing.FidelityReport, "passes", lambda self, _: self.precision != "int8-g128"
    )
    monkeypatch.setattr(preparing, "compile_to_gate", refuse)
    locked: list[Path] = []

    def lock(place: Path) -> Any:
        locked.append(place)
        return place_lock(place)

    monkeypatch.setattr(preparing, "place_lock", lock)
    both = replace(task, is_background=True, precisions=("int8-g128", "int8"))
    found = prepare(both)
    assert locked[1].parent.name == "compiled", "another process may write there"
    assert [part.split()[0] for part in found.split("; ")] == ["int8-g128", "int8"]
    assert report_of(task).precision == "int8", "the folder of the other one is gone"
    files, config = read_model_files(Path(task.model)), Config(**task.options)
    assert has_given_up(files, "int8-g128", "openvino", Machine().cpu_hardware(), config)
    assert not searches(model_place(files, config)), "no search will read it"
    assert prepare(both) == "all that can be measured is measured", "as for a program beside it"


def test_a_coarser_form_is_removed_where_the_closer_one_had_passed(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the cache of an earlier version."""
    prepare(replace(task, precisions=("int8",)))
    monkeypatch.setattr(
        preparing.FidelityReport, "passes", lambda self, _: self.precision != "int8-g128"
    )
    monkeypatch.setattr(preparing, "compile_to_gate", refuse)
    assert prepare(replace(task, is_background=True)).startswith("int8-g128 has a mean")
    assert report_of(task).precision == "int8"
    place = model_place(read_model_files(Path(task.model)), Config(**task.options))
    assert not searches(place), "no search will read it"


def test_layers_that_somebody_keeps_are_measured_in_8_bits(task: Task) -> None:
    files, config = read_model_files(Path(task.model)), Config(**task.options)
    kept = ("layers.0.q",)
    compile_model(files, "int8-g128", kept, config)
    prepare(task)
    measured = {version.excluded: version.report for version in compiled_versions(files, config)}
    assert measured.keys() == {(), kept}
    assert measured[()] is not None
    assert measured[kept] is None


def test_weights_that_somebody_else_compiled_stay(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, config = read_model_files(Path(task.model)), Config(**task.options)
    folder = compile_model(files, "int8-g128", (), config)
    monkeypatch.setattr(
        preparing.FidelityReport, "passes", lambda self, _: self.precision != "int8-g128"
    )
    prepare(replace(task, precisions=("int8-g128", "int8")))
    assert verify_engine_folder(folder).precision == "int8-g128"


def test_the_closer_form_is_searched_where_nothing_helps_the_coarser_one(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[str] = []

    def search(model: str, precision: str, **_: object) -> Any:
        searched.append(precision)
        raise OutOfReachError(f"{precision} does not reach it")

    monkeypatch.setattr(preparing, "compile_to_gate", search)
    monkeypatch.setattr(preparing.FidelityReport, "passes", lambda *_: False)
    both = replace(task, is_background=True, precisions=("int8-g128", "int8"))
    found = prepare(both).split("; ")
    assert found[-2:] == [f"{name} does not reach it" for name in ("int8-g128", "int8")]
    assert prepare(both) == "all that can be measured is measured"
    assert searched == ["int8-g128", "int8"]


def test_a_search_ends_with_the_first_precision_that_passes(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(model: str, precision: str, **_: object) -> Any:
        report = make_report(precision=precision, excluded=("layers.0.q",), mean=0.9995, p1=0.999)
        return Path(model), SimpleNamespace(report=report)

    monkeypatch.setattr(preparing, "compile_to_gate", search)
    monkeypatch.setattr(preparing.FidelityReport, "passes", lambda *_: False)
    both = replace(task, is_background=True, precisions=("int8-g128", "int8"))
    *_, last = prepare(both).split("; ")
    assert last == "int8-g128 without layers.0.q has a mean cosine of 0.99950, p1 0.99900"


def test_of_a_precision_that_keeps_no_layers_none_are_searched(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SimpleNamespace(report=make_report(precision="bf16", mean=0.5))
    monkeypatch.setattr(preparing, "compare_planned", lambda *_: found)
    monkeypatch.setattr(preparing, "compile_to_gate", refuse)
    beside = replace(task, is_background=True, precisions=("bf16",))
    told = "bf16 has a mean cosine of 0.50000, p1 1.00000"
    assert prepare(beside, machine_with("avx512_bf16 avx512f")) == told


def test_of_two_searches_one_is_left_out(failed: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "compile_to_gate", refuse)
    place = model_place(read_model_files(Path(failed.model)), Config(**failed.options))
    with try_place_lock(place.with_name(f"{place.name}-search")) as is_held:
        assert is_held
        with try_place_lock(place.with_name(f"{place.name}-search")) as is_free:
            assert not is_free
        assert prepare(replace(failed, is_background=True)).startswith("all that can be")


@pytest.mark.parametrize("has_found", [False, True])
def test_a_search_that_another_process_has_just_ended_is_not_made_again(
    has_found: bool, failed: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, config = read_model_files(Path(failed.model)), Config(**failed.options)
    report, kept = report_of(failed), ("layers.0.q",)

    @contextmanager
    def wait(_: Path) -> Iterator[bool]:
        if has_found:
            made = compile_model(files, "int8-g128", kept, config)
            write_report(made, replace(report, excluded=kept))
        else:
            hardware = Machine().cpu_hardware()
            give_up(files, "int8-g128", "openvino", hardware, config, "out of reach")
        yield True

    monkeypatch.setattr(preparing, "try_place_lock", wait)
    monkeypatch.setattr(preparing, "compile_to_gate", refuse)
    assert prepare(replace(failed, is_background=True)).startswith("all that can be")


def test_a_search_computes_nothing_again(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the gate was measured with serves the search, also in another process."""
    later = replace(task, is_background=True, precisions=("int8-g128", "bf16"))
    computed: list[tuple[object, ...]] = []
    get = RememberedVectors.get

    def count(
        self: RememberedVectors,
        precision: str,
        kept: Collection[str],
        texts: FidelityTexts,
        compute: Callable[[], Embedded],
    ) -> Embedded:
        def counted() -> Embedded:
            computed.append((precision, *sorted(kept), texts.digest))
            return compute()

        return get(self, precision, kept, texts, counted)

    def end(*_: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(RememberedVectors, "get", count)
    monkeypatch.setattr(preparing.FidelityReport, "passes", lambda *_: False)
    monkeypatch.setattr("embedlib.fidelity.search.passes", lambda *_: False)
    short = quick_texts(16, are_pairs=False)  # these and few layers are quicker
    monkeypatch.setattr(preparing, "texts_beside_work", lambda measured: short)
    monkeypatch.setattr("embedlib.fidelity.choices.most_units", lambda encoder: 6)
    with monkeypatch.context() as patch:
        patch.setattr(preparing, "_search", end)
        with pytest.raises(KeyboardInterrupt):
            prepare(later)
    place = model_place(read_model_files(Path(task.model)), Config(**task.options))
    assert list(place.glob("search-int8-g128-*/*.npz"))
    assert len(computed) == (3 if Machine().bf16_instructions() else 2)
    prepare(later)
    assert len(set(computed)) == len(computed) > 10
    assert not searches(place), "the search is over"


def test_what_is_remembered_belongs_to_the_prompts(
    task: Task, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    texts, computed = quick_texts(16, are_pairs=False), []

    def right_of(config: Config) -> Embedded:
        model = open_model(tiny_folder("bert"), config)
        here = Here.find(model, Machine())
        remembered = measure.remembered_vectors(tmp_path, model, here.float32, here.machine)

        def compute() -> Embedded:
            computed.append(config)
            return measure.reference_vectors(model, here.float32, texts, "float32", here.machine)

        return remembered.get("float32", (), texts, compute)

    plain, prompted = Config(threads=1), Config(threads=1, prompts={"query": "the fox: "})
    one = right_of(plain).all
    assert not np.array_equal(right_of(prompted).all, one)
    assert np.array_equal(right_of(plain).all, one)
    assert computed == [plain, prompted]


def test_a_report_tells_of_the_files_that_were_measured(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = preparing.with_weights

    def change(plan: EnginePlan, files: ModelFiles, config: Config) -> EnginePlan:
        plan = compiled(plan, files, config)
        change_weights(files.folder)
        return plan

    monkeypatch.setattr(preparing, "with_weights", change)
    own = shutil.copytree(task.model, tmp_path / "own")
    task = replace(task, model=str(own))
    assert "was changed while it was measured" in prepare(task)
    assert not stored_reports(read_model_files(own), Config(**task.options))


def test_vectors_of_files_that_changed_are_not_remembered(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = shutil.copytree(task.model, tmp_path / "own")
    embed = MeasuredModel.embed

    def change(*asked: Any) -> Any:
        found = embed(*asked)
        change_weights(own)
        return found

    monkeypatch.setattr(MeasuredModel, "embed", change)
    told = prepare(replace(task, model=str(own), is_background=True))
    assert "was changed while it was measured" in told
    assert not list(Path(task.options["engine_cache_dir"]).rglob("search-*/*.npz"))


def change_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0?")


@pytest.mark.parametrize(
    "error", [OutOfReachError("out of reach"), EngineRunError("row 3 has NaN")]
)
def test_files_that_change_meanwhile_are_not_given_up(
    error: EngineError, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = shutil.copytree(task.model, tmp_path / "own")
    is_search = isinstance(error, OutOfReachError)

    def fail(*_: object, **__: object) -> Any:
        change_weights(own)
        raise error

    monkeypatch.setattr(preparing, "compile_to_gate" if is_search else "reference_vectors", fail)
    monkeypatch.setattr(preparing.FidelityReport, "passes", lambda *_: False)
    assert str(error) in prepare(replace(task, model=str(own), is_background=is_search))
    facts = (read_model_files(own), "int8-g128", "openvino", Machine().cpu_hardware())
    assert not has_given_up(*facts, Config(**task.options))


def test_what_was_computed_before_an_error_serves_the_next_process(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Any:
        raise EngineOutOfMemoryError("out of memory")

    monkeypatch.setattr(preparing, "compare_planned", fail)
    place = model_place(read_model_files(Path(task.model)), Config(**task.options))
    prepare(task)
    assert not searches(place), "what a load waits for takes seconds"
    old = place / "search-int8-of-other-weights"
    old.mkdir(parents=True)
    os.utime(old, (0, 0))
    prepare(replace(task, is_background=True, precisions=("int8",)))
    [search] = searches(place)
    assert not search.name.startswith("search-int8-g128"), "the search finds it"


def test_what_passes_leaves_nothing_for_a_search(task: Task) -> None:
    prepare(replace(task, is_background=True))
    place = model_place(read_model_files(Path(task.model)), Config(**task.options))
    assert not list(place.glob("search-*"))


class Counted:
    """Measurements that are remembered; the third that has to be made is interrupted."""

    def __init__(self, vectors: RememberedVectors, precision: str = "int8") -> None:
        self.vectors = vectors
        self.precision = precision
        self.made: list[tuple[str, ...]] = []

    def embed(self, kept: Collection[str], texts: FidelityTexts) -> Embedded:
        return self.vectors.get(self.precision, kept, texts, lambda: self._compute(kept, texts))

    def _compute(self, kept: Collection[str], texts: FidelityTexts) -> Embedded:
        if len(self.made) == 2:
            raise KeyboardInterrupt
        self.made.append(tuple(kept))
        rows = np.full((len(texts.queries), 2), float(len(kept)), np.float32)
        return Embedded(queries=rows, documents=rows[:0])


def test_an_ended_search_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "search"
    texts = FidelityTexts(("a", "b"), ())
    kept = [(), ("layers.0.q",), ("layers.0.q", "layers.0.k")]
    vectors = RememberedVectors(folder)
    first = Counted(vectors)
    for layers in kept[:2]:
        first.embed(layers, texts)
    with pytest.raises(KeyboardInterrupt):
        first.embed(kept[2], texts)
    second = Counted(RememberedVectors(folder))
    for layers in kept:
        assert (second.embed(layers[::-1], texts).queries == len(layers)).all()
    second.embed(kept[2], texts)
    assert second.made == [kept[2][::-1]]
    assert second.embed((), FidelityTexts(("c",), ())).queries.shape == (1, 2)
    assert len(second.made) == 2, "other texts are measured"
    for stored in folder.iterdir():
        stored.write_bytes(b"PK damaged")
    for others in (
        Counted(vectors),
        Counted(RememberedVectors(folder, "other weights")),
        Counted(vectors, "int8-g128"),
    ):
        others.embed((), texts)
        assert others.made == [()]
    vectors.forget()
    vectors.forget()  # another process was quicker
    assert not folder.exists()


def test_a_damaged_measurement_is_made_again(tmp_path: Path) -> None:
    texts = FidelityTexts(("a",), ())
    vectors = RememberedVectors(tmp_path)
    Counted(vectors).embed((), texts)
    [stored] = tmp_path.iterdir()
    content = stored.read_bytes()
    flipped = content.replace(b"NUMPY", b"NUMPX")  # the checksum no longer holds
    flags = content.index(b"PK\1\2") + 8  # of the first file, in the list of files
    encrypted = content[:flags] + b"\1" + content[flags + 1 :]
    compressed = content[: flags + 2] + b"\x08" + content[flags + 3 :]
    renamed = content.replace(b"queries", b"queriet")
    for damaged in (content[:200], flipped, encrypted, compressed, renamed, b"", b"no archive"):
        assert damaged != content
        stored.write_bytes(damaged)
        counted = Counted(vectors)
        for _ in range(2):
            counted.embed((), texts)
        assert counted.made == [()]
        assert stored.read_bytes() == content


def test_a_full_disk_keeps_no_part_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(file: IO[bytes], **_: object) -> None:
        file.write(b"PK")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", fill)
    counted = Counted(RememberedVectors(tmp_path))
    counted.embed((), FidelityTexts(("a",), ()))
    assert len(counted.made) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_is_full_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    counted = Counted(RememberedVectors(tmp_path / "file" / "new"))
    for _ in range(2):
        counted.embed((), FidelityTexts(("a",), ()))
    assert len(counted.made) == 2


def test_it_takes_only_a_part_of_the_memory(task: Task) -> None:
    kib = 400 * 1024  # enough for the tiny model itself, not for a measurement beside the work
    short = fake_machine(files={"/proc/meminfo": f"MemAvailable: {kib} kB\n"})
    assert "this process can have 0.2 GiB" in prepare(task, short)
    assert not compiled_versions(read_model_files(Path(task.model)), Config(**task.options))


def run(task: Task) -> str:
    """Run `main` with a task, and return what it printed."""
    answers = io.StringIO()
    main(io.StringIO(json.dumps(asdict(task)) + "\n"), answers)
    return answers.getvalue()


def test_an_error_is_one_line(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lowered: list[bool] = []
    woken: list[bool] = []
    monkeypatch.setattr(preparing_process, "wake_without_parent", lambda: woken.append(True))
    monkeypatch.setattr(preparing_process, "end_with_input", lambda *_: None)
    monkeypatch.setattr(preparing_process, "Path", lambda *_: tmp_path / "score")
    monkeypatch.setattr(preparing_process, "lower_priority", lambda: lowered.append(True))
    for error, line in (
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device"),
        (EmbedlibError("two\nlines"), "two lines"),
        (EmbedlibError("of /a\udcff"), r"of /a\udcff"),  # a path that is no Unicode
        (MemoryError(), "MemoryError"),
        (ZeroDivisionError("a bug"), "ZeroDivisionError: a bug"),
    ):

        def fail(task: Task, error: Exception = error) -> str:
            raise error

        monkeypatch.setattr(preparing_process, "prepare", fail)
        assert run(task) == f"{line}\n"
    assert (tmp_path / "score").read_text() == "1000", "it is killed first where memory is short"
    assert woken
    assert not lowered, "a load waits for it"
    run(replace(task, is_background=True))
    assert lowered

    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    main(io.StringIO(json.dumps(asdict(task))), Closed())  # nobody reads any more
    assert read_task(json.dumps(asdict(task))) == task


@pytest.mark.skipif(sys.platform != "linux", reason="priorities are those of a process elsewhere")
def test_everything_else_goes_first() -> None:
    found: list[tuple[int, int]] = []

    def lower() -> None:
        preparing_process.lower_priority()
        found.append((os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)))

    thread = threading.Thread(target=lower)  # on Linux a thread has priorities of its own
    thread.start()
    thread.join()
    assert found == [(19, os.SCHED_IDLE)]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel has no such signal elsewhere")
def test_it_is_woken_where_its_parent_ends() -> None:
    found = ctypes.c_int()

    def ask() -> None:
        preparing_process.wake_without_parent()
        ctypes.CDLL(None).prctl(2, ctypes.byref(found))  # PR_GET_PDEATHSIG, of this thread

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert found.value == signal.SIGCONT


def test_it_ends_with_its_input() -> None:
    ended: list[int] = []
    tasks = io.StringIO("more")
    end_with_input(tasks, ended.append)
    assert ended == [1]
    assert tasks.read() == "", "not before"
    tasks.close()
    end_with_input(tasks, ended.append)
    assert ended == [1, 1], "also where it cannot be read"


def test_when_it_ends_with_its_program_it_died_of_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "openvino" / "key" / "trying"
    mark.parent.mkdir(parents=True)
    mark.write_text(str(os.getpid()))
    left: list[tuple[int, bool]] = []
    monkeypatch.setattr(os, "_exit", lambda status: left.append((status, mark.exists())))
    end_untried(task_in(tmp_path, tmp_path), 1)
    assert left == [(1, False)]
