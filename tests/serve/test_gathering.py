"""What requests share: a wake-up for the queries of a turn, and what their options mean."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from embedlib.batching.outcome import Outcome
from embedlib.batching.sequence import Job, TokenizedText
from embedlib.config import OnTruncate
from embedlib.engines.base import Lane
from embedlib.errors import ClosedError
from embedlib.serve.models.gathering import MAX_GATHERED, Gathering
from embedlib.serve.models.sessions import MAX_FORMS, EmbeddingForms
from embedlib.testing import fake_embedder


class Pipeline:
    """Takes queries, or refuses them."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[int] = []
        self._error = error

    def queue_queries(self, sequences: list[TokenizedText]) -> None:
        self.calls.append(len(sequences))
        if self._error is not None:
            raise self._error


def query(job: Job) -> TokenizedText:
    return TokenizedText(job, 0, [1], 0)


def run(pipeline: Any, turns: list[int]) -> list[Job]:
    """Add so many queries in each turn."""
    jobs: list[Job] = []

    async def add() -> None:
        gathering = Gathering()
        for num_queries in turns:
            for _ in range(num_queries):
                jobs.append(Job(1, 2, Lane.QUERY))
                gathering.add(pipeline, [query(jobs[-1])])
            await asyncio.sleep(0)

    asyncio.run(add())
    return jobs


def test_queries_are_queued_when_no_more_arrive_or_they_are_many() -> None:
    pipeline = Pipeline()
    run(pipeline, [3, 0, 0, 1, 2, 1, 0, 0])
    assert pipeline.calls == [3, 4]
    pipeline = Pipeline()
    run(pipeline, [MAX_GATHERED - 1, 1, 1, 0, 0])
    assert pipeline.calls == [MAX_GATHERED, 1]


@pytest.mark.parametrize("error", [ClosedError("closed"), RuntimeError("a bug")])
def test_a_refusal_reaches_every_future(error: Exception) -> None:
    jobs = run(Pipeline(error), [2])
    for job in jobs:
        with pytest.raises(type(error)):
            job.future.result(0)


def test_the_answers_of_a_batch_wake_the_loop_once() -> None:
    calls: list[object] = []

    async def fetch() -> None:
        loop, gathering = asyncio.get_running_loop(), Gathering()
        futures: list[Outcome[int]] = [Outcome() for _ in range(4)]
        over = [gathering.when_over(future) for future in futures]
        over[0].cancel()  # its client has left

        def resolve() -> None:
            for future in futures[:3]:
                future.set_result(1)

        call = loop.call_soon_threadsafe

        def counted(*args: Any) -> object:
            calls.append(args)
            return call(*args)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign,assignment]
        thread = threading.Thread(target=resolve)
        thread.start()
        thread.join()
        await asyncio.gather(*over[1:3])
        assert len(calls) == 1
        assert not over[3].done()
        futures[3].set_exception(ClosedError("closed"))
        await over[3]
        assert len(calls) == 2

    asyncio.run(fetch())


def test_options_are_understood_once_but_a_new_length_limit_counts() -> None:
    forms = EmbeddingForms()

    def tokenizes(dimensions: int | None = None, on_truncate: OnTruncate = "ignore") -> Any:
        call, finish = forms.call(embedder, ["abc"], dimensions=dimensions, on_truncate=on_truncate)
        assert call.lane is Lane.QUERY
        assert finish(np.ones((1, 6), np.float32)).shape == (1, dimensions or 6)
        return call.tokenize

    with fake_embedder() as embedder:
        first = tokenizes()
        assert tokenizes() is first
        assert tokenizes(on_truncate="error") is not first
        assert tokenizes(dimensions=2) is not first
        embedder.max_seq_length = 2
        assert len(tokenizes()(Job(1, 6, Lane.QUERY), 0, ["abc"])[0].token_ids) == 2
        for dimensions in range(1, MAX_FORMS + 9):
            forms.call(embedder, ["abc"], dimensions=dimensions)
        assert len(forms._forms) <= MAX_FORMS
