"""Writes a file atomically: a reader finds the old content or the new one, whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

PART_SUFFIX: Final = ".embedlib-part"


def part_of(path: Path) -> Path:
    """Return what becomes `path` when it is complete, for its only writer."""
    return path.with_name(f".{path.name}{PART_SUFFIX}")


def not_written(what: object, error: OSError) -> str:
    """Return what is said of a file or folder that cannot be written, without a remedy."""
    where = f" ({error.filename})" if error.filename else ""
    return f"cannot write {what}: {error.strerror or error}{where}"


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield the name of a file that replaces `path` when the block ends without an error.

    Several writers do not disturb one another; the last one to end wins.

    Raises:
        OSError: it cannot be written.
    """
    part = path.with_name(f".{path.name}.{uuid4().hex}{PART_SUFFIX}")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
