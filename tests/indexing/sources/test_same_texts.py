"""The same documents in every form that a source may have give the same texts."""

from __future__ import annotations

import csv
import gzip
import json
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from embedlib.indexing import Document, SourceOptions, open_source, open_sql_source
from embedlib.indexing.sources.in_memory import MemorySource
from tests.indexing.sources.pdf_files import pdf

TEXTS = {str(n): f"Text {n}: one (1) two, and a last word {'again ' * n}." for n in range(1, 9)}


def files(paths: Iterable[str]) -> Iterable[Any]:
    return open_source(list(paths), SourceOptions(input_format="auto"), [].append)


def folder() -> Iterable[Any]:
    for id_, text in TEXTS.items():
        Path(f"{id_}.txt").write_text(text)
    return files(["."])


def csv_file() -> Iterable[Any]:
    with open("docs.csv", "w", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *TEXTS.items()])
    return files(["docs.csv"])


def json_lines() -> Iterable[Any]:
    lines = [json.dumps({"id": id_, "text": text}) for id_, text in TEXTS.items()]
    Path("docs.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return files(["docs.jsonl.gz"])


def table() -> Any:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
    return pyarrow.table({"id": list(TEXTS), "text": list(TEXTS.values())})


def arrow() -> Iterable[Any]:
    return MemorySource(table(), SourceOptions(), [].append)


def parquet() -> Iterable[Any]:
    pytest.importorskip("pyarrow.parquet").write_table(table(), "docs.parquet")
    return files(["docs.parquet"])


def dicts() -> Iterable[Any]:
    rows = ({"id": id_, "text": text} for id_, text in TEXTS.items())
    return MemorySource(rows, SourceOptions(), [].append)


def sql() -> Iterable[Any]:
    with closing(sqlite3.connect("docs.db")) as database, database:
        database.execute("CREATE TABLE docs (id, text)")
        database.executemany("INSERT INTO docs VALUES (?, ?)", TEXTS.items())
    return open_sql_source("sqlite:docs.db", "SELECT * FROM docs", SourceOptions(), [].append)


def growing_sql() -> Iterable[Any]:
    sql()
    options = SourceOptions(since_field="number")
    query = "SELECT id, text, id + 0 AS number FROM docs"
    return open_sql_source("sqlite:docs.db", query, options, [].append)


def storage() -> Iterable[Any]:
    memory = pytest.importorskip("fsspec.implementations.memory", reason="needs the extra storage")
    files_ = memory.MemoryFileSystem()
    files_.pipe({f"/same/{id_}.txt": text.encode() for id_, text in TEXTS.items()})
    return files(["memory://same"])


def pages() -> Iterable[Any]:
    pytest.importorskip("pypdf", reason="needs the extra documents")
    escaped = [text.replace("(", r"\(").replace(")", r"\)") for text in TEXTS.values()]
    Path("docs.pdf").write_bytes(pdf(*escaped))
    return files(["docs.pdf"])


@pytest.mark.parametrize(
    "form",
    [folder, csv_file, json_lines, arrow, parquet, dicts, sql, growing_sql, storage, pages],
)
def test_every_form_gives_the_same_texts(
    form: Callable[[], Iterable[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = list(form())
    assert all(isinstance(row, Document) for row in rows), rows
    assert sorted(row.text for row in rows) == sorted(TEXTS.values())
    assert len({row.id for row in rows}) == len(TEXTS)
