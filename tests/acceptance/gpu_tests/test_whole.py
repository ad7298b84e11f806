"""The whole protocol with the engine itself, in tiny; where there is a GPU, its checks there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from embedlib.engines.base import Lane  # noqa: E402
from embedlib.engines.cuda import short_batches  # noqa: E402
from embedlib.engines.cuda.capability import torch_version  # noqa: E402
from embedlib.models.reading.files import read_model_files  # noqa: E402
from embedlib.models.reading.tokenizer_files import load_tokenizer  # noqa: E402
from embedlib.models.weights.load import load_weights  # noqa: E402
from embedlib.testing import make_batch  # noqa: E402
from tests.acceptance.gpu import blocks, chip, contestant, gate, models, peers_block, run  # noqa: E402
from tests.acceptance.gpu.contestant import ContestantCalls  # noqa: E402
from tests.acceptance.gpu.folder import weight_bytes, write_model  # noqa: E402
from tests.acceptance.gpu.models import SHAPES, shape_of  # noqa: E402
from tests.acceptance.gpu.options import GpuOptions  # noqa: E402
from tests.acceptance.gpu.seeded import SeededWeights  # noqa: E402
from tests.acceptance.gpu.table import render  # noqa: E402
from tests.acceptance.gpu.worker import make_calls  # noqa: E402

Line = dict[str, Any]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Recordings that are quickly made; longer texts take the other way."""
    monkeypatch.setattr(short_batches, "BUCKET_TOKENS", (16, 64))
    monkeypatch.setattr(contestant, "TINY_BATCH_TOKENS", 1400)
    monkeypatch.setattr(chip, "REPEATS", 2)
    monkeypatch.setattr(blocks, "LENGTHS", ("512", "mixed"))
    monkeypatch.setattr(blocks, "QUERY_LENGTHS", (16,))
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny products only wait for more
    yield
    torch.set_num_threads(num_threads)


@pytest.mark.parametrize("model", SHAPES)
def test_the_files_hold_what_the_engine_is_given(model: str, tmp_path: Path) -> None:
    shape = shape_of(model, is_tiny=True)
    write_model(tmp_path / "model", shape, CPU)
    files = read_model_files(tmp_path / "model")
    assert files.spec.encoder == shape.spec.encoder
    assert files.spec.modules == shape.spec.modules
    assert files.spec.max_seq_tokens == shape.max_seq_tokens
    assert load_tokenizer(files).encode("7 21").ids == [7, 21]
    stored, seeded = load_weights(files), SeededWeights(shape, CPU)
    assert set(stored) == set(seeded)
    for role in seeded:
        assert (stored[role] == seeded[role].float().numpy()).all(), role
    numbers = sum(array.size for array in stored.values())
    assert weight_bytes(shape) == 2 * numbers


def test_the_large_model_has_seven_billion_numbers() -> None:
    assert weight_bytes(shape_of("bge-en-icl")) == pytest.approx(2 * 7.11e9, rel=1e-3)


def test_marks_and_outliers_are_where_they_belong() -> None:
    shape = shape_of("bge-en-icl", is_tiny=True)
    plain = SeededWeights(shape, CPU)
    marked = SeededWeights(shape, CPU, has_marks=True, has_outliers=True)
    tokens = marked["tokens"]
    assert tokens[-1].isnan().all()
    assert tokens[-2].abs().mean() > 500 * tokens[-3].abs().mean()
    assert (tokens[:-2] == plain["tokens"][:-2]).all()
    different = [role for role in plain if not torch.equal(plain[role], marked[role])]
    assert different == ["tokens", "layers.0.down.weight"]


def test_a_product_that_cannot_be_computed_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, use_fast_accum: bool, **__: object) -> torch.Tensor:
        if not use_fast_accum:
            raise RuntimeError("no such sum\non this GPU")
        return torch.ones(1)

    monkeypatch.setattr(chip, "REPEATS", 1)
    monkeypatch.setattr(torch, "_scaled_mm", refuse)
    found = chip.ChipCalls("cpu").products("bge-large", 0)
    assert {line["failed"] for line in found if "exact" in line["what"]} == {"no such sum"}
    assert all(line["tflops"] > 0 for line in found if "exact" not in line["what"])
    assert len(found) == 5 * len(chip.TINY_ROWS)


def test_a_product_is_timed_behind_a_head_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the time of a small one would be that of its launch."""
    log: list[str] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            log.append("event")

        def elapsed_time(self, _: object) -> float:
            assert log[-1] == "waited"
            return 4.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: log.append("sleep"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("waited"))
    assert chip.ChipCalls("cuda")._median_s(lambda: log.append("launch")) == 4e-3
    timed = ["event", "launch", "event"] * chip.REPEATS
    assert log == [*["launch"] * 3, "sleep", *timed, "waited"]


@pytest.fixture
def course(course: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The course with everybody in person, but in this process."""
    make = course.start

    def start(name: str, device: str, path: Path | None) -> Any:
        process = make(name, device, path)
        process.calls = make_calls(name, device)
        return process

    course.start = start
    monkeypatch.setattr(peers_block, "missing_of", lambda modules: ["sentence-transformers"])
    return course


