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
    errno.EIO: "its disk or network folder fails; see what the system says (dmesg), and run again",
    errno.EMFILE: "too many files are open; allow more with ulimit -n",
    errno.ENOMEM: "the memory is full; run again when there is more",
    errno.EAGAIN: "no more threads can be started; raise the limit (ulimit -u, or the pids limit "
    "of the container), or run fewer processes",
}
"""What to do by error number, where the system is the cause and the stored rows are intact: these
messages must not advise to drop them."""


def open_already(name: str) -> SinkError:
    """Return the error of a folder that somebody has open, which can be open once."""
    return SinkError(
        f"{name} is open already, in this process or another, and can be open only once; share one "
        "embedlib.Search between threads, wait for the other process, or use a server (qdrant://)"
    )


def is_of_engine(error: BaseException) -> bool:
    """Return whether it is an error, or the exception for a panic of the engine.

    That derives from BaseException, and the module that its class names cannot be imported.
    """
    return isinstance(error, Exception) or type(error).__module__ == "pyo3_runtime"


def remedy_of(error: BaseException) -> str | None:
    """Return what to do where the system is the cause; None: it is not, or is not known."""
    said = str(error)
    for code, remedy in REMEDIES.items():
        # Rust's words for errno, those of an error and those of a panic.
        if f"(os error {code})" in said or f"Os {{ code: {code}," in said:
            return remedy
    return None


@contextmanager
def one_line_errors(name: str, what: str) -> Iterator[None]:
    """Convert any exception to a one-line `SinkError`; the engine raises bare `Exception`."""
    try:
        yield
    except SinkError:
        raise
    except BaseException as error:
        if not is_of_engine(error):
            raise
        remedy = remedy_of(error)
        raise SinkError(
            f"{name} {what}: {first_line(error)}{f'; {remedy}' if remedy else ''}"
        ) from error
