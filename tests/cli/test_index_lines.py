"""The line of a load while it runs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from embedlib.cli.index_lines import Watch, summary
from embedlib.indexing import IndexProgress, IndexReport
from embedlib.progress.phases import Progress
from embedlib.progress.screens import Look, Reading


def read(told: IndexProgress) -> Reading:
    """What the line of a load is made of."""
    with Progress(None) as progress:
        watch = Watch(progress)
        watch.told(told)
        return watch._read()


def test_a_cluster_tells_rows_rate_workers_retries_and_seconds_left() -> None:
    reading = read(
        IndexProgress(
            num_documents=90,
            num_documents_embedded=100,
            total_documents=400,
            num_embedded=150,
            num_vectors=1500,
            num_unchanged=5,
            num_metadata=2,
            num_workers=2,
            num_retries=3,
        )
    )
    look = Look(activity="Indexing", unit="rows", reading=reading, seconds=10.0, rate=20.0)
    assert "1507/6028 [00:10<03:46, 20.00 rows/s, 2 workers" in look.as_bar(79)
    notes = "2 workers, 3 tried again, 5 unchanged, 100 of 400 docs"
    assert look.as_bar(160).endswith(f"20.00 rows/s, {notes}]")
    assert look.as_line() == (
        f"Indexing: 1,507 of 6,028 rows in 10 s, 20.0 rows/s, 4 min left, {notes}"
    )


@pytest.mark.parametrize(
    ("num_documents", "total", "rows", "note"),
    [
        (10, 40, 80, "10 of 40 docs"),
        (0, 40, None, "0 of 40 docs"),
        (10, None, None, "10 docs"),
        (40, 40, 20, "40 of 40 docs"),
        (41, 40, None, "41 of 40 docs"),  # there were more than estimated
    ],
)
def test_rows_to_come_are_estimated_by_the_documents(
    num_documents: int, total: int | None, rows: int | None, note: str
) -> None:
    reading = read(
        IndexProgress(
            num_documents=0,
            num_documents_embedded=num_documents,
            total_documents=total,
            num_embedded=0,
            num_vectors=20,
            num_unchanged=0,
        )
    )
    assert reading == Reading(done=20, total=rows, note=note)


@pytest.mark.parametrize(
    ("num_rows", "total", "kept"),
    [
        (0, 9, ""),
        (1, None, "at least 1 row is stored; "),
        (2, 9, "at least 2 rows of about 9 documents are stored; "),
    ],
)
def test_what_an_interrupted_load_leaves(num_rows: int, total: int | None, kept: str) -> None:
    told = IndexProgress(
        num_documents=0, total_documents=total, num_embedded=num_rows, num_unchanged=0
    )
    with Progress(None) as progress:
        watch = Watch(progress)
        assert watch.kept() == "run the same command again to go on"
        watch.told(told)
        assert watch.kept() == f"{kept}run the same command again to go on"


def test_every_load_is_shown() -> None:
    shown: list[str] = []
    progress: Any = SimpleNamespace(watch=lambda activity, *_: shown.append(activity))
    watch = Watch(progress)
    told = IndexProgress(num_documents=0, total_documents=None, num_embedded=0, num_unchanged=0)
    ending = replace(told, is_finishing=True)
    for each in (told, told, ending, ending, told, told, ending):
        watch.told(each)
    assert shown == ["Indexing", "Making the rows ready for search"] * 2


def test_a_load_that_took_no_time() -> None:
    names = ("documents", "rows", "embedded", "unchanged", "metadata", "deleted", "bad")
    counts = {f"num_{name}": 0 for name in (*names, "truncated", "tokens")}
    report = IndexReport(**counts, seconds=0.0)
    assert list(summary(report, "to", is_dry=False)) == [
        "Indexed 0 documents as 0 rows into to in 0.0 s",
        "  embedded             0",
        "  unchanged            0",
    ]
    first, embedded, _ = summary(replace(report, num_embedded=2, num_tokens=9), "to", is_dry=True)
    assert first == "Would index 0 documents as 0 rows into to"
    assert embedded == "  embedded             2  9 tokens"
    report = replace(report, num_embedded=2, num_tokens=3000, seconds=2.0)
    _, embedded, _ = summary(report, "to", is_dry=False)
    assert embedded == "  embedded             2  3,000 tokens, 1,500 tokens/s"
