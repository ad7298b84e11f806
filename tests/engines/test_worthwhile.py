from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlib.config import Config
from embedlib.engines.kind import EngineKind
from embedlib.engines.openvino.kind import KIND as OPENVINO
from embedlib.engines.registry import OWN_KINDS
from embedlib.engines.select import plan_engine
from embedlib.engines.worthwhile import worthwhile
from embedlib.errors import EngineUnavailableError
from embedlib.models.reading.files import read_model_files
from tests.machines import fake_machine, with_cpu

PRECISIONS = ("int8", "bf16", "f16", "float32")
NONE: frozenset[str] = frozenset()
FEATURES = st.frozensets(st.sampled_from(("avx2", "avx512_vnni", "amx_bf16", "avx512_fp16")))


@st.composite
def kinds(draw: st.DrawFn) -> EngineKind:
    """Draw rows of engines: some precisions in some order, each faster with some features."""
    names = draw(st.lists(st.sampled_from(PRECISIONS), min_size=1, unique=True))
    named = draw(st.frozensets(st.sampled_from(names)))
    return replace(
        OPENVINO,
        precisions=tuple(names),
        faster_with={name: draw(FEATURES) for name in sorted(named)},
        fastest_with={name: draw(FEATURES) for name in sorted(named)},
    )


@given(kinds(), FEATURES, st.frozensets(st.sampled_from(PRECISIONS)))
def test_what_auto_may_take(
    kind: EngineKind, features: frozenset[str], fitting: frozenset[str]
) -> None:
    found = worthwhile(kind, features, fitting.__contains__)
    *lower, last = found
    assert last == kind.precisions[-1], "the last one is what needs no report"
    assert len(set(found)) == len(found)
    assert fitting.issuperset(lower), "nothing that does not fit is measured"
    first = [name for name in kind.precisions[:-1] if kind.fastest_with.get(name, NONE) & features]
    ordered = [*first, *(name for name in kind.precisions[:-1] if name not in first)]
    fast = [
        name
        for name in ordered
        if name not in kind.faster_with or kind.faster_with[name] & features
    ]
    slow = [name for name in lower if name not in fast]
    assert [name for name in lower if name in fast] == [name for name in fast if name in fitting]
    assert not (slow and last in fitting), "a slower one is for what else would not fit"
    if last not in fitting:
        assert set(lower) == fitting & set(kind.precisions[:-1])
    assert lower == [*(name for name in lower if name in fast), *slow], "faster ones come first"


@pytest.mark.parametrize(
    ("features", "fitting", "expected"),
    [
        (["avx2"], ["int8", "float32"], ("float32",)),
        (["avx512_vnni"], ["int8", "float32"], ("int8", "float32")),
        (["avx_vnni"], ["int8"], ("int8", "float32")),
        (["avx2"], ["int8"], ("int8", "float32")),
        (["avx512_vnni"], ["int8-g128", "int8", "float32"], ("int8-g128", "int8", "float32")),
        (
            ["avx512_vnni", "avx512_bf16"],
            OPENVINO.precisions,
            ("int8-g128", "int8", "bf16", "float32"),
        ),
        (
            ["avx512_vnni", "avx512_bf16", "amx_bf16"],
            OPENVINO.precisions,
            ("bf16", "int8-g128", "int8", "float32"),
        ),
        (
            ["avx512_vnni", "avx512_bf16", "amx_bf16"],
            ["int8-g128", "int8"],
            ("int8-g128", "int8", "float32"),
        ),
        # A coarser form is for speed, and there is none to gain.
        (["avx2"], ["int8-g128", "int8"], ("int8", "float32")),
        (["avx2"], [], ("float32",)),
        ([], ["int8", "float32"], ("float32",)),
    ],
)
def test_each_precision_is_for_cpus_that_multiply_it(
    features: list[str], fitting: Sequence[str], expected: tuple[str, ...]
) -> None:
    assert worthwhile(OPENVINO, features, fitting.__contains__) == expected


def test_on_a_gpu_every_precision_is_worth_its_report() -> None:
    for kind in OWN_KINDS:
        if kind.device_types == ("cuda",):
            assert worthwhile(kind, (), lambda _: True) == kind.precisions


def test_the_memory_of_the_machine_decides(
    tiny_folder: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    files = read_model_files(tiny_folder("bert"))
    wide = replace(
        files,
        spec=replace(files.spec, encoder=replace(files.spec.encoder, intermediate_size=1 << 20)),
    )
    machine = with_cpu(fake_machine(), "avx2")
    assert plan_engine(wide, Config(), machine=machine).tried == ("float32",)
    told = "is not taken automatically: on this machine it is not faster than float32, or does not"
    for precision in ("int8", "bf16"):
        assert f"precision {precision} of engine openvino {told}" in caplog.text
    assert "precision float32 of" not in caplog.text
    kib = 1 << 20
    short = with_cpu(fake_machine(files={"/proc/meminfo": f"MemAvailable: {kib} kB\n"}), "avx2")
    kind = OPENVINO
    assert kind.check_memory is not None
    with pytest.raises(EngineUnavailableError, match="precision='int8' needs about"):
        plan_engine(wide, Config(threads=1), machine=short)  # nobody has measured int8


@pytest.mark.parametrize(
    ("inner", "is_tried"), [(128, True), (192, False), (384, True), (64, True), (100, True)]
)
def test_a_coarser_form_divides_the_rows_that_the_closer_one_divides(
    inner: int, is_tried: bool, tiny_folder: Callable[[str], Path]
) -> None:
    """One scale for a row would be slower, and still coarser."""
    files = read_model_files(tiny_folder("bert"))
    encoder = replace(files.spec.encoder, intermediate_size=inner)
    scaled = replace(files, spec=replace(files.spec, encoder=encoder))
    machine = with_cpu(fake_machine(), "avx512_vnni")
    tried = plan_engine(scaled, Config(), machine=machine).tried
    assert ("int8-g128" in tried) == is_tried
    assert "int8" in tried
    if not is_tried:
        told = (
            r"192 inputs, which cannot be divided by 128, as int8-g128 does; use precision='int8'"
        )
        with pytest.raises(EngineUnavailableError, match=told):
            plan_engine(scaled, Config(precision="int8-g128"), machine=machine)
