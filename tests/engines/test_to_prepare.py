"""Which precisions are left to measure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from embedlib.engines.kind import ChosenPrecision, EnginePlan
from embedlib.engines.openvino.kind import KIND
from embedlib.engines.precision import to_prepare
from embedlib.models.compiled.cache import Compiled
from embedlib.models.reading.files import ModelFiles, read_model_files
from tests.fidelity_reports import make_report

KEPT = ("layers.0.v",)


@pytest.fixture
def files(tiny_folder: Callable[[str], Path]) -> ModelFiles:
    return read_model_files(tiny_folder("bert"))


def left(
    files: ModelFiles,
    planned: str,
    *known: Compiled,
    given_up: str = "",
    folder: Path | None = None,
    with_search: bool = True,
) -> tuple[str, ...]:
    """Return what is left to measure where `auto` has planned a precision."""
    plan = EnginePlan(
        kind=KIND,
        devices=("cpu",),
        hardware=make_report().hardware,
        precision=ChosenPrecision(name=planned, folder=folder),
        tried=KIND.precisions,
    )
    is_given_up = given_up.split().__contains__
    return to_prepare(plan, files, known, is_given_up, with_search=with_search)


def version(
    files: ModelFiles, precision: str, mean: float, excluded: tuple[str, ...] = ()
) -> Compiled:
    longest = files.spec.max_seq_tokens
    report = make_report(precision=precision, mean=mean, excluded=excluded, max_seq_tokens=longest)
    return Compiled(folder=None, precision=precision, excluded=excluded, report=report)


def test_what_was_not_measured_is_left(files: ModelFiles) -> None:
    assert left(files, "float32") == ("int8-g128", "int8", "bf16")
    assert left(files, "int8") == ("int8-g128",)
    assert left(files, "int8-g128") == ()
    assert left(files, "float32", given_up="int8-g128 int8") == ("bf16",)


def test_layers_to_keep_are_searched_where_no_8_bits_pass(files: ModelFiles) -> None:
    failed = [version(files, name, 0.9) for name in ("int8-g128", "int8")]
    bf16 = version(files, "bf16", 1.0)
    assert left(files, "bf16", *failed, bf16, with_search=False) == ()
    assert left(files, "bf16", *failed, bf16) == ("int8-g128",)
    kept = version(files, "int8-g128", 0.9995, KEPT)
    assert left(files, "int8-g128", *failed, bf16, kept) == ()


def test_no_layers_are_kept_in_a_coarser_form_where_the_closer_one_passes(
    files: ModelFiles,
) -> None:
    known = [version(files, "int8-g128", 0.9), version(files, "int8", 1.0)]
    assert left(files, "int8", *known) == ()


def test_the_closer_form_is_searched_after_the_coarser_one(files: ModelFiles) -> None:
    failed = [version(files, name, 0.9) for name in ("int8-g128", "int8")]
    bf16 = version(files, "bf16", 1.0)
    assert left(files, "bf16", *failed, bf16, given_up="int8-g128") == ("int8",)
    assert left(files, "bf16", *failed, bf16, given_up="int8-g128 int8") == ()


def test_a_pack_settles_the_form_of_a_precision(files: ModelFiles) -> None:
    """Who made it has measured the coarser one too."""
    known = version(files, "int8", 1.0)
    assert left(files, "int8", known, folder=Path("x.embedlib/compiled/int8")) == ()
    assert left(files, "int8", known, folder=files.folder) == ("int8-g128",)
