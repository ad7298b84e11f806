"""Values of a column as positions, and the queries that begin at them."""

from __future__ import annotations

import math
import sqlite3
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from embedlib.errors import SourceError
from embedlib.indexing.sources.json_values import DatabaseValue
from embedlib.indexing.sources.sql_positions import Highest, changed_since, lower_bound

UTC = timezone.utc


def highest(overlap: float = 0, told: list[str] | None = None) -> Highest:
    return Highest("changed", overlap, "db", [].append if told is None else told.append)


@pytest.mark.parametrize(
    ("value", "overlap", "bound"),
    [
        (10, 0, 10),
        (10, 2.5, 7),
        (1.5, 1, 0.5),
        (Decimal("1.50"), 0.1, Decimal("1.40")),
        (date(2026, 3, 1), 3600, date(2026, 2, 28)),
        (datetime(2026, 3, 1, 0, 30, 5), 3600, datetime(2026, 2, 28, 23, 30, 5)),
        (datetime(1, 1, 1), 3600, datetime(1, 1, 1)),
        (datetime(2026, 3, 1, tzinfo=UTC), 1e12, datetime(1, 1, 1)),
        (date(2026, 3, 1), 1e12, date(1, 1, 1)),
        ("2026-03-01", 1e12, ""),
        ("2026-03-01", 1, "2026-02-28"),
        ("2026-03-01 00:30:05.999", 0.5, "2026-03-01 00:30"),
        ("2026-03-01 00:30:05.999", 0, "2026-03-01 00:30:05"),
        ("2026-03-01T00:30:05Z", 0, "2026-03-01T00:30:05"),
        ("2026-03-01T00:30Z", 3600, "2026-02-28T23:30"),
        ("2026-03-01T00:30Z", 0, "2026-03-01T00:30"),
        ("2026-03-01", 0, "2026-03-01"),
        (Decimal(10**29 + 99), 1, Decimal(10**29)),
    ],
)
def test_rows_are_read_again_from_before_the_position(
    value: Any, overlap: float, bound: Any
) -> None:
    found = lower_bound(value, overlap)
    assert (found, type(found)) == (bound, type(bound))


@pytest.mark.parametrize(
    "values",
    [
        [3, 1, 2],
        [2.5, Decimal("1.25"), 1],
        [Decimal("3.10"), 3],
        [datetime(2026, 1, 2), datetime(2026, 1, 1)],
        [
            datetime(2026, 1, 2, tzinfo=UTC),
            datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=1))),
        ],
        [date(2026, 1, 2), date(2026, 1, 1)],
        ["2026-01-02 10:00:00.5", "2026-01-02 10:00:00"],
        ["2026-01-02", "2026-01-01"],
        [7, None, float("nan"), float("inf"), Decimal("NaN")],
        [datetime(2026, 1, 2), DatabaseValue("infinity"), DatabaseValue("-infinity")],
    ],
)
def test_the_largest_value_is_the_position(values: list[Any]) -> None:
    seen = highest()
    for value in values:
        seen.see(value)
    position = seen.position()
    assert position is not None
    again = highest()
    assert again.resume(position) == lower_bound(values[0], 0)
    assert again.position() == position
    with pytest.raises(SourceError, match="have no common order"):
        again.see("2026-01-02T10:00Z")


@pytest.mark.parametrize(
    ("value", "bound"),
    [
        (100, 90),
        (datetime(2026, 1, 1, 0, 2), datetime(2026, 1, 1, 0, 0, 50)),
        ("2026-01-01 00:02:00", "2026-01-01 00:00"),
    ],
)
def test_a_transaction_that_is_open_longer_is_waited_for(value: Any, bound: Any) -> None:
    seen = highest()
    seen.begin(59.5)
    seen.see(value)
    assert highest(overlap=10).resume(seen.position() or "") == bound


@pytest.mark.parametrize("overlap", [0, 60])
@pytest.mark.parametrize("late", ["10:00", "10:00:00", "10:00:00.5", "10:00:59"])
@pytest.mark.parametrize("last", ["10:00", "10:00:00", "10:00:00.7"])
@pytest.mark.parametrize("zone", ["", "Z", "+00:00"])
def test_a_late_text_of_the_same_time_is_read_whatever_its_form(
    last: str, late: str, zone: str, overlap: float
) -> None:
    bound = lower_bound(f"2026-03-01T{last}{zone}", overlap)
    is_older = late == "10:00" != last
    if overlap or not is_older:
        assert f"2026-03-01T{late}{zone}" >= str(bound)


def test_without_a_value_there_is_no_position() -> None:
    seen = highest()
    seen.see(None)
    assert seen.position() is None


@pytest.mark.parametrize(
    "value",
    [
        True,
        b"1",
        "soon",
        "2026-13-01",
        "10:00",
        "2026-01-01T00:00:00.\uff15",
        [1],
        "",
    ],
)
def test_values_without_an_order_are_refused(value: Any) -> None:
    with pytest.raises(SourceError, match=r"db: the field 'changed' holds .*needs a column of"):
        highest().see(value)


