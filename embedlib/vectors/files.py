"""Writes vectors to files, row by row. A file gets its final name only once it is complete."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import stat
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import SinkError
from embedlib.vectors.finite import finite

STDOUT = "-"
_ROW_GROUP_ROWS = 4096
_ROW_GROUP_CHARS = 1 << 26
"""Of texts and metadata. A column of a group holds 2 GiB at most, and is in memory as a whole."""


class VectorWriter(ABC):
    """Writes rows, each some fields and a vector, in the order given."""

    @abstractmethod
    def write(self, fields: dict[str, Any], vector: NDArray[Any]) -> None:
        """Append one row; all vectors of a file have one dtype."""

    def finish(self) -> None:  # noqa: B027 - most files need nothing
        """Complete the file; called once, after the last row."""


class _JsonlWriter(VectorWriter):
    """One JSON object per row: the input's fields and "embedding"."""

    def __init__(self, stream: IO[bytes], dim: int) -> None:
        self._stream = stream
        # Nine significant digits round-trip a float32. Formatting a whole row at once is ten times
        # faster than json, which formats number by number.
        self._template = ", ".join(["%.9g"] * dim)

    def write(self, fields: dict[str, Any], vector: NDArray[Any]) -> None:
        fields = {key: value for key, value in fields.items() if key != "embedding"}
        head = _as_json(fields)[:-1]
        comma = ", " if fields else ""
        numbers = self._template % tuple(vector.tolist())
        self._stream.write(f'{head}{comma}"embedding": [{numbers}]}}\n'.encode())


class _NpyWriter(VectorWriter):
    """An array [N, D] of the vectors' dtype; its header gets N at the end."""

    def __init__(self, stream: IO[bytes], dim: int) -> None:
        self._stream = stream
        self._dim = dim
        self._num_rows = 0
        self._dtype = np.dtype(np.float32)
        self._write_header()
        self._header_bytes = stream.tell()

    def write(self, fields: dict[str, Any], vector: NDArray[Any]) -> None:
        self._dtype = vector.dtype
        self._stream.write(vector.tobytes())
        self._num_rows += 1

    def finish(self) -> None:
        self._stream.seek(0)
        self._write_header()
        # numpy pads the header so that the first dimension can grow without moving the data, and
        # all dtype names used here have three characters.
        assert self._stream.tell() == self._header_bytes

    def _write_header(self) -> None:
        np.lib.format.write_array_header_1_0(
            self._stream,
            {
                "descr": self._dtype.str,
                "fortran_order": False,
                "shape": (self._num_rows, self._dim),
            },
        )


class _RowsWriter(VectorWriter):
    """One JSON object per row, without the vector: describes the rows of an npy file."""

    def __init__(self, stream: IO[bytes], dim: int) -> None:
        self._stream = stream

    def write(self, fields: dict[str, Any], vector: NDArray[np.float32]) -> None:
        self._stream.write(f"{_as_json(fields)}\n".encode())


