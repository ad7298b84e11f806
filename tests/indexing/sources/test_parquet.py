"""Parquet files as sources, and values that JSON does not have."""

from __future__ import annotations

import json
import re
import sys
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from operator import length_hint
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from embedlib.errors import SourceError
from embedlib.indexing import SourceOptions, open_source
from embedlib.indexing.rows import BadRow, Document
from embedlib.indexing.sources import arrow_rows
from embedlib.indexing.sources.json_values import BadValueError, DatabaseValue, json_value
from embedlib.packages.installing import install_line
from tests.indexing.sources.reading import read

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def test_parquet() -> None:
    rows = [
        {"id": 1, "text": "one", "day": date(2026, 1, 2), "tags": ["a", None], "n": {"x": 1.5}},
        {"id": 2, "text": "two", "day": None, "tags": [], "n": None},
        {"id": None, "text": "three"},
        {"id": 4, "text": None},
    ]
    pq.write_table(pa.Table.from_pylist(rows), "a.parquet")
    assert read("a.parquet") == [
        Document(
            id="1",
            text="one",
            metadata={"day": "2026-01-02", "tags": ["a", None], "n": {"x": 1.5}},
            place="row 1 of 'a.parquet'",
        ),
        Document(
            id="2",
            text="two",
            metadata={"day": None, "tags": [], "n": None},
            place="row 2 of 'a.parquet'",
        ),
        BadRow(place="row 3 of 'a.parquet'", reason="the field 'id' has no id"),
        BadRow(place="row 4 of 'a.parquet'", reason="the field 'text' has no text", id="4"),
    ]


def test_many_batches_and_files_keep_their_order() -> None:
    for name, first in (("a", 0), ("b", 3000)):
        table = pa.table({"key": range(first, first + 3000), "body": ["x"] * 3000})
        pq.write_table(table, f"{name}.parquet", row_group_size=700)
    source = open_source(["."], SourceOptions(input_format="parquet"), [].append)
    assert length_hint(source, -1) == 6000
    assert [row.id for row in source] == list(map(str, range(6000)))


def test_bytes_are_refused_unless_left_out() -> None:
    pq.write_table(pa.table({"id": ["a"], "text": ["t"], "raw": [b"\x00"]}), "a.parquet")
    assert read("a.parquet") == [
        BadRow(
            place="row 1 of 'a.parquet'",
            reason="the field 'raw' holds bytes, which JSON cannot represent",
            id="a",
        )
    ]
    [row] = read("a.parquet", metadata_fields=())
    assert isinstance(row, Document)


def test_fields_that_are_not_needed_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    # A date that Python does not have: reading it would be a bad row.
    days = pa.array([10**8], pa.date32())
    pq.write_table(pa.table({"id": ["a"], "text": ["t"], "n": [1], "day": days}), "a.parquet")
    assert read("a.parquet") == [
        BadRow(
            place="row 1 of 'a.parquet'",
            reason="the field 'day' cannot be read: date value out of range",
            id="a",
        )
    ]
    source = open_source(["a.parquet"], SourceOptions(metadata_fields=("n",)), [].append)
    monkeypatch.setattr("embedlib.indexing.sources.arrow_rows._value", None)  # not called any more
    [row] = source
    assert isinstance(row, Document)
    assert row.metadata == {"n": 1}


def test_a_row_that_cannot_be_read_does_not_end_the_file() -> None:
    # Not UTF-8, in a column that says it is.
    texts = pa.array([b"one", b"b\xe4d", b"three"] * 3).cast(pa.binary())
    texts = pa.StringArray.from_buffers(len(texts), *texts.buffers()[1:])
    pq.write_table(pa.table({"id": range(9), "text": texts}), "a.parquet")
    rows = read("a.parquet")
    assert [isinstance(row, BadRow) for row in rows] == [False, True, False] * 3
    assert rows[1].reason.startswith("the field 'text' cannot be read: 'utf-8' codec")
    assert rows[1].id == "1"
    assert rows[8].id == "8"