def test_what_python_has_no_type_for_is_shown_as_the_database_writes_it() -> None:
    with pytest.raises(SourceError, match="holds 0044-03-15 BC; since_field"):
        highest().see(DatabaseValue("0044-03-15 BC"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, "2026-01-01"),
        ("2026-01-01", "2026-01-01 10:00"),
        ("2026-01-01T10:00", "2026-01-01 10:00"),
        ("2026-01-01T10:00Z", "2026-01-01T10:00+01:00"),
        (date(2026, 1, 1), datetime(2026, 1, 1)),
        (datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)),
    ],
)
def test_values_of_two_kinds_are_refused(one: Any, other: Any) -> None:
    seen = highest()
    seen.see(one)
    with pytest.raises(SourceError, match="have no common order"):
        seen.see(other)


def test_the_kinds_that_have_no_common_order_are_named() -> None:
    for values, told in (
        (["2026-01-01", "2026-01-01 10:00Z"], "2026-01-31 and texts such as 2026-01-31 12:00Z,"),
        ([datetime(2026, 1, 1), 1], "holds times without a zone and numbers, which"),
        ([datetime(2026, 1, 1, tzinfo=UTC), 1], "holds times with a zone and numbers, which"),
    ):
        seen = highest()
        seen.see(values[0])
        with pytest.raises(SourceError, match=told):
            seen.see(values[1])


@pytest.mark.parametrize(
    "value",
    [
        "9999-12-31",
        "9999-12-31T00:00:00Z",
        date(9999, 12, 31),
        datetime(9999, 12, 31),
        datetime(9999, 12, 31, tzinfo=UTC),
    ],
)
def test_a_time_in_the_future_moves_no_position(value: Any) -> None:
    told: list[str] = []
    seen = highest(told=told)
    seen.see(value)
    seen.see(value)
    assert seen.position() is None
    assert len(told) == 1
    assert "is in the future; such rows are read in every run" in told[0]


@pytest.mark.parametrize("is_text", [False, True])
def test_a_time_that_has_not_come_moves_no_position(is_text: bool) -> None:
    told: list[str] = []
    seen = highest(told=told)
    soon = datetime.now(UTC) + timedelta(hours=1)
    seen.see(soon.strftime("%Y-%m-%dT%H:%M:%SZ") if is_text else soon)
    assert (seen.position(), told) == (None, [])
    seen = highest(told=told)
    soon = soon.replace(tzinfo=None)  # it may have come in another zone
    seen.see(soon.strftime("%Y-%m-%dT%H:%M:%S") if is_text else soon)
    assert seen.position() is not None


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM docs",
        "SELECT * FROM docs;  \n",
        "SELECT * FROM docs -- all of them",
        "SELECT * FROM docs; -- all of them",
        "SELECT * FROM docs WHERE 'a; -- b' <> 'a'",
        "WITH x AS (SELECT * FROM docs) SELECT * FROM x ORDER BY 1 LIMIT 9",
        "SELECT * FROM docs WHERE 'a%s' LIKE '%s'",
    ],
)
def test_a_query_gets_a_condition(query: str) -> None:
    database = sqlite3.connect(":memory:")
    database.execute('CREATE TABLE docs ("a ""b%" INTEGER)')
    database.executemany("INSERT INTO docs VALUES (?)", [(1,), (2,), (3,), (None,)])
    rows = database.execute(changed_since(query, 'a "b%', "?", 2), [2]).fetchall()
    assert {*rows} == {(2,), (3,), (None,)}
    # psycopg reads %% as %.
    changed = changed_since(query, "n%", "%s", datetime(2026, 1, 1))
    assert changed.replace("%%", "%").count("%s") == query.count("%s") + 1
    assert '"n%%" >= %s' in changed
    database.close()


@pytest.mark.parametrize("begin", [2, 2.5])
def test_a_number_of_minus_infinity_is_read_in_every_run(begin: float) -> None:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE docs (changed REAL)")
    database.executemany("INSERT INTO docs VALUES (?)", [(1.0,), (3.0,), (-math.inf,)])
    rows = database.execute(changed_since("SELECT * FROM docs", "changed", "?", begin), [begin])
    assert {*rows.fetchall()} == {(3.0,), (-math.inf,)}
    database.close()
    # Of Postgres, where a column of integers cannot be compared with it.
    has_infinity = "-infinity" in changed_since("SELECT * FROM docs", "changed", "%s", begin)
    assert has_infinity == isinstance(begin, float)


def test_a_column_that_does_not_exist_is_no_text() -> None:
    database = sqlite3.connect(":memory:")
    with pytest.raises(sqlite3.OperationalError, match="no such column"):
        database.execute(changed_since("SELECT 1 AS id", "changed", "?", 2), [2])
    database.close()


def test_a_column_of_texts_that_gets_numbers_is_read_and_refused() -> None:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE docs (changed)")
    rows = [("2026-01-01",), ("2026-01-03",), (None,), (1767225600,)]
    database.executemany("INSERT INTO docs VALUES (?)", rows)
    query = changed_since("SELECT * FROM docs", "changed", "?", "2026-01-02")
    assert database.execute(query, ["2026-01-02"]).fetchall() == rows[1:]
    database.close()
