"""Embedders that workers make: on a fake engine, which notes what it embeds in a file."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from embedlib import Document, Embedder
from embedlib.engines.base import Batch
from embedlib.testing import FakeEngine, fake_embedder


class LoggingEngine(FakeEngine):
    """Notes every text in a file that outlives the process, and dies of one that says so."""

    def __init__(self, log: Path, deadly: int | None) -> None:
        super().__init__(max_batch_tokens=512)
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._deadly = deadly

    def submit(self, batch: Batch, on_done: Callable[[], None]) -> Any:
        os.write(self._log, b"." * (len(batch.cu_seqlens) - 1))
        if self._deadly is not None and self._deadly in batch.token_ids:
            os.kill(os.getpid(), 9)
        self.batches.clear()
        return super().submit(batch, on_done)


def logging_embedder(log: Path, deadly: int | None = None) -> Callable[[], Embedder]:
    """Return a function that makes an embedder in a worker, and notes the worker's process."""

    def make() -> Embedder:
        with log.with_suffix(".pids").open("a") as file:
            print(os.getpid(), file=file)
        return fake_embedder(LoggingEngine(log, deadly))

    return make


def dying_once(make: Callable[[], Embedder], mark: Path) -> Callable[[], Embedder]:
    """Return a function that ends its process when it is called first; it leaves a mark."""

    def die_or_make() -> Embedder:
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), 9)
        return make()

    return die_or_make


def all_pids(log: Path) -> list[int]:
    """The processes that have made an embedder, each once for each time."""
    return [int(pid) for pid in log.with_suffix(".pids").read_text().split()]


def worker_pids(log: Path) -> list[int]:
    """The processes of workers, those that live if any does."""
    pids = all_pids(log)
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}")] or pids


def num_embedded(log: Path) -> int:
    """How many texts were embedded."""
    return log.stat().st_size if log.exists() else 0


def documents(num_documents: int, first: int = 0) -> Iterator[Document]:
    for number in range(first, first + num_documents):
        yield Document(id=f"d{number}", text=f"text {number}", metadata={"page": number % 7})


class PacedEngine(FakeEngine):
    """Computes so many texts a second, one batch after the other."""

    def __init__(self, texts_per_second: float) -> None:
        super().__init__(max_batch_tokens=512)
        self._rate = texts_per_second
        self._batches: queue.SimpleQueue[tuple[Batch, Callable[[], None], Any]] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._compute_all, daemon=True).start()

    def submit(self, batch: Batch, on_done: Callable[[], None]) -> Any:
        self.batches.clear()
        done: list[Any] = []
        pending = _Paced(done)
        self._batches.put((batch, on_done, done))
        return pending

    def _compute_all(self) -> None:
        while True:
            batch, on_done, done = self._batches.get()
            time.sleep((len(batch.cu_seqlens) - 1) / self._rate)
            done.append(super().submit(batch, lambda: None))
            on_done()


class _Paced:
    def __init__(self, done: list[Any]) -> None:
        self._done = done

    def result(self) -> Any:
        return self._done[0].result()


def paced_embedder(texts_per_second: float) -> Callable[[], Embedder]:
    """Return a function that makes an embedder of a known speed."""
    return lambda: fake_embedder(PacedEngine(texts_per_second))