def test_nanoseconds_are_cut_to_microseconds() -> None:
    number = 1_700_000_000_123_456_789
    at, inner = "2023-11-14T22:13:20.123456", pa.timestamp("ns")
    columns = {
        "zone": (pa.timestamp("ns", "UTC"), number, f"{at}+00:00"),
        "span": (pa.duration("ns"), 1_500_000_999, "0:00:01.500000"),
        "time": (pa.time64("ns"), 1_999, "00:00:00.000001"),
        "list": (pa.list_(inner), [number], [at]),
        "large": (pa.large_list(inner), [number], [at]),
        "fixed": (pa.list_(inner, 1), [number], [at]),
        "struct": (pa.struct([("a", pa.list_(inner))]), {"a": [number]}, {"a": [at]}),
        "map": (pa.map_(pa.string(), inner), [("a", number)], [["a", at]]),
    }
    arrays = {name: pa.array([value, None], kind) for name, (kind, value, _) in columns.items()}
    # pyarrow 25, the last one for Python 3.10, cannot read a fixed list that is null.
    arrays["fixed"] = pa.array([[number], [number]], columns["fixed"][0])
    pq.write_table(pa.table({"id": [1, 2], "text": ["a", "b"], **arrays}), "a.parquet")
    assert [row.metadata for row in read("a.parquet") if isinstance(row, Document)] == [
        {name: written for name, (_, _, written) in columns.items()},
        {**dict.fromkeys(columns), "fixed": [at]},
    ]


class OldTime:
    """A time as older versions of pyarrow have it."""

    def as_py(self) -> None:
        raise KeyError("No time zone found with key Mars/Phobos")


class OldColumn(list[OldTime]):
    type = pa.timestamp("us", "Mars/Phobos")


def test_a_time_zone_that_is_unknown_is_named() -> None:
    times = pa.array([0], pa.timestamp("us", "Mars/Phobos"))
    pq.write_table(pa.table({"id": [1], "text": ["a"], "at": times}), "a.parquet")
    [row] = read("a.parquet")
    assert isinstance(row, BadRow)
    unknown = "the time zone 'Mars/Phobos' is not known; is tzdata installed?"
    assert row.reason == f"the field 'at' cannot be read: {unknown}"
    inside = pa.StructArray.from_arrays([times], ["at"])
    pq.write_table(pa.table({"id": [1], "text": ["a"], "of": inside}), "b.parquet")
    [row] = read("b.parquet")
    assert isinstance(row, BadRow)
    assert row.reason.startswith("the field 'of' cannot be read: ")
    assert "None" not in row.reason
    assert str(arrow_rows._value(OldColumn([OldTime()]), 0)) == unknown


def test_a_file_that_is_broken_in_the_middle_ends_with_a_bad_row() -> None:
    table = pa.table({"id": range(4000), "text": [str(n**5) for n in range(4000)]})
    pq.write_table(table, "a.parquet", row_group_size=1000, compression="zstd")
    data = bytearray(Path("a.parquet").read_bytes())
    start = pq.ParquetFile("a.parquet").metadata.row_group(2).column(1).data_page_offset
    data[start : start + 400] = bytes(400)
    Path("a.parquet").write_bytes(data)
    *good, bad = read("a.parquet")
    assert 1500 < len(good) <= 2000  # a batch may begin in one group of rows and end in the next
    assert [row.id for row in good] == list(map(str, range(len(good))))
    assert isinstance(bad, BadRow)
    assert bad.place == f"the rest of 'a.parquet', after row {len(good)} of 'a.parquet'"
    assert bad.reason.startswith("cannot be read as Parquet: ")
    assert bad.id is None


