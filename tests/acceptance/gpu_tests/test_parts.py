from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from io import StringIO
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embedlib.engines.base import Batch, Lane
from embedlib.errors import QueueFullError
from embedlib.testing import FakeEngine, fake_spec, make_batch
from tests.acceptance.gpu import gate
from tests.acceptance.gpu.budget import MAX_MEASURING_S, MIN_MEASURING_S, Budget
from tests.acceptance.gpu.clients import ask_all
from tests.acceptance.gpu.gpu_state import GpuState
from tests.acceptance.gpu.journal import Journal
from tests.acceptance.gpu.models import SHAPES, shape_of
from tests.acceptance.gpu.texts import (
    batch_flops,
    batches_of,
    id_tokenizer,
    lengths_of,
    linear_shapes,
    percentiles,
    texts_of,
    written,
)
from tests.acceptance.gpu.traffic import drive

VOCAB_SIZE = 50
ENCODER = fake_spec().encoder


def test_the_sizes_are_those_of_the_models() -> None:
    large = SHAPES["bge-en-icl"].spec
    assert (large.encoder.head_dim, large.encoder.is_causal, large.embedding_dim) == (
        *(128, True),
        4096,
    )
    assert SHAPES["qwen3-embedding-0.6b"].spec.encoder.has_qk_norm
    bert = SHAPES["bge-large"].spec
    assert (bert.encoder.norm_placement, bert.pooling.modes, bert.max_seq_tokens) == (
        *("post", ("cls",)),
        512,
    )
    assert shape_of("bge-en-icl", num_layers=4).spec.encoder.num_layers == 4
    tiny = shape_of("bge-en-icl", num_layers=4, is_tiny=True).spec
    assert (tiny.encoder.num_layers, tiny.encoder.head_dim, tiny.max_seq_tokens) == (2, 16, 512)


def test_the_work_of_a_token() -> None:
    # 13.96 GFLOP in linear layers and 134 MFLOP in attention, a token of 512.
    encoder = SHAPES["bge-en-icl"].spec.encoder
    assert batch_flops(encoder, [512]) / 512 == pytest.approx(13.96e9 + 134e6, rel=2e-3)
    assert linear_shapes(encoder)[2] == (2 * 14_336, 4096)
    bert = SHAPES["bge-large"].spec.encoder
    assert batch_flops(bert, [512, 512]) / 1024 == pytest.approx(0.604e9 + 50e6, rel=5e-3)


def test_texts_are_the_same_for_everybody() -> None:
    texts = texts_of([3, 100, 5], VOCAB_SIZE)
    assert [len(text) for text in texts] == [3, 100, 5]
    ids = np.concatenate(texts)
    assert ids.max() < VOCAB_SIZE - 2  # the last two are marked
    assert (ids == np.concatenate(texts_of([3, 100, 5], VOCAB_SIZE))).all()
    assert id_tokenizer(VOCAB_SIZE).encode(written(texts[1])).ids == texts[1].tolist()


def test_lengths() -> None:
    assert lengths_of("512", 1025, 4096) == [512, 512, 512]
    assert lengths_of("512", 1, 4096) == [512, 512]
    mixed = lengths_of("mixed", 100_000, 32_768)
    assert 100_000 <= sum(mixed) < 100_000 + 4096
    assert (min(mixed) >= 2, max(mixed) <= 4096) == (True, True)
    assert 150 < np.median(mixed) < 210
    assert max(lengths_of("mixed", 10_000, 100)) == 100


def test_batches_stay_in_the_budget() -> None:
    batches = batches_of(texts_of([100, 100, 100, 300, 10], VOCAB_SIZE), 250)
    assert [batch.seq_lens.tolist() for batch in batches] == [[100, 100], [100], [300], [10]]
    assert all(batch.lane is Lane.BULK for batch in batches)


def test_percentiles() -> None:
    found = percentiles([value / 1e3 for value in range(1, 102)])
    assert (found["num_queries"], found["p50_ms"]) == (101, pytest.approx(51))
    assert (found["p99_ms"], found["max_ms"]) == (pytest.approx(100), pytest.approx(101))
    assert percentiles([])["p50_ms"] is None


# Traffic.


class Ticking:
    """A clock that moves by a millisecond whenever somebody looks at it."""

    def __init__(self, step_s: float = 1e-3) -> None:
        self.now = 0.0
        self.step_s = step_s

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


