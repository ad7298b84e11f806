"""Blocks of a Ray dataset as rows; Ray itself is tested by .ci/ray."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import embedlib
from embedlib.errors import ConfigError, SinkError, SourceError
from embedlib.indexing import BadRow, Document, Row, Target, UnstorableRowsError, Vectors
from embedlib.indexing.seen import Seen
from embedlib.testing import FakeSink, FakeStore, fake_embedder, fake_vector
from embedlib_ray import blocks
from embedlib_ray.blocks import (
    BlockWriter,
    Columns,
    Written,
    key_of,
    num_repeated,
    rows_of,
    vectors_of,
)

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

COLUMNS = Columns(id="id", text="text", vector="embedding", metadata=None)
TARGET = Target(dim=6, similarity="cosine", fingerprint="f", model="m")
MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def make_table(num_rows: int, **columns: Any) -> Any:
    texts = [f"text {number}" for number in range(num_rows)]
    return pa.table(
        {
            "id": [f"d{number}" for number in range(num_rows)],
            "text": texts,
            "embedding": [fake_vector(text.encode()).tolist() for text in texts],
            **columns,
        }
    )


def make_rows(documents: Iterable[Document | BadRow], fingerprint: str = "f") -> list[Row]:
    with closing(Seen()) as seen:
        return rows_of(documents, fingerprint, seen)


def test_values_are_those_of_a_parquet_file(tmp_path: Path) -> None:
    table = make_table(
        3,
        big=pa.array([2**60 + 1, None, 5], pa.int64()),
        flag=pa.array([True, None, False]),
        nanoseconds=pa.array([MOMENT, None, MOMENT], pa.timestamp("ns")),
        zone=pa.array([MOMENT] * 3, pa.timestamp("ms", tz="UTC")),
        struct=pa.array([{"k": 1}, {"k": None}, None]),
        words=pa.array([["a"], [], None]),
        category=pa.array(["x", None, "x"]).dictionary_encode(),
    )
    url = f"jsonl:{tmp_path}/out.jsonl"
    with fake_embedder() as embedder:
        rows = make_rows(COLUMNS.documents(table, 0), embedder.fingerprint)
        assert rows[0].metadata == {
            "source": "d0",
            "big": 2**60 + 1,
            "flag": True,
            "nanoseconds": "2026-01-02T03:04:05",
            "zone": "2026-01-02T03:04:05+00:00",
            "struct": {"k": 1},
            "words": ["a"],
            "category": "x",
        }
        assert rows[1].metadata["big"] is None
        writer = BlockWriter(url)
        writer.begin(
            Target(
                dim=6,
                similarity="cosine",
                fingerprint=embedder.fingerprint,
                model=embedder.model_name,
            )
        )
        assert writer.write(rows, np.array(table["embedding"].to_pylist(), np.float32)) == Written(
            num_changed=3
        )
        writer.finish()
        writer.end()
        pq.write_table(table.drop_columns("embedding"), tmp_path / "rows.parquet")
        report = embedlib.index(str(tmp_path / "rows.parquet"), url, embedder=embedder, chunk=False)
    assert (report.num_unchanged, report.num_embedded, report.num_metadata) == (3, 0, 0)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (pa.array([1, None, 2**53 + 1]), r"row 12 of a block \(id None\): the field 'id' has no"),
        (pa.array(["a", "b", "a"]), r"row 13 of a block \(id 'a'\): the id 'a' was used before"),
    ],
)
def test_a_wrong_id_is_refused_with_its_row(ids: Any, message: str) -> None:
    table = make_table(3).set_column(0, "id", ids)
    with pytest.raises(SourceError, match=message):
        make_rows(COLUMNS.documents(table, 10))
    assert "embedlib-reader" not in [thread.name for thread in threading.enumerate()]


def test_an_id_of_an_earlier_part_is_refused() -> None:
    with closing(Seen()) as seen:
        rows_of([Document(id="a", text="one")], "f", seen)
        with pytest.raises(SourceError, match="the id 'a' was used before"):
            rows_of([Document(id="a", text="two")], "f", seen)


@pytest.mark.parametrize(
    "value",
    [None, [0.5] * 5, "abc", 0.5, [0.5] * 5 + [float("nan")], [[1]], [10**400] * 6],
    ids=lambda value: str(value)[:9],
)
def test_a_row_without_a_vector_of_the_model_is_refused_with_its_id(value: Any) -> None:
    rows = make_rows(COLUMNS.documents(make_table(3), 10))
    good = [0.5] * 6
    assert vectors_of([good, good, good], rows, 10, 6).tolist() == [good] * 3
    with pytest.raises(SinkError, match=r"row 12 of a block \(id 'd1'\): its vector is .*makes 6"):
        vectors_of([good, value, good], rows, 10, 6)


def test_large_integers_are_ids() -> None:
    table = make_table(2).set_column(0, "id", pa.array([2**53 + 1, 2]))
    assert [row.source_id for row in make_rows(COLUMNS.documents(table, 0))] == [
        "9007199254740993",
        "2",
    ]


def test_one_name_of_metadata_is_no_tuple() -> None:
    with pytest.raises(ConfigError, match=r"metadata = 'page'; .* such as \('page',\)$"):
        Columns(id="id", text="text", vector="embedding", metadata="page")  # type: ignore[arg-type]


def test_only_the_named_columns_are_metadata() -> None:
    table = make_table(1, page=[1], lang=["en"])
    columns = Columns(id="id", text="text", vector="embedding", metadata=("lang", "embedding"))
    [row] = make_rows(columns.documents(table, 0))
    assert list(row.metadata) == ["source", "lang", "embedding"]
    columns.check(table.column_names)
    used = pa.table({"page": [1], "id": ["d0"], "other": [7], "text": ["text 0"]})
    COLUMNS.check(table.column_names)
    read = list[list[str]]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "batch_rows", lambda part: read.append(part.column_names) or ())
        chosen = Columns(id="id", text="text", vector="embedding", metadata=("page",))
        assert list(chosen.documents(used, 0)) == []
    assert read == [["id", "text", "page"]]  # to convert another one would take time
    for name in ("id", "page"):
        wanted = Columns(id="id", text="text", vector="embedding", metadata=("page",))
        with pytest.raises(SinkError, match=f"has no column '{name}'; it has"):
            wanted.check(set(table.column_names) - {name})


class PickySink(FakeSink):
    """Stores no row of a page beyond 64 bits."""

    def write(self, rows: Sequence[Row], vectors: Vectors) -> None:
        good = [number for number, row in enumerate(rows) if not is_big(row)]
        super().write([rows[number] for number in good], np.asarray(vectors)[good])
        refuse([row for row in rows if is_big(row)])

    def write_metadata(self, rows: Sequence[Row]) -> None:
        super().write_metadata([row for row in rows if not is_big(row)])
        refuse([row for row in rows if is_big(row)])


def is_big(row: Row) -> bool:
    return bool(row.metadata["page"] >= 2**63)


def refuse(rows: list[Row]) -> None:
    if rows:
        raise UnstorableRowsError(
            "the collection",
            [BadRow(place=row.source_id, reason="is too big", id=row.source_id) for row in rows],
        )


def test_rows_that_cannot_be_stored_are_counted_and_the_others_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = FakeStore()
    monkeypatch.setattr(blocks, "open_sink", lambda _: PickySink(store))
    writer = BlockWriter("fake:")
    writer.begin(TARGET)

    def write(pages: list[int]) -> Written:
        table = make_table(len(pages), page=pa.array(pages, pa.uint64()))
        rows = make_rows(COLUMNS.documents(table, 0))
        return writer.write(rows, np.array(table["embedding"].to_pylist(), np.float32))

    total = Written()
    first = write([1, 2**63 + 9, 3])
    assert first == Written(
        num_changed=2,
        num_bad_rows=1,
        bad_rows=[BadRow(place="d1", reason="is too big", id="d1")],
    )
    again = write([2**63, 2, 2**63 + 1])  # two of metadata alone
    assert (again.num_changed, again.num_bad_rows) == (1, 2)
    for _ in range(5):
        total.add(again)
    assert (total.num_changed, total.num_bad_rows, len(total.bad_rows)) == (5, 10, 10)
    total.add(first)
    assert (total.num_bad_rows, len(total.bad_rows)) == (11, 10)
    calls = len(store.calls)
    assert write([4, 2, 3]).num_changed == 1
    assert write([4, 2, 3]) == Written()
    writer.finish()
    assert [name for name, _ in store.calls[calls:]] == ["write_metadata", "finish"]
    writer.end()
    assert not store.is_locked


def test_a_task_counts_no_rows_to_see_that_its_own_are_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = Mock(scan=Mock(return_value=iter(())))
    monkeypatch.setattr(blocks, "open_sink", lambda _: sink)
    BlockWriter("fake:").settle()
    assert [call[0] for call in sink.method_calls] == ["scan"]


def test_a_relative_path_is_one_below_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path)
    writer = BlockWriter("jsonl:out.jsonl", "inside")
    writer.begin(TARGET)
    writer.finish()
    writer.settle()
    writer.end()
    assert (tmp_path / "inside" / "out.jsonl").exists()


def test_ids_that_tasks_have_in_common_are_counted() -> None:
    rows = make_rows(COLUMNS.documents(make_table(100), 0))
    keys = np.array([key_of(row) for row in rows], np.uint64)
    assert num_repeated([]) == 0
    assert num_repeated([keys[:50], keys[50:]]) == 0
    assert num_repeated([keys, keys[:3], keys[:1]]) == 4
