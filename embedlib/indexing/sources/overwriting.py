"""Checks before a file is written: that it is no input, which writing would destroy."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from embedlib.errors import SourceError
from embedlib.indexing.sources.file_bytes import STDIN


def check_not_input(output: str | os.PathLike[str], inputs: Iterable[str], option: str) -> None:
    """Refuse an output file that is also an input, even under another name.

    Args:
        output: a file name; it need not exist.
        inputs: files that will be read; "-" is standard input, which may come from a file too.
        option: the option that names the output, for the message.

    Raises:
        SourceError: writing would destroy an input.
    """
    # A terminal can be input and output; only a regular file would be destroyed.
    if not os.path.isfile(output):
        return
    written = os.stat(output)
    for path in inputs:
        read = _stat(path)
        if read is not None and os.path.samestat(read, written):
            raise SourceError(
                f"{option} {os.fspath(output)!r} is also an input, which writing would destroy; "
                "name another file"
            )


def is_same_file(first: str | os.PathLike[str], second: str) -> bool:
    """Return whether two names are of one file, which need not exist."""
    if os.path.isfile(first) and os.path.isfile(second):
        return os.path.samefile(first, second)
    return os.path.abspath(first) == os.path.abspath(second)


def _stat(path: str) -> os.stat_result | None:
    """Return the status of an input; None: there is no such file."""
    try:
        if path != STDIN:
            return os.stat(path)
        return None if sys.stdin is None else os.fstat(sys.stdin.fileno())  # None: it is closed
    except OSError:
        return None