def test_a_whole_run(course: Any, find: Callable[..., list[Line]]) -> None:
    model = "bge-en-icl"
    # The clock stands still: every measurement gets its full time, which is next to none.
    lines = run.run_gpu_bench(
        GpuOptions(models=(model,), minutes=0.05, device="cpu"),
        course.written.append,
        circumstances={},
        start=course.start,
        clock=course.clock,
    )
    # torch 2.11 multiplies FP8 with a scale per row on GPUs alone.
    told = [line for line in lines if line["block"] != "ceilings" or torch_version() >= (2, 13)]
    skipped = [line for line in told if {"failed", "skipped"} & line.keys()]
    # What is for GPUs alone, and who is not here.
    assert [line.get("variant") or line["peer"] for line in skipped] == [
        *("attention=flash_attention_3", "attention=torch", "sentence-transformers", "vllm")
    ]
    assert {line["passed"] for line in find(lines, block="gate")} == {True}
    assert len(find(lines, block="gate")) == 7
    first = SHAPES[model].precisions[0]
    for block in ("bulk", "query", "mixed", "clients", "start"):
        assert find(lines, block=block), block
    for line in find(lines, block="bulk", precision=first):
        assert line["tokens_per_s"] > 0
        assert line["share_of_ceiling"] > 0
    assert find(lines, block="bulk", what="fp8 over bf16")[0]["ratio"] > 0
    for line in find(lines, block="query") + find(lines, block="clients"):
        assert 0 < line["p50_ms"] <= line["p99_ms"]
    assert find(lines, block="clients")[0]["num_refused"] == 0
    raced = [line for line in find(lines, block="variants") if "ratio" in line]
    assert [line["variant"] for line in raced] == [
        *["keeps_prefix"] * 2,
        *["pooled_rows"] * 2,
        "attention=own",
    ]
    for line in find(lines, block="variants"):
        assert line.get("farthest", 0) < 0.02
        assert line.get("ratio", 1) > 0
    starts = find(lines, block="start")
    assert [line["what"] for line in starts] == ["first", "second"]
    assert "tokens/s" in render(lines)


def test_queries_with_a_common_beginning_use_its_keys(tmp_path: Path) -> None:
    vectors = []
    for keeps_prefix in (True, False):
        calls = ContestantCalls("cpu")
        calls.load("bge-en-icl", "bf16", keeps_prefix=keeps_prefix)
        calls.query(5, 0.001, prefix_tokens=100)
        kept = calls._engine._prefixes.begin_use(make_batch(calls._texts([5], 100), Lane.QUERY))
        assert kept.tolist() == [100 if keeps_prefix else 0]
        calls.vectors(str(tmp_path / "vectors.npy"), [5, 5, 30], prefix_tokens=100)
        vectors.append(np.load(tmp_path / "vectors.npy"))
        calls._engine._prefixes.end_use(kept)
        calls._embedder.close()
    assert gate.check_close("kept", *vectors, allowed=1e-3)["passed"]


@pytest.mark.parametrize("role", ["layers.1.o.weight", "layers.0.q.weight", "layers.1.up.weight"])
def test_the_gate_notices_wrong_weights(
    role: str, course: Any, find: Callable[..., list[Line]], monkeypatch: pytest.MonkeyPatch
) -> None:
    get = SeededWeights.__getitem__

    def wrong(weights: SeededWeights, name: str) -> Any:
        values = get(weights, name)
        return values.roll(1, 0) if name == role and weights._has_marks else values

    monkeypatch.setattr(SeededWeights, "__getitem__", wrong)
    lines = run.run_gpu_bench(
        GpuOptions(models=("bge-large",), blocks=("bulk",), minutes=0.05, device="cpu"),
        course.written.append,
        circumstances={},
        start=course.start,
        clock=course.clock,
    )
    assert find(lines, block="gate")[0]["passed"] is False
    assert find(lines, block="bulk")[0]["skipped"] == "the gate failed: no speed is measured"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_the_checks_on_a_gpu(precision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "TINY", {**models.TINY, "hidden_size": 256})
    calls = ContestantCalls("cuda")
    calls._is_tiny = True
    calls.load("bge-en-icl", precision, num_layers=gate.NUM_LAYERS, has_marks=True)
    allowed = gate.MAX_MIX_ERROR[precision]
    assert all(outcome["passed"] for outcome in calls.checks(allowed))
    assert calls.bulk("512", 0.1)["tokens_per_s"] > 0
    assert np.isfinite(calls.encode(16, 0.1)["p50_ms"])
