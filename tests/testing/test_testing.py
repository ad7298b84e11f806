"""check_engine must reject every kind of bad engine, and FakeEngine must pass it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlib import testing
from embedlib.engines.base import Batch, Lane
from embedlib.errors import EngineOutOfMemoryError
from embedlib.models.spec import Head
from embedlib.testing import FakeEngine


def batch_of(*ids: list[int]) -> Batch:
    return testing.make_batch(ids)


def test_the_fake_engine_keeps_the_promises_of_an_engine() -> None:
    engine = FakeEngine()
    testing.check_engine(engine, testing.fake_spec())
    assert engine.is_closed


@pytest.mark.parametrize(
    "call",
    ["check_engine(None, None)", "check_sink(None)", "check_replaceable(None)"],
)
def test_checks_refuse_to_run_without_asserts(call: str) -> None:
    code = f"from embedlib import testing; testing.{call}"
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True)
    name = call.partition("(")[0]
    assert done.stderr.splitlines()[-1] == (
        f"AssertionError: {name} checks with assert, which python -O leaves out; run it without -O "
        "and PYTHONOPTIMIZE"
    )


class Bad(FakeEngine):
    """A FakeEngine whose results are corrupted."""

    def __init__(self, spoil: Callable[[Any, Batch], Any], **options: Any) -> None:
        super().__init__(**options)
        self.spoil = spoil

    def submit(self, batch: Batch, on_done: Callable[[], None]) -> Any:
        pending = super().submit(batch, on_done)
        pending._vectors = self.spoil(pending._vectors, batch)
        return pending


def in_place(change: Callable[[Any, Batch], None]) -> Callable[[Any, Batch], Any]:
    def spoil(vectors: Any, batch: Batch) -> Any:
        change(vectors, batch)
        return vectors

    return spoil


SPOILS: dict[str, tuple[Callable[[Any, Batch], Any], str]] = {
    "float64": (lambda vectors, _: vectors.astype(np.float64), "float64, not float32"),
    "too wide": (lambda vectors, _: np.hstack([vectors, vectors]), r"shape \(12,\)"),
    "not finite": (in_place(lambda vectors, _: vectors.fill(np.nan)), "not finite"),
    "rows reversed": (lambda vectors, _: vectors[::-1], "changes by"),
    "a row missing": (lambda vectors, _: vectors[: max(1, len(vectors) - 1)], "6 rows for 7"),
    "depends on its neighbours": (
        lambda vectors, _: vectors + np.float32(1e-3) * (len(vectors) > 1),
        "changes by",
    ),
    "depends on padding": (
        lambda vectors, batch: vectors + np.float32(1e-3) * (batch.seq_lens.max() > 20),
        "changes by",
    ),
    "depends on the lane": (
        lambda vectors, batch: vectors + np.float32(1e-3) * (batch.lane is Lane.BULK),
        "on the bulk lane",
    ),
}


@pytest.mark.parametrize("name", SPOILS)
def test_an_engine_with_wrong_answers_is_refused(name: str) -> None:
    spoil, message = SPOILS[name]
    with pytest.raises(AssertionError, match=message):
        testing.check_engine(Bad(spoil), testing.fake_spec())


def test_an_engine_for_tokens_gives_a_row_for_every_token() -> None:
    testing.check_engine(FakeEngine(is_per_token=True), testing.fake_spec(modules=()))
    engine = Bad(SPOILS["a row missing"][0], is_per_token=True)
    with pytest.raises(AssertionError, match="returned 1 rows for 2 tokens"):
        testing.check_engine(engine, testing.fake_spec(modules=()))
    engine = Bad(SPOILS["rows reversed"][0], is_per_token=True)
    with pytest.raises(AssertionError, match="changes by"):
        testing.check_engine(engine, testing.fake_spec(modules=()))


def test_a_model_with_a_head_is_given_pairs() -> None:
    engine = FakeEngine()
    head = Head(labels=tuple("abcdef"), activation="identity")
    testing.check_engine(engine, testing.fake_spec(head=head))
    assert all((batch.num_type0_tokens <= batch.seq_lens).all() for batch in engine.batches)
    assert any((batch.num_type0_tokens < batch.seq_lens).any() for batch in engine.batches)
    mixed = Bad(lambda vectors, batch: vectors + np.float32(batch.num_type0_tokens[::-1, None]))
    with pytest.raises(AssertionError, match="changes by"):
        testing.check_engine(mixed, testing.fake_spec(head=head))


def test_an_engine_that_says_done_twice_is_refused() -> None:
    class Twice(FakeEngine):
        def submit(self, batch: Batch, on_done: Callable[[], None]) -> Any:
            on_done()
            return super().submit(batch, on_done)

    with pytest.raises(AssertionError, match="on_done was called twice"):
        testing.check_engine(Twice(), testing.fake_spec())


def test_an_engine_that_never_says_done_is_refused() -> None:
    engine = FakeEngine()
    engine.hold()
    with pytest.raises(AssertionError, match="on_done was not called"):
        testing.check_engine(engine, testing.fake_spec(), wait_seconds=0.01)


def test_an_engine_that_cannot_be_closed_twice_is_refused() -> None:
    class Once(FakeEngine):
        def close(self) -> None:
            assert not self.is_closed, "closed before"
            super().close()

    with pytest.raises(AssertionError, match="closed before"):
        testing.check_engine(Once(), testing.fake_spec())


@pytest.mark.parametrize("longest", [1, 2, 32, 400])
def test_the_longest_sequence_is_tried_and_no_longer_one(longest: int) -> None:
    engine = FakeEngine()
    testing.check_engine(engine, testing.fake_spec(max_seq_tokens=longest))
    tried = {int(length) for batch in engine.batches for length in batch.seq_lens}
    assert max(tried) == min(longest, 300)
    assert min(tried) == 1


@given(st.lists(st.integers(0, 255), min_size=2, max_size=20), st.data())
def test_a_fake_vector_tells_what_went_wrong(ids: list[int], data: st.DataObject) -> None:
    vector = testing.fake_vector(ids).tolist()
    assert len(vector) == testing.FAKE_DIM
    first, second = data.draw(st.sampled_from([(i, i + 1) for i in range(len(ids) - 1)]))
    swapped = list(ids)
    swapped[first], swapped[second] = swapped[second], swapped[first]
    assert (testing.fake_vector(swapped).tolist() == vector) is (swapped == ids)
    assert testing.fake_vector(ids[:-1]).tolist() != vector
    assert testing.fake_vector([*ids, 0]).tolist() != vector
    assert testing.fake_vector(ids, 1).tolist() != vector


def test_the_gate_holds_and_lets_go_in_turn() -> None:
    engine = FakeEngine()
    engine.hold()
    done: list[int] = []
    pendings = [
        engine.submit(batch_of([token]), lambda token=token: done.append(token))  # type: ignore[misc]
        for token in (1, 2, 3)
    ]
    assert done == []
    engine.release_one()
    assert done == [1]
    engine.release()
    assert done == [1, 2, 3]
    engine.submit(batch_of([4]), lambda: done.append(4))
    assert done == [1, 2, 3, 4]
    assert pendings[1].result()[0, 0] == 2


def test_waiting_for_what_does_not_come_is_a_failure() -> None:
    with pytest.raises(AssertionError, match="0 batches came, not 1"):
        FakeEngine(wait_seconds=0.01).wait_submitted(1)


def test_waiting_ends_when_the_batch_comes() -> None:
    engine = FakeEngine()
    thread = threading.Thread(target=engine.submit, args=(batch_of([1]), lambda: None))
    thread.start()
    engine.wait_submitted(1)
    thread.join()


def test_failures_on_demand() -> None:
    engine = FakeEngine(memory_tokens=2)
    engine.fail_next(ValueError("first"), KeyError("second"))
    engine.poison(7)

    def result(*ids: list[int]) -> Any:
        return engine.submit(batch_of(*ids), lambda: None).result()

    with pytest.raises(ValueError, match="first"):
        result([1])
    with pytest.raises(KeyError):
        result([1])
    with pytest.raises(EngineOutOfMemoryError, match="3 tokens do not fit"):
        result([1], [2, 3])
    vectors = result([7], [1])
    assert np.isnan(vectors[0]).all()
    assert vectors[1].tolist() == testing.fake_vector([1]).tolist()


def test_a_batch_after_close_is_a_failure() -> None:
    engine = FakeEngine()
    engine.close()
    with pytest.raises(AssertionError, match="after close"):
        engine.submit(batch_of([1]), lambda: None)


@given(st.text(max_size=20))
def test_the_byte_tokenizer_gives_bytes(text: str) -> None:
    assert testing.byte_tokenizer().encode(text).ids == list(text.encode())


def test_the_example_of_the_module() -> None:
    with testing.fake_embedder() as embedder:
        vectors = embedder.encode(["a", "b"])
    assert (vectors[0] == testing.fake_vector([97])).all()


def test_a_batch_is_made_of_its_sequences() -> None:
    batch = testing.make_batch([[1, 2, 3], np.array([4])], Lane.QUERY)
    assert batch.lane is Lane.QUERY
    assert batch.token_ids.tolist() == [1, 2, 3, 4]
    assert batch.cu_seqlens.tolist() == [0, 3, 4]
    assert batch.num_prompt_tokens.tolist() == [0, 0]
    assert batch.num_type0_tokens.tolist() == [3, 1]
    fields = ("token_ids", "cu_seqlens", "num_prompt_tokens", "num_type0_tokens")
    assert {getattr(batch, name).dtype for name in fields} == {np.dtype(np.int32)}


def test_a_batch_takes_its_counts_for_all_sequences_or_for_each() -> None:
    batch = testing.make_batch([[1, 2], [3, 4]], num_prompt_tokens=1, num_type0_tokens=[2, 1])
    assert batch.num_prompt_tokens.tolist() == [1, 1]
    assert batch.num_type0_tokens.tolist() == [2, 1]
