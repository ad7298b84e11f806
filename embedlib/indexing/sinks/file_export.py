"""The files that a file sink writes from its database, for other programs to read."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import SinkError
from embedlib.vectors.files import open_writer

ROWS_SUFFIX = ".rows.jsonl"
"""Appended to the name of an npy file: a line of JSON for each of its vectors."""

_FIRST_BYTES = {b"\x93NUMPY": "npy", b"PAR1": "parquet", b"{": "jsonl"}
"""How the files of each format begin. Source: numpy.lib.format; Apache Parquet, file format."""


def files_of(path: Path, format_name: str) -> dict[str, str]:
    """Return the files of a format, and what each is written as."""
    files = {str(path): format_name}
    if format_name == "npy":
        files[f"{path}{ROWS_SUFFIX}"] = "rows"
    return files


def check_format(path: Path, format_name: str) -> None:
    """Refuse to replace a file by one of another format.

    Raises:
        SinkError: it has another.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        first = file.read(max(map(len, _FIRST_BYTES)))
    found = [kind for start, kind in _FIRST_BYTES.items() if first.startswith(start)]
    if found and found != [format_name]:
        raise SinkError(
            f"{path} was written as {found[0]}, this is {format_name}:{path}; write "
            f"{found[0]}:{path}, or choose another name"
        )


def export(database: sqlite3.Connection, files: Mapping[str, str], dim: int) -> None:
    """Write all rows; a file gets its name when it is complete."""
    with ExitStack() as stack:
        writers = [
            stack.enter_context(open_writer(name, kind, dim)) for name, kind in files.items()
        ]
        for fields, vector in _stored_rows(database):
            for writer in writers:
                writer.write(fields, vector)


def stamp(files: Mapping[str, str], format_name: str) -> str:
    """Return a description of the exported files that an edit or another format changes."""
    found = [os.stat(file) for file in files if os.path.exists(file)]
    return json.dumps([format_name, *([file.st_size, file.st_mtime_ns] for file in found)])


def _stored_rows(
    database: sqlite3.Connection,
) -> Iterator[tuple[dict[str, Any], NDArray[np.float32]]]:
    for id_, source_id, chunk, text, metadata, blob in database.execute(
        "SELECT id, source_id, chunk, text, metadata, vector FROM row ORDER BY number"
    ):
        fields = {
            "id": str(UUID(bytes=id_)),
            "source_id": source_id,
            "chunk": chunk,
            "text": text,
            "metadata": json.loads(metadata),
        }
        yield fields, np.frombuffer(blob, "<f4")