def test_bulk_is_kept_full_and_counted() -> None:
    engine = FakeEngine(max_inflight_bulk=2)
    texts = texts_of([3, 4], VOCAB_SIZE)
    found = drive(engine, ENCODER, 0.05, bulk=batches_of(texts, 4), clock=Ticking())
    assert found.num_tokens == sum(len(batch.token_ids) for batch in engine.batches)
    assert found.num_seqs == len(engine.batches) > 10
    assert [len(batch.token_ids) for batch in engine.batches[:4]] == [3, 4, 3, 4]
    assert found.tokens_per_s == pytest.approx(found.num_tokens / found.seconds)


def test_queries_follow_one_another() -> None:
    query = make_batch(texts_of([5], VOCAB_SIZE), Lane.QUERY)
    other = make_batch(texts_of([7], VOCAB_SIZE), Lane.QUERY)
    engine = FakeEngine()
    found = drive(engine, ENCODER, 0.05, queries=[query, other], clock=Ticking())
    # Sent at one look, back at the next.
    assert found.query_s == pytest.approx([1e-3] * len(found.query_s))
    assert len(found.query_s) > 10
    assert [len(batch.token_ids) for batch in engine.batches[:4]] == [5, 7, 5, 7]


def test_a_query_that_had_to_wait_is_not_told_to_be_quick() -> None:
    query = make_batch(texts_of([5], VOCAB_SIZE), Lane.QUERY)
    engine = FakeEngine(max_inflight_batches=3, max_inflight_bulk=2)  # one query at a time
    traffic: dict[str, Any] = {"queries": [query], "queries_per_s": 2000.0}
    found = drive(engine, ENCODER, 0.05, **traffic, clock=Ticking())
    # Twice as many are due as can be sent: the last ones wait for half of the time.
    assert max(found.query_s) > 0.01
    assert found.query_s[-1] > found.query_s[0]


def test_a_batch_that_fails_is_told() -> None:
    engine = FakeEngine()
    engine.fail_next(RuntimeError("broken"))
    query = make_batch(texts_of([5], VOCAB_SIZE), Lane.QUERY)
    with pytest.raises(RuntimeError, match="broken"):
        drive(engine, ENCODER, 0.05, queries=[query], clock=Ticking())


# Clients.


def test_clients_are_answered_from_when_they_were_due() -> None:
    asked: list[str] = []
    clock = Ticking(step_s=1.0)  # never early, so that nobody sleeps

    async def ask(text: str) -> None:
        asked.append(text)
        if len(asked) % 4 == 0:
            raise QueueFullError("too many")

    found = asyncio.run(ask_all(ask, ["a", "b"], 10, 2.0, clock))
    assert asked == ["a", "b"] * 10
    assert (found["num_clients"], found["num_queries"], found["num_refused"]) == (10, 15, 5)
    assert found["refusal"] == "too many"
    # Twenty looks at the clock before the first task runs, 2 s of arrivals.
    assert 17 < found["p50_ms"] / 1e3 < 40
    assert found["answers_per_s"] == pytest.approx(15 / (clock.now - 1))


# The gate.


ALLOWED = 1e-3


class Leaking(FakeEngine):
    """Vectors depend on what is beside them, as much as `leak` says."""

    def __init__(self, leak: float, leaks_nan: bool = False) -> None:
        super().__init__(max_batch_tokens=4096)
        self.leak = leak
        self.leaks_nan = leaks_nan

    def _compute(self, batch: Batch) -> Any:
        vectors = super()._compute(batch)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        if batch.num_seqs > 1:  # turned by an angle whose cosine is 1 - leak
            across = np.roll(vectors, 1, axis=1)
            across -= (across * vectors).sum(axis=1, keepdims=True) * vectors
            across /= np.linalg.norm(across, axis=1, keepdims=True)
            vectors += np.sqrt(1 / (1 - self.leak) ** 2 - 1) * across
        if self.leaks_nan and not np.isfinite(vectors).all():
            vectors[:] = np.nan
        return vectors


def marked(engine: FakeEngine) -> FakeEngine:
    engine.poison(VOCAB_SIZE - 1)
    return engine


@pytest.mark.parametrize(("leak", "passed"), [(0.0, True), (9e-4, True), (2e-3, False)])
def test_mixes(leak: float, passed: bool) -> None:
    found = gate.check_mixes(Leaking(leak), VOCAB_SIZE, ALLOWED)
    assert (found["passed"], found["allowed"]) == (passed, ALLOWED)
    assert found["found"] == pytest.approx(leak, rel=1e-3, abs=1e-6)


