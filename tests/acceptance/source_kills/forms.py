"""The same documents in every form that a source may have."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from embedlib import Document, SourceOptions
from embedlib.indexing import open_sql_source
from tests.indexing.sources.pdf_files import pdf

Texts = dict[str, str]
"""By id."""
BUCKET: Final = "source-kills"
_AFTER_ALL: Final = 1_000_000
"""The column that grows of a row that was changed or came later."""


def make_texts(num_documents: int, *, is_changed: bool = False) -> Texts:
    """Return texts by id; with `is_changed` one is another, one is gone and one is new."""
    texts = {
        f"{n:05d}": f"Text {n}: one (1) two, and a last word {'again ' * (n % 9)}end."
        for n in range(1, num_documents + 1)
    }
    if is_changed:
        texts["00005"] = "Text 5 was changed."
        del texts[f"{num_documents:05d}"]
        texts["99999"] = "This text is new."
    return texts


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form of source.

    Attributes:
        open: returns what `embedlib.index` reads, in the process of the load; the current folder is
            that of the trial.
        write: puts the documents where `open` finds them.
        packages: what it needs that may not be installed.
        sees_missing: whether a load finds out which documents are gone.
    """

    open: Callable[[Texts], Any]
    write: Callable[[Texts], None] = lambda texts: None
    packages: tuple[str, ...] = ()
    sees_missing: bool = True


def _write_folder(texts: Texts) -> None:
    folder = Path("folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)


def _write_csv(texts: Texts) -> None:
    with open("docs.csv", "w", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *texts.items()])


def _lines(texts: Texts) -> bytes:
    rows = [json.dumps({"id": name, "text": text}) + "\n" for name, text in texts.items()]
    return "".join(rows).encode()


def _write_json_lines(texts: Texts) -> None:
    Path("docs.jsonl").write_bytes(_lines(texts))


def _write_gzip(texts: Texts) -> None:
    Path("docs.jsonl.gz").write_bytes(gzip.compress(_lines(texts)))


def _write_pdf(texts: Texts) -> None:
    escaped = [text.replace("(", r"\(").replace(")", r"\)") for text in texts.values()]
    Path("docs.pdf").write_bytes(pdf(*escaped))


def _write_parquet(texts: Texts) -> None:
    import pyarrow.parquet

    pyarrow.parquet.write_table(_arrow(texts), "docs.parquet", row_group_size=300)


def _write_sql(texts: Texts) -> None:
    Path("docs.db").unlink(missing_ok=True)
    rows = [
        (name, text, int(name) if text.startswith(f"Text {int(name)}: ") else _AFTER_ALL)
        for name, text in texts.items()
    ]
    with closing(sqlite3.connect("docs.db")) as database, database:
        database.execute("CREATE TABLE docs (id, text, number)")
        database.executemany("INSERT INTO docs VALUES (?, ?, ?)", rows)


def _sql(options: SourceOptions, columns: str) -> Any:
    return open_sql_source("sqlite:docs.db", f"SELECT {columns} FROM docs", options, [].append)


def _arrow(texts: Texts) -> Any:
    import pyarrow

    return pyarrow.table({"id": list(texts), "text": list(texts.values())})


def _pandas(texts: Texts) -> Any:
    import pandas

    return pandas.DataFrame({"id": list(texts), "text": list(texts.values())})


def _polars(texts: Texts) -> Any:
    import polars

    return polars.DataFrame({"id": list(texts), "text": list(texts.values())})


def _memory(texts: Texts) -> str:
    from fsspec.implementations.memory import MemoryFileSystem

    MemoryFileSystem().pipe({f"/docs/{name}.txt": text.encode() for name, text in texts.items()})
    return "memory://docs"


def _write_s3(texts: Texts) -> None:
    """Put the documents into the bucket of the server that AWS_ENDPOINT_URL names."""
    import boto3

    bucket = boto3.resource("s3").Bucket(BUCKET)
    if bucket.creation_date is None:
        bucket.create()
    stored = {each.key for each in bucket.objects.all()}
    keys = {f"docs/{name}.txt": text.encode() for name, text in texts.items()}
    for key in stored - keys.keys():
        bucket.Object(key).delete()
    for key, data in keys.items():
        bucket.put_object(Key=key, Body=data)


FORMS: Final = {
    "folder": Form(open=lambda texts: "folder", write=_write_folder),
    "csv": Form(open=lambda texts: "docs.csv", write=_write_csv),
    "jsonl": Form(open=lambda texts: "docs.jsonl", write=_write_json_lines),
    "jsonl.gz": Form(open=lambda texts: "docs.jsonl.gz", write=_write_gzip),
    "parquet": Form(open=lambda texts: "docs.parquet", write=_write_parquet, packages=("pyarrow",)),
    "pdf": Form(open=lambda texts: "docs.pdf", write=_write_pdf, packages=("pypdf",)),
    "sql": Form(open=lambda texts: _sql(SourceOptions(), "id, text"), write=_write_sql),
    "growing-sql": Form(
        open=lambda texts: _sql(
            SourceOptions(since_field="number", since_overlap=0), "id, text, number"
        ),
        write=_write_sql,
        sees_missing=False,
    ),
    "pandas": Form(open=_pandas, packages=("pandas",)),
    "polars": Form(open=_polars, packages=("polars",)),
    "arrow": Form(open=_arrow, packages=("pyarrow",)),
    "dicts": Form(open=lambda texts: ({"id": name, "text": text} for name, text in texts.items())),
    "documents": Form(
        open=lambda texts: (Document(id=name, text=text) for name, text in texts.items())
    ),
    "memory": Form(open=_memory, packages=("fsspec",)),
    "s3": Form(
        open=lambda texts: f"s3://{BUCKET}/docs",
        write=_write_s3,
        packages=("s3fs", "boto3", "moto"),
    ),
}
"""By name."""
