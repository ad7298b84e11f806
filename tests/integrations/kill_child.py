"""A load in a process of its own, to be killed: run by runpy with the arguments of `main` in `job`.

Every text that is embedded puts a byte into the log, so that work done twice can be counted.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import embedlib
from embedlib import Document
from embedlib.engines.base import Batch
from embedlib.testing import FakeEngine, fake_embedder


class LoggingEngine(FakeEngine):
    """Notes every text in a file that outlives the process, which it may end after some."""

    def __init__(self, log: int, last_text: int | None) -> None:
        super().__init__(max_batch_tokens=512)
        self._log = log
        self._last_text = last_text
        self._num_texts = 0

    def submit(self, batch: Batch, on_done: Callable[[], None]) -> Any:
        num_texts = len(batch.cu_seqlens) - 1
        os.write(self._log, b"." * num_texts)
        self._num_texts += num_texts
        if self._last_text is not None and self._num_texts >= self._last_text:
            os.kill(os.getpid(), signal.SIGKILL)
        self.batches.clear()
        return super().submit(batch, on_done)


class Weigher:
    """A sparse model: the characters of a text."""

    model_name = "weigher"
    fingerprint = "weigher:1"

    def get_embedding_dimension(self) -> int:
        return 128

    def encode_query(self, text: str, /, *, output_value: str) -> dict[int, float]:
        return {ord(character): float(text.count(character)) for character in text}

    def submit_batch(
        self, texts: Sequence[str], *, role: str, output_value: str
    ) -> Future[list[dict[int, float]]]:
        weights: Future[list[dict[int, float]]] = Future()
        weights.set_result([self.encode_query(text, output_value="sparse") for text in texts])
        return weights


def documents(num_documents: int) -> Iterator[Document]:
    for number in range(num_documents):
        yield Document(id=f"d{number}", text=f"text {number}", metadata={"page": number % 7})


def main(
    url: str,
    num_documents: int,
    batch_rows: int,
    log: str,
    is_sparse: bool,
    last_text: int | None = None,
) -> None:
    engine = LoggingEngine(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), last_text)
    with fake_embedder(engine) as embedder:
        embedlib.index(
            documents(num_documents),
            url,
            embedder=embedder,
            sparse=Weigher() if is_sparse else None,
            chunk=False,
            batch_rows=batch_rows,
        )


main(**globals()["job"])