def test_one_mix_that_is_off() -> None:
    class Late(Leaking):
        def _compute(self, batch: Batch) -> Any:
            self.leak = 2e-3 if batch.num_seqs == 18 else 0.0
            return super()._compute(batch)

    assert not gate.check_mixes(Late(0.0), VOCAB_SIZE, ALLOWED)["passed"]


def test_one_mix_that_is_not_a_number() -> None:
    class Late(Leaking):
        def _compute(self, batch: Batch) -> Any:
            return super()._compute(batch) * (np.nan if batch.num_seqs == 18 else 1)

    found = gate.check_mixes(Late(0.0), VOCAB_SIZE, ALLOWED)
    assert (found["passed"], found["found"]) == (False, "nan")


def test_poison_beside_a_text() -> None:
    assert gate.check_poison(marked(Leaking(0.0)), VOCAB_SIZE, ALLOWED)["passed"]
    found = gate.check_poison(marked(Leaking(0.0, leaks_nan=True)), VOCAB_SIZE, ALLOWED)
    assert (found["passed"], found["found"]) == (False, "nan")


@pytest.mark.parametrize("is_alone", [True, False])
def test_poison_behind_a_text(is_alone: bool) -> None:
    class Remembering(Leaking):
        """Its memory for texts alone, or that for all others, is never cleaned."""

        was_bad = False

        def _compute(self, batch: Batch) -> Any:
            vectors = super()._compute(batch)
            if (batch.num_seqs == 1) is not is_alone:
                return vectors
            found = vectors + (1.0 if self.was_bad else 0.0)
            self.was_bad = self.was_bad or bool(np.isnan(vectors).all())
            return found

    assert not gate.check_poison(marked(Remembering(0.0)), VOCAB_SIZE, ALLOWED)["passed"]


def test_closeness() -> None:
    found = np.array([[1.0, 0.0], [np.cos(0.1), np.sin(0.1)]], np.float32)
    expected = np.array([[2.0, 0.0], [2.0, 0.0]], np.float32)
    outcome = gate.check_close("name", found, expected, 0.005)
    assert outcome["check"] == "name"
    assert outcome["found"] == pytest.approx(1 - np.cos(0.1), abs=1e-6)
    assert outcome["passed"]
    assert not gate.check_close("name", found, expected, 0.0049)["passed"]
    found[0] = np.nan
    assert not gate.check_close("name", found, expected, 1.0)["passed"]


# Time, lines, clocks.


def test_a_budget_hands_on_what_is_left() -> None:
    now = [100.0]
    budget = Budget(60, [10, 20, 30], lambda: now[0])
    budget.begin_block()
    assert budget.left_s == 10
    assert (budget.measuring_s(1), budget.measuring_s(5)) == (MAX_MEASURING_S, 1.0)
    now[0] = 105
    budget.begin_block()
    assert (budget.left_s, budget.run_left_s) == (pytest.approx(22), 55)
    now[0] = 175
    assert (budget.left_s, budget.measuring_s(1)) == (pytest.approx(-48), MIN_MEASURING_S)
    budget.begin_block()
    assert budget.left_s == 0


def test_lines_are_short_and_valid() -> None:
    lines: list[str] = []
    journal = Journal(lines.append, Ticking())
    journal.add("block", number=1 / 3, several=[2 / 3, {"deep": 1e-9 / 3}], text="é")
    assert json.loads(lines[0])["several"] == [0.66667, {"deep": 3.3333e-10}]
    assert "0.33333," in lines[0]
    assert "é" in lines[0]


@pytest.mark.parametrize("uuid", ["GPU-2", ""])
def test_the_gpu_that_is_measured_is_asked(uuid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the machine's first one; of a MIG device nvidia-smi tells nothing."""
    asked: list[list[str]] = []

    def start(command: list[str], **_: object) -> Any:
        asked.append(command)
        return SimpleNamespace(stdout=StringIO("1500, 600.5, 60\n"), terminate=int, wait=int)

    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(subprocess, "Popen", start)
    state = GpuState(uuid)
    state.close()
    assert [command[command.index("-i") + 1] for command in asked] == [uuid] * bool(uuid)
    assert bool(state.means()) == bool(uuid)


def test_the_gpu_tells_clock_and_power(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    state = GpuState("GPU-1")
    assert state.means() == {}
    state.listen(["1500, 600.5, 60\n", "1700, 700.5, 62\n", "[N/A], [N/A], [N/A]\n"])
    assert state.means() == {"sm_mhz": 1600, "watts": 650.5, "celsius": 61}
    assert state.means() == {}
    state.close()