class _ParquetWriter(VectorWriter):
    """Row groups of `_ROW_GROUP_ROWS`, fewer of long texts; metadata is stored as a JSON string."""

    def __init__(self, stream: IO[bytes], dim: int) -> None:
        import pyarrow
        import pyarrow.parquet

        class Writer(pyarrow.parquet.ParquetWriter):  # type: ignore[misc]
            def __del__(self) -> None:
                """Write no end: the file of a writer that has not finished is closed by now."""

        self._pyarrow = pyarrow
        columns = [(name, pyarrow.string()) for name in ("id", "source_id", "text", "metadata")]
        columns.insert(2, ("chunk", pyarrow.int64()))
        columns.append(("embedding", pyarrow.list_(pyarrow.float32(), dim)))
        self._writer = Writer(stream, pyarrow.schema(columns))
        self._fields: list[dict[str, Any]] = []
        self._vectors: list[NDArray[np.float32]] = []
        self._num_chars = 0

    def write(self, fields: dict[str, Any], vector: NDArray[np.float32]) -> None:
        metadata = json.dumps(fields["metadata"])
        self._fields.append({**fields, "metadata": metadata})
        self._vectors.append(vector)
        self._num_chars += len(fields["text"]) + len(metadata)
        if len(self._fields) == _ROW_GROUP_ROWS or self._num_chars >= _ROW_GROUP_CHARS:
            self._flush()

    def finish(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if not self._fields:
            return
        schema = self._writer.schema
        dim = schema.field("embedding").type.list_size
        numbers = self._pyarrow.array(np.concatenate(self._vectors))
        columns = [
            self._pyarrow.array([fields[name] for fields in self._fields], schema.field(name).type)
            for name in schema.names[:-1]
        ]
        columns.append(self._pyarrow.FixedSizeListArray.from_arrays(numbers, dim))
        self._writer.write_batch(self._pyarrow.record_batch(columns, schema=schema))
        self._fields, self._vectors, self._num_chars = [], [], 0


def _as_json(fields: dict[str, Any]) -> str:
    """Return an object of JSON, which has no NaN and no infinity: they become null."""
    try:
        return json.dumps(fields, allow_nan=False)
    except ValueError:
        return json.dumps(finite(fields))


_WRITERS: dict[str, Callable[[IO[bytes], int], VectorWriter]] = {
    "npy": _NpyWriter,
    "jsonl": _JsonlWriter,
    "rows": _RowsWriter,
    "parquet": _ParquetWriter,
}


@contextmanager
def open_writer(output: str, output_format: str, dim: int) -> Iterator[VectorWriter]:
    """Open a writer; the output is complete when the block ends without an exception.

    Args:
        output: a file name, or "-" for standard output. A symbolic link is followed; a pipe or a
            device is written to directly.
        output_format: "npy", "jsonl", "parquet" (for the rows of a bulk load), or "rows": jsonl
            without the vectors.
        dim: D of the vectors.

    Raises:
        SinkError: if the output cannot be written.
    """
    try:
        with _open_stream(output, needs_rewind=output_format in ("npy", "parquet")) as stream:
            writer = _WRITERS[output_format](stream, dim)
            yield writer
            writer.finish()
    except BrokenPipeError:
        raise  # the reader closed the pipe: click exits without a message
    except OSError as error:
        name = "standard output" if output == STDOUT else repr(output)
        reason = error.strerror or error
        if isinstance(error, FileNotFoundError):
            folder = os.path.dirname(error.filename or output)  # a link may lead elsewhere
            reason = f"there is no folder {folder!r}; make it"
        raise SinkError(f"cannot write {name}: {reason}") from error


@contextmanager
def _open_stream(output: str, *, needs_rewind: bool) -> Iterator[IO[bytes]]:
    existing = _stat(output)
    if output == STDOUT or _is_stdout(existing):
        if sys.stdout is None:
            raise SinkError("cannot write standard output: it is closed; name a file to write")
        with _open_directly(sys.stdout.buffer, needs_rewind=needs_rewind) as stream:
            yield stream
    elif existing is not None and not stat.S_ISREG(existing.st_mode):
        # A pipe or a device: renaming a file over it would take it away from its other users.
        with (
            open(output, "wb") as device,
            _open_directly(device, needs_rewind=needs_rewind) as stream,
        ):
            yield stream
    else:
        with _open_in_place(output, existing) as stream:
            yield stream


@contextmanager
def _open_in_place(output: str, existing: os.stat_result | None) -> Iterator[IO[bytes]]:
    """Write a temporary file beside the output and rename it at the end, when it is complete."""
    path = Path(os.path.realpath(output))  # a link stays a link; its target is replaced
    _remove_left_parts(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    file = _open_locked(part)
    try:
        with file:
            if existing is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(existing.st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())  # otherwise a crash of the machine could leave an empty file
            part.replace(path)  # before the lock is gone
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _open_locked(part: Path) -> IO[bytes]:
    """Open a new file with the lock that says that this process writes it."""
    while True:
        file = part.open("wb")
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # a file system without locks: nobody removes what is left
            return file
        if _is_at(file, part):
            return file
        file.close()  # another process removed it between the two


def _is_at(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _remove_left_parts(path: Path) -> None:
    """Remove what killed processes have written of a file; living ones hold a lock on theirs."""
    is_part = re.compile(rf"\.{re.escape(path.name)}\.\d+\.part").fullmatch
    with suppress(OSError):
        for left in [entry for entry in path.parent.iterdir() if is_part(entry.name)]:
            with suppress(OSError), left.open("rb+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(file, left):
                    left.unlink()


@contextmanager
def _open_directly(target: IO[bytes], *, needs_rewind: bool) -> Iterator[IO[bytes]]:
    """Write to a stream that cannot be renamed; spool first if the format has to rewind it."""
    if needs_rewind:
        with _open_spooled(target) as spool:
            yield spool
    else:
        yield target
    target.flush()


@contextmanager
def _open_spooled(target: IO[bytes]) -> Iterator[IO[bytes]]:
    """Write to a temporary file, which is copied to a stream when it is complete.

    Raises:
        SinkError: the temporary file cannot be written.
    """
    with ExitStack() as stack:
        try:
            spool = tempfile.TemporaryFile()  # noqa: SIM115 - the stack closes it
            stack.callback(_close, spool)
            yield spool
            spool.seek(0)  # writes what is left
        except BrokenPipeError:
            raise
        except OSError as error:
            raise SinkError(
                f"cannot keep the vectors in a temporary file: {error.strerror or error}; make "
                "room, name another folder in TMPDIR, or write to a file"
            ) from error
        shutil.copyfileobj(spool, target)


def _close(spool: IO[bytes]) -> None:
    with suppress(OSError):  # of what is left in its buffer, after an error or for nobody
        spool.close()


def _stat(output: str) -> os.stat_result | None:
    try:
        return os.stat(output)
    except FileNotFoundError:
        return None


def _is_stdout(existing: os.stat_result | None) -> bool:
    """Return whether a path, such as /dev/stdout, is the file that standard output goes to.

    The shell may be appending to that file (>>), so it must not be replaced by a new one.
    """
    try:
        return existing is not None and os.path.samestat(existing, os.fstat(1))
    except OSError:  # standard output is closed
        return False
