"""Errors of the engine, the client and the system as one line, with a remedy where one is known."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from embedlib.errors import SinkError, first_line

REMEDIES = {
    errno.EACCES: "reading needs the right to write there too",
    errno.EROFS: "its file system is read-only and reading writes there too; copy the folder to "
    "another one",
    errno.ENOSPC: "its disk is full; make room and run again",
    errno.EMFILE: "too many files are open; allow more with ulimit -n",
    errno.ENOMEM: "the memory is full; run again when there is more",
}
"""What to do by error number, where the system is the cause and the stored rows are intact: these
messages must not advise to drop them."""


@contextmanager
def one_line_errors(name: str, what: str) -> Iterator[None]:
    """Convert any exception to a one-line `SinkError`; the engine raises bare `Exception`."""
    try:
        yield
    except SinkError:
        raise
    except Exception as error:
        raise SinkError(f"{name} {what}: {first_line(error)}") from error
