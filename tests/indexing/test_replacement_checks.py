"""What is compared before rows of another model are found by searches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from embedlib.indexing import Hit, IndexReport, Row, RowKey, StoredRow, row_id
from embedlib.indexing.replacement_checks import (
    LEAST_COSINE,
    NEIGHBOURS,
    SAMPLE_ROWS,
    Comparison,
    RowSample,
    compare,
)


def row(document: str, chunk: int = 0) -> Row:
    return Row(
        id=row_id(document, chunk),
        source_id=document,
        chunk=chunk,
        text=f"text of {document}",
        metadata={},
        digest=b"",
    )


def rows(number: int) -> list[Row]:
    return [row(f"d{n}") for n in range(number)]


class Stored:
    """Rows in a destination: one vector for all, or others for some."""

    def __init__(
        self,
        stored: Sequence[Row],
        vector: Sequence[float] | Sequence[Sequence[float]] = (1.0, 0.0),
        near: Mapping[str, str] | None = None,
        vectors: Mapping[str, Any] | None = None,
    ) -> None:
        self.rows = list(stored)
        self.unreadable: set[UUID] = set()
        self.asked: list[tuple[list[float], int]] = []
        self._vector = vector
        self._near = near or {}
        """By document the documents near it, a character each."""
        self._vectors = vectors or {}

    def inspect(self) -> Any:
        return SimpleNamespace(num_rows=len(self.rows))

    def scan(self) -> Iterator[RowKey]:
        for each in self.rows:
            yield RowKey(id=each.id, source_id=each.source_id, chunk=each.chunk)

    def stored_rows(self, ids: Sequence[UUID]) -> dict[UUID, StoredRow]:
        return {
            each.id: StoredRow(each.text, self._vector_of(each.source_id))
            for each in self.rows
            if each.id in set(ids) - self.unreadable
        }

    def search(self, vector: Any, k: int) -> list[Hit]:
        self.asked.append((vector.tolist(), k))
        [document] = [name for name in self._near if np.array_equal(vector, self._vector_of(name))]
        return [
            Hit(score=1.0, id=row_id(name, 0), source_id=name, chunk=0, text="", metadata={})
            for name in [document, *self._near[document]]
        ]

    def _vector_of(self, document: str) -> Any:
        return np.array(self._vectors.get(document, self._vector), np.float32)


class Embeds:
    """An embedder with one vector for every text."""

    def __init__(self, vector: Any = (1.0, 0.0)) -> None:
        self._vector = np.array(vector, np.float32)

    def submit_batch(self, texts: Sequence[str], *, role: str) -> Future[Any]:
        assert role == "document"
        future: Future[Any] = Future()
        future.set_result([self._vector for _ in texts])
        return future


def check(
    new: Stored,
    old: Stored | None = None,
    *,
    embedder: Any = None,
    num_rows: int | None = None,
    num_bad: int = 0,
    max_missing: float = 0.0,
    sample: Sequence[Row] | None = None,
) -> Comparison:
    counts = dict.fromkeys(
        ("num_documents", "num_embedded", "num_unchanged", "num_deleted", "num_truncated"), 0
    )
    report = IndexReport(
        **counts,
        num_rows=len(new.rows) if num_rows is None else num_rows,
        num_metadata=0,
        num_bad=num_bad,
        num_tokens=0,
        seconds=0.0,
        num_other=0,
    )
    given = new.rows if sample is None else sample
    stand_ins: Any = (new, old, embedder or Embeds())
    return compare(*stand_ins, report, max_missing, given)


def problem_of(*given: Any, **options: Any) -> str:
    problem = check(*given, **options).problem
    assert problem is not None
    return problem


def test_nothing_is_there_yet() -> None:
    assert check(Stored(rows(3))) == Comparison()


@pytest.mark.parametrize("num_rows", [2, 4])
def test_rows_must_be_as_many_as_the_source_has(num_rows: int) -> None:
    told = f"3 rows are stored and the source has {num_rows}; run again, or start over with"
    assert problem_of(Stored(rows(3)), num_rows=num_rows).startswith(told)


def test_bad_rows_come_before_all_else() -> None:
    assert problem_of(Stored([]), num_bad=1).startswith("1 bad row is not among them;")
    several = problem_of(Stored(rows(1)), num_bad=2)
    assert several.startswith("2 bad rows are not among them; correct the source, or leave them")
    assert problem_of(Stored([]), num_rows=0) == "the source has no documents; check the source"


def test_documents_may_be_missing_up_to_the_share() -> None:
    old = Stored([row("gone"), row("lost"), *rows(2)], near=dict.fromkeys(("d0", "d1"), ""))
    told = "2 of the 4 rows that searches find are of documents that the source does not have, "
    assert problem_of(Stored(rows(2)), old, max_missing=0.49).startswith(f"{told}such as 'gone';")
    new = Stored(rows(2), vectors={"d1": (0.9999, 0.01)}, near=dict.fromkeys(("d0", "d1"), ""))
    old = Stored(old.rows, vectors={"d1": (0.9999, 0.01)}, near=dict.fromkeys(("d0", "d1"), ""))
    assert check(new, old, max_missing=0.5).problem is None
    old, new = (Stored(rows(number), near={"d0": ""}) for number in (100, 71))
    assert check(new, old, max_missing=0.29, sample=rows(1)).problem is None


def test_what_is_missing_is_told_before_a_vector_that_is_another() -> None:
    told = problem_of(Stored(rows(2)), Stored([row("gone")]), embedder=Embeds((0.0, 1.0)))
    assert told.startswith("1 of the 1 rows")


def test_a_sampled_row_that_cannot_be_read() -> None:
    new = Stored(rows(3))
    new.unreadable = {new.rows[1].id}
    assert problem_of(new) == "1 of 3 sampled rows cannot be read; run again"


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_vector_that_is_another_is_enough(place: int) -> None:
    new = Stored(rows(3), vectors={f"d{place}": (0.6, 0.8)})
    told = "a sampled row has another vector than its text embedded again, with cosine 0.6000 "
    assert problem_of(new).startswith(told)


def test_the_last_bits_of_a_vector_may_differ() -> None:
    for cosine, is_enough in ((LEAST_COSINE + 1e-4, True), (LEAST_COSINE - 1e-4, False)):
        new = Stored(rows(1), (cosine, float(np.sqrt(1 - cosine**2))))
        assert (check(new).problem is None) == is_enough


@pytest.mark.parametrize(
    ("stored", "embedded", "cosine"),
    [
        ((2.0, 0.0), (1.0, 0.0), None),  # lengths are those of the model
        ((1e30, 0.0), (1e30, 0.0), None),  # whose squares no float32 holds
        ((0.0, 0.0), (0.0, 0.0), None),
        ((0.0, 0.0), (1.0, 0.0), "0.0000"),
        ((1.0, 0.0), (1.0, 0.0, 0.0), "0.0000"),
        ([(1.0, 0.0), (0.0, 1.0)], [(1.0, 0.0), (0.0, 1.0)], None),  # a vector per token
        ([(1.0, 0.0), (0.0, 1.0)], [(1.0, 0.0), (1.0, 0.0)], "0.5000"),
        ([(1.0, 0.0), (0.0, 1.0)], [(1.0, 0.0)], "0.0000"),
    ],
)
def test_how_two_vectors_are_compared(stored: Any, embedded: Any, cosine: str | None) -> None:
    problem = check(Stored(rows(1), stored), embedder=Embeds(embedded)).problem
    assert (problem is None) if cosine is None else (problem and f"cosine {cosine} " in problem)


def test_the_share_is_of_the_documents_that_were_near() -> None:
    """Without the row's own document; that it has no row in the old ones is no share."""
    vectors = {"d0": (1.0, 0.001), "d1": (1.0, 0.002), "d2": (1.0, 0.003)}
    old = Stored(rows(2), near={"d0": "abcd", "d1": "a"}, vectors={"d0": (0, 1), "d1": (0, 2)})
    new = Stored(rows(3), near={"d0": "abx", "d1": "xyz"}, vectors=vectors)
    assert check(new, old) == Comparison(num_sampled=2, overlap=0.25)
    assert old.asked == [([0.0, 1.0], NEIGHBOURS + 1), ([0.0, 2.0], NEIGHBOURS + 1)]
    found = [(np.float32(vectors[name]).tolist(), NEIGHBOURS + 1) for name in ("d0", "d1")]
    assert new.asked == found


def test_where_nothing_is_near_there_is_no_share() -> None:
    alone = Stored(rows(1), near={"d0": ""})
    assert check(Stored(rows(1), near={"d0": "a"}), alone) == Comparison()
    assert check(Stored(rows(1)), Stored([row("gone")]), max_missing=1.0) == Comparison()


def test_a_sample_is_of_all_rows_and_the_same_every_time() -> None:
    samples = [RowSample(), RowSample()]
    given = rows(40 * SAMPLE_ROWS)
    samples[0].add(given)
    for each in given:
        samples[1].add([each])
    assert samples[0].rows == samples[1].rows
    places = sorted(given.index(each) for each in samples[0].rows)
    assert len({*places}) == SAMPLE_ROWS
    # A twentieth and nineteen of these are as rare as a billion to one.
    assert places[0] < len(given) / 2 < places[-1]
    few = RowSample()
    few.add(given[:SAMPLE_ROWS])
    assert few.rows == given[:SAMPLE_ROWS]
