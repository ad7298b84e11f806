"""A load in a process of its own, which kills itself after a number of texts."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import embedlib
from embedlib.engines import Batch
from embedlib.testing import FakeEngine, fake_embedder
from tests.acceptance.source_kills.forms import FORMS, make_texts


@dataclass(frozen=True, kw_only=True)
class LoadJob:
    """A load.

    Attributes:
        form: of the source.
        folder: where the source is, and the destination.
        url: the destination.
        num_documents: in the source.
        batch_rows: rows in flight, at most.
        is_changed: whether the documents are those of the second time.
        log: a file that gets a byte for each text that is embedded.
        dies_after: SIGKILL when so many texts were given to the engine; 0: it lives.
    """

    form: str
    folder: Path
    url: str
    num_documents: int
    batch_rows: int
    is_changed: bool = False
    log: Path
    dies_after: int = 0


class CountingEngine(FakeEngine):
    """Notes every text that it embeds, and may kill the process."""

    def __init__(self, log: int, dies_after: int) -> None:
        """Take the file, and after how many texts."""
        super().__init__(max_batch_tokens=512)
        self._log = log
        self._left = dies_after

    def submit(self, batch: Batch, on_done: Callable[[], None]) -> Any:
        """Embed a batch."""
        num_texts = len(batch.cu_seqlens) - 1
        os.write(self._log, b"." * num_texts)
        if 0 < self._left <= num_texts:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= num_texts
        self.batches.clear()
        return super().submit(batch, on_done)


def load(job: LoadJob) -> None:
    """Load the destination."""
    os.chdir(job.folder)
    form = FORMS[job.form]
    log = os.open(job.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    texts = make_texts(job.num_documents, is_changed=job.is_changed)
    with fake_embedder(CountingEngine(log, job.dies_after)) as embedder:
        embedlib.index(
            form.open(texts),
            job.url,
            embedder=embedder,
            chunk=False,
            batch_rows=job.batch_rows,
            delete_missing=form.sees_missing,
            tell=lambda line: None,
        )
    os.close(log)