def test_a_file_that_is_none_is_refused() -> None:
    Path("a.parquet").write_bytes(b"no parquet at all")
    with pytest.raises(SourceError, match=r"cannot read 'a\.parquet': cannot be read as Parquet"):
        read("a.parquet")
    pq.write_table(pa.table({"id": ["a"], "text": ["t"]}), "b.parquet")
    gone = open_source(["b.parquet"], SourceOptions(), [].append)
    Path("b.parquet").unlink()
    assert length_hint(gone, -1) == -1
    with pytest.raises(
        SourceError, match=r"'b\.parquet': cannot be read as Parquet: .*No such file"
    ):
        list(gone)
    Path("data").mkdir()
    Path("a.parquet").rename("data/a.parquet")
    [row] = read("data", glob=("*.parquet",))
    assert isinstance(row, BadRow)
    source = open_source(["data"], SourceOptions(glob=("*.parquet",)), [].append)
    assert length_hint(source, -1) == -1


def test_two_columns_of_one_name_are_refused() -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(table, "a.parquet")
    with pytest.raises(SourceError, match="more than one column named 'text'"):
        read("a.parquet")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SourceError, match=re.escape(install_line("parquet"))):
        read("a.parquet")


@pytest.mark.parametrize("group_rows", [100, 8000])
def test_groups_of_rows_and_their_pages_are_read_one_after_the_other(group_rows: int) -> None:
    table = pa.table({"id": range(8000), "text": [f"{n} {'word ' * 400}" for n in range(8000)]})
    options = {"compression": "none", "use_dictionary": False, "data_page_size": 1 << 16}
    pq.write_table(table, "a.parquet", row_group_size=group_rows, **options)
    del table
    before = pa.total_allocated_bytes()
    source = open_source(["a.parquet"], SourceOptions(), [].append)
    peak = max(pa.total_allocated_bytes() for _ in source) - before
    assert peak < 8_000_000  # of 16 MB


# --- values ---------------------------------------------------------------------------------------

ADDRESSES: dict[Any, str] = {
    IPv4Address: "10.0.0.1",
    IPv6Address: "::1",
    IPv4Network: "10.0.0.0/8",
    IPv6Network: "fe80::/10",
}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (2**14_280 - 1, 2**14_280 - 1),
        ("é", "é"),
        (1.5, 1.5),
        (float("nan"), None),
        (float("-inf"), None),
        (Decimal("3.00"), 3),
        (Decimal(10**20), 10**20),
        (Decimal("0.1"), 0.1),
        (Decimal("-12.345"), -12.345),
        (Decimal("0.1234567890123456789"), "0.1234567890123456789"),
        (Decimal("1e999999"), "1E+999999"),
        (Decimal("NaN"), None),
        (Decimal("-Infinity"), None),
        (datetime(2026, 1, 2, 3, 4, tzinfo=timezone.utc), "2026-01-02T03:04:00+00:00"),
        (date(2026, 1, 2), "2026-01-02"),
        (time(3, 4, 5), "03:04:05"),
        (timedelta(days=1, seconds=2), "1 day, 0:00:02"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        *((kind(text), text) for kind, text in ADDRESSES.items()),
        (DatabaseValue("infinity"), "infinity"),
        ((1, [2, {"a": (None,)}]), [1, [2, {"a": [None]}]]),
        (np.array(["a", None], object), ["a", None]),
        ([np.array([1.5, np.nan])], [[1.5, None]]),
        (np.array([[1], [2]]), [[1], [2]]),
        (np.array(1), 1),
    ],
)
def test_values_become_json(value: object, expected: object) -> None:
    found = json_value(value)
    assert found == expected
    assert type(found) is type(expected)
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    "value",
    [
        *(b"a", bytearray(b"a"), {1, 2}, {1: 2}, 1j, object(), ["\0"], 2**14_280),
        *(np.zeros(1, "datetime64[ns]"), np.timedelta64(1, "ns")),
    ],
)
def test_values_that_json_has_not_are_refused(value: object) -> None:
    with pytest.raises(BadValueError):
        json_value(value)


def test_what_could_not_be_read_is_told_in_one_line() -> None:
    with pytest.raises(BadValueError, match=r"^cannot be read: one two$"):
        json_value(ValueError("one\n two"))
