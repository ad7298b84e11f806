"""Gives memory back: pages of mapped weights that were packed, and what the library has freed."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from embedlib.closing import WorkerThread
from embedlib.models.weights.mapped import let_go

LOOK_SECONDS: Final = 0.02
"""Between two times that pages are let go; from memory, some 60 MiB are read meanwhile."""


@contextmanager
def letting_go(files: Sequence[Any]) -> Iterator[None]:
    """Let the pages of mapped files go again and again while the block runs, and at its end.

    Each page is read once or twice, from front to back, and is then only in the way: the packed
    copy is what is computed with.
    """
    if not files:
        yield
        return
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(LOOK_SECONDS):
            let_go(files)

    thread = WorkerThread(look, "embedlib-openvino-pages")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        let_go(files)


def return_freed() -> None:
    """Return freed memory to the system; where the C library is not glibc it does so itself."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
