"""Rows of files that a test has written."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from embedlib.errors import SourceError
from embedlib.indexing import SourceOptions, open_source
from embedlib.indexing.rows import BadRow, Document


class Told(list[str]):
    """What the user was told."""


def write(path: str, content: str | bytes) -> str:
    """Write a file; a name with .gz gets compressed content."""
    data = content.encode() if isinstance(content, str) else content
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(gzip.compress(data) if path.lower().endswith(".gz") else data)
    return path


def read(*inputs: str, told: list[str] | None = None, **options: Any) -> list[Document | BadRow]:
    tell = [].append if told is None else told.append
    return list(open_source(inputs, SourceOptions(**options), tell))


def documents(*inputs: str, **options: Any) -> list[Document]:
    rows = read(*inputs, **options)
    assert [row for row in rows if isinstance(row, BadRow)] == []
    return [row for row in rows if isinstance(row, Document)]


def summary(rows: list[Document | BadRow]) -> list[tuple[str | None, str]]:
    """Id and text, or id and reason."""
    return [(row.id, row.text if isinstance(row, Document) else row.reason) for row in rows]


def refusal(*inputs: str, **options: Any) -> str:
    with pytest.raises(SourceError) as caught:
        read(*inputs, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def not_utf8(byte: int) -> str:
    return (
        f"is not UTF-8 (byte {byte} of the line is 0xe4); convert the input, for example with iconv"
    )
