"""A load in a process of its own, to be killed: run by runpy with the arguments of `main` in `job`.

Every text that is embedded puts a byte into the log, so that work done twice can be counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import embedlib
from embedlib import Document
from embedlib.engines.base import Batch
from embedlib.testing import FakeEngine, fake_embedder


class LoggingEngine(FakeEngine):
    """Notes every text in a file that outlives the process."""

    def __init__(self, log: int) -> None:
        super().__init__(max_batch_tokens=512)
        self._log = log

    def submit(self, batch: Batch, on_done: Callable[[], None]) -> Any:
        os.write(self._log, b"." * (len(batch.cu_seqlens) - 1))
        self.batches.clear()
        return super().submit(batch, on_done)


def documents(num_documents: int) -> Iterator[Document]:
    for number in range(num_documents):
        yield Document(id=f"d{number}", text=f"text {number}", metadata={"page": number % 7})


def main(url: str, num_documents: int, batch_rows: int, log: str) -> None:
    engine = LoggingEngine(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT))
    with fake_embedder(engine) as embedder:
        embedlib.index(
            documents(num_documents),
            url,
            embedder=embedder,
            chunk=False,
            batch_rows=batch_rows,
        )


main(**globals()["job"])
