"""A load in a process of its own, to be killed: kill_child.py URL NUM_DOCUMENTS BATCH_ROWS LOG.

Every text that is embedded puts a byte into LOG, so that work done twice can be counted.
"""

from __future__ import annotations

import os
import sys
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


def main() -> None:
    url, num_documents, batch_rows, log = sys.argv[1:]
    engine = LoggingEngine(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT))
    with fake_embedder(engine) as embedder:
        embedlib.index(
            documents(int(num_documents)),
            url,
            embedder=embedder,
            chunk=False,
            batch_rows=int(batch_rows),
        )


if __name__ == "__main__":
    main()
