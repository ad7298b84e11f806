from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlib.batching.results import resolve
from embedlib.batching.sequence import Job, TokenizedText, pack
from embedlib.batching.stats import Meter
from embedlib.batching.usage import Usage
from embedlib.engines.base import Lane
from embedlib.errors import EngineRunError
from embedlib.testing import FakeEngine
from embedlib.vectors.arrays import Vectors


@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=9), min_size=1, max_size=9))
def test_pack_lays_sequences_one_behind_the_other(ids: list[list[int]]) -> None:
    job = Job(len(ids), 1, Lane.BULK)
    sequences = [
        TokenizedText(job, row, item, row % 3, row % 2 or None) for row, item in enumerate(ids)
    ]
    batch = pack(sequences, Lane.QUERY)
    assert batch.lane is Lane.QUERY
    assert batch.num_seqs == len(ids)
    assert batch.seq_lens.tolist() == list(map(len, ids))
    assert [
        batch.token_ids[start:end].tolist()
        for start, end in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True)
    ] == ids
    assert batch.num_prompt_tokens.tolist() == [row % 3 for row in range(len(ids))]
    first = [row % 2 or len(item) for row, item in enumerate(ids)]
    assert batch.num_type0_tokens.tolist() == first
    arrays = (batch.token_ids, batch.cu_seqlens, batch.num_prompt_tokens, batch.num_type0_tokens)
    assert {array.dtype for array in arrays} == {np.dtype(np.int32)}


def sequences_of(job: Job, *rows: int) -> list[TokenizedText]:
    return [TokenizedText(job, row, [1]) for row in rows]


def give(sequences: list[TokenizedText], vectors: Vectors, is_per_token: bool = False) -> None:
    """Give the jobs of a batch its rows."""
    resolve(sequences, vectors, FakeEngine(is_per_token=is_per_token).limits, Meter(lambda: 0.0))


def test_rows_may_come_in_any_order_and_the_last_one_resolves() -> None:
    job = Job(3, 2, Lane.BULK)
    job.resolve(sequences_of(job, 2, 0), np.array([[5, 6], [1, 2]], np.float32))
    assert not job.is_over
    assert job.num_done == 2
    job.resolve(sequences_of(job, 1), np.array([[3, 4]], np.float32))
    np.testing.assert_array_equal(job.future.result(0), [[1, 2], [3, 4], [5, 6]])


def test_a_job_without_texts_is_over_at_once() -> None:
    job = Job(0, 4, Lane.BULK)
    assert job.is_over
    assert job.future.result(0).shape == (0, 4)


def test_the_first_error_is_told() -> None:
    job = Job(1, 1, Lane.BULK)
    job.fail(ValueError("first"))
    job.fail(ValueError("second"))
    job.resolve(sequences_of(job, 0), np.ones((1, 1), np.float32))
    with pytest.raises(ValueError, match="first"):
        job.future.result(0)


def test_an_answer_is_not_taken_back() -> None:
    job = Job(1, 1, Lane.BULK)
    job.resolve(sequences_of(job, 0), np.ones((1, 1), np.float32))
    job.fail(ValueError())
    assert job.future.result(0).tolist() == [[1]]


def test_a_cancelled_job_takes_rows_and_errors_in_silence() -> None:
    job = Job(1, 1, Lane.BULK)
    job.future.cancel()
    job.resolve(sequences_of(job, 0), np.ones((1, 1), np.float32))
    job.fail(ValueError())
    assert job.future.cancelled()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_fails_its_job_and_no_other(bad: float) -> None:
    first, second = Job(2, 2, Lane.BULK), Job(1, 2, Lane.BULK, first_row=100)
    third = Job(1, 2, Lane.BULK, first_row=200)
    sequences = [
        TokenizedText(first, 1, [1]),
        TokenizedText(second, 0, [1, 2, 3]),
        TokenizedText(first, 0, [4]),
    ]
    sequences.append(TokenizedText(third, 0, [5]))
    vectors = np.arange(8, dtype=np.float32).reshape(4, 2)
    vectors[1, 1] = bad
    give(sequences, vectors)
    assert first.future.result(0).tolist() == [[4, 5], [0, 1]]
    assert third.future.result(0).tolist() == [[6, 7]]
    with pytest.raises(EngineRunError, match=r"result of row 100 \(3 tokens\) is not finite"):
        second.future.result(0)


def test_windows_of_a_text_are_added_and_counted_as_one_text() -> None:
    job = Job(3, 2, Lane.BULK)
    sequences = [TokenizedText(job, 0, [1])]
    give(sequences, np.array([[1, 2]], np.float32))
    windows = [
        TokenizedText(job, 1, [row], share=share, num_windows=2)
        for row, share in enumerate((0.75, 0.25))
    ]
    give([windows[1], TokenizedText(job, 2, [3])], np.array([[4, 8], [5, 6]], np.float32))
    assert job.num_done == 2
    assert not job.is_over
    give([windows[0]], np.array([[8, 4]], np.float32))
    assert job.num_done == 3
    assert job.future.result(0).tolist() == [[1, 2], [7, 5], [5, 6]]


def test_an_engine_of_tokens_gives_every_text_an_array() -> None:
    first, second = Job(2, None, Lane.BULK), Job(1, None, Lane.BULK)
    sequences = [
        TokenizedText(first, 1, [1, 2]),
        TokenizedText(second, 0, [3, 4]),
        TokenizedText(first, 0, [5]),
    ]
    vectors = np.arange(10, dtype=np.float32).reshape(5, 2)
    give(sequences, vectors, True)
    assert [rows.tolist() for rows in first.future.result(0)] == [[[8, 9]], [[0, 1], [2, 3]]]
    assert [rows.tolist() for rows in second.future.result(0)] == [[[4, 5], [6, 7]]]


@pytest.mark.parametrize("token", [0, 1])
def test_a_token_that_is_not_finite_fails_its_text(token: int) -> None:
    first, second = Job(1, None, Lane.BULK), Job(1, None, Lane.BULK)
    vectors = np.ones((3, 2), np.float32)
    vectors[token, 0] = np.nan
    give([TokenizedText(first, 0, [1, 2]), TokenizedText(second, 0, [3])], vectors, True)
    with pytest.raises(EngineRunError, match=r"row 0 \(2 tokens\) is not finite"):
        first.future.result(0)
    assert second.future.result(0)[0].tolist() == [[1, 1]]


def test_a_job_adds_what_it_used() -> None:
    job = Job(2, 1, Lane.BULK, opened_at=1.0)
    first, second = TokenizedText(job, 0, [1, 2]), TokenizedText(job, 1, [3])
    job.add_tokenized(2, [(0, 9)], 0.5, 2.0)
    job.add_tokenized(1, [], 0.25, 3.0)
    for now in (5.0, 6.0):  # the first batch counts
        job.note_submitted(now)
    job.resolve([second], np.ones((1, 1), np.float32), 7.0)
    job.resolve([first], np.ones((1, 1), np.float32), 9.0)
    usage = Usage()
    job.add_to(usage)
    assert usage == Usage(
        num_texts=2,
        num_tokens=3,
        truncated=[(0, 9)],
        tokenize_seconds=0.75,
        queue_seconds=3.0,
        compute_seconds=4.0,
        total_seconds=8.0,
    )
    job.add_to(usage)
    assert (usage.num_texts, usage.total_seconds, usage.truncated) == (4, 16.0, [(0, 9), (0, 9)])


def test_what_a_job_did_not_come_to_took_no_time() -> None:
    job, usage = Job(1, 1, Lane.BULK), Usage()
    job.add_to(usage)
    assert usage == Usage(num_texts=1)
