"""Opens files: of a disk, of object storage, compressed ones, and standard input."""

from __future__ import annotations

import gzip
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from typing import BinaryIO, Final, cast

from embedlib.indexing.sources.storage import is_storage, open_object

STDIN: Final = "-"


class BrokenFileError(Exception):
    """A file cannot be read, or not to its end. The message says why; callers add which."""


def is_denied(path: str) -> bool:
    """Whether a path leads through a folder that may not be searched: a file may be there."""
    try:
        os.stat(path)
    except PermissionError:
        return True
    except (OSError, ValueError):  # ValueError: no file can have that name
        return False
    return False


def check_readable(path: str) -> None:
    """Open a file and close it.

    Raises:
        BrokenFileError: it cannot be opened.
    """
    with open_bytes(path):
        pass


def read_bytes(path: str, max_bytes: int) -> bytes:
    """Return the content of a file, decompressed.

    Raises:
        BrokenFileError: it cannot be read, or has more than `max_bytes`.
    """
    with open_bytes(path) as stream:
        data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise BrokenFileError(f"has more than {max_bytes >> 20} MiB; divide it")
    return data


@contextmanager
def open_bytes(path: str) -> Iterator[BinaryIO]:
    """Open a file of a disk or of object storage, or standard input, decompressed.

    Raises:
        BrokenFileError: it is a device, standard input is closed, or it cannot be opened, or read
            in the block.
    """
    try:
        with _open(path) as stream:
            yield stream
    except OSError as error:
        raise BrokenFileError(error.strerror or str(error)) from error
    except (EOFError, zlib.error) as error:  # of gzip
        raise BrokenFileError(str(error)) from error


@contextmanager
def _open(path: str) -> Iterator[BinaryIO]:
    # Bytes, not text: the encoding is UTF-8 in every locale, and a bad line can be reported.
    if path == STDIN:
        if sys.stdin is None:
            raise BrokenFileError("it is closed; name a file, or pipe texts in")
        yield sys.stdin.buffer  # must stay open
    elif path.lower().endswith(".gz"):
        with _open_packed(path) as packed, gzip.GzipFile(fileobj=packed) as stream:
            if not packed.peek(1):  # a copy that has just begun, which to gzip is one of no bytes
                raise BrokenFileError("is empty; copy it again")
            yield cast(BinaryIO, stream)
    else:
        with _open_packed(path) as file:
            yield file


@contextmanager
def _open_packed(path: str) -> Iterator[BufferedReader]:
    if is_storage(path):
        with open_object(path) as stream:
            yield stream
        return
    with open(path, "rb") as file:
        if _is_device(file):
            raise BrokenFileError(
                "it is a device, which may have no end; name a file, or pipe its bytes to -"
            )
        before = os.fstat(file.fileno()).st_size  # 0 of a pipe, which has no position
        yield file
        now = os.fstat(file.fileno()).st_size
        if now < before:
            # Its end is none: rows behind it would be taken for removed ones.
            raise BrokenFileError("was cut while it was read; load it again when it is complete")


def _is_device(file: BufferedReader) -> bool:
    """Whether a file is a device other than a terminal and /dev/null."""
    found = os.fstat(file.fileno())
    if not stat.S_ISCHR(found.st_mode):
        return stat.S_ISBLK(found.st_mode)
    return not file.isatty() and found.st_rdev != os.stat(os.devnull).st_rdev
