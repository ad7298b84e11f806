"""The end of a part of a pipeline that a test has started alone."""

from __future__ import annotations

from embedlib.batching.manager import BatchManager
from embedlib.batching.tokenizing.tokenizer_thread import TokenizerThread
from embedlib.threads.closing import Deadline, join
from tests.waiting import WAIT_SECONDS


def end(part: BatchManager | TokenizerThread) -> None:
    """Stop it and wait for its thread, as the pipeline does; raise what its end raised."""
    part.stop()
    assert not join([part.thread], Deadline(WAIT_SECONDS))
    if isinstance(part, BatchManager):
        part.raise_end_error()
