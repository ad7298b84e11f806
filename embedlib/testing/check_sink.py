"""`check_sink`: checks a sink against the whole contract of `Sink`; for the tests of a sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import cast

import numpy as np

from embedlib.errors import SinkError
from embedlib.indexing.filters.expression import matcher
from embedlib.indexing.filters.parser import parse_filter
from embedlib.indexing.rows import Row, row_digest, row_id
from embedlib.indexing.sinks.abilities import PositionSink
from embedlib.indexing.sinks.protocol import RowKey, Sink, Target, tell_nobody
from embedlib.testing.asserts import need_asserts
from embedlib.vectors.arrays import Vectors

DIM = 6
TARGET = Target(
    dim=DIM,
    similarity="cosine",
    fingerprint="folder:0123",
    model="check/model",
    precision="float32",
)

_FILTERS = (
    *("page = 3", "page >= 10 and page < 20.5", "page != 3", "page in (1, 2, '3')"),
    *('tags = "b"', 'not tags = "c"', "nested.x is null", "exists nested", "absent < 'z'"),
    *('source > "docs/ä 12.md"', "page = true or source.x = 'a'", "page = '3'"),
)


def make_rows(num_rows: int, *, text: str = "text", first: int = 0) -> list[Row]:
    """Return rows of two-chunk documents; `text` decides their content."""
    rows = []
    for number in range(first, first + num_rows):
        source_id, chunk = f"docs/ä {number // 2}.md", number % 2
        content = f"{text} {number}: 'quoted' \\ \t ünïcode 漢字 🙂"
        metadata = {"source": source_id, "page": number, "tags": ["a", "b"], "nested": {"x": None}}
        rows.append(
            Row(
                id=row_id(source_id, chunk),
                source_id=source_id,
                chunk=chunk,
                text=content,
                metadata=metadata,
                digest=row_digest(content, metadata, TARGET.fingerprint),
            )
        )
    return rows


def make_vectors(rows: Sequence[Row]) -> Vectors:
    """Return float32[N, 6] of unit length, a function of each row's text."""
    numbers = [list(row.digest[:DIM]) for row in rows]
    vectors = np.array(numbers, np.float32).reshape(len(rows), DIM) + 1
    unit: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def check_sink(make: Callable[[], Sink]) -> None:
    """Check a sink against the contract of `embedlib.indexing.Sink`.

    Args:
        make: returns a new sink object at every call, always for the same destination, which must
            not exist yet.

    Raises:
        AssertionError: the sink violates the contract, or Python runs no assert statements; the
            message says which.
    """
    need_asserts("check_sink")
    _check_empty(make)
    rows = make_rows(40)
    _check_load(make, rows)
    _check_replacing(make, rows)
    _check_one_writer(make)
    _check_misfits(make)
    _check_position(make)
    _check_recreate(make)


def _check_empty(make: Callable[[], Sink]) -> None:
    with closing(make()) as sink:
        assert sink.inspect() is None, "inspect finds something before anything was written"
        sink.close()


def _check_load(make: Callable[[], Sink], rows: list[Row]) -> None:
    with _begun(make) as sink:
        assert sink.digests([row.id for row in rows]) == {}, "digests of rows never written"
        assert list(sink.scan()) == [], "scan yields rows never written"
        sink.write([], np.empty((0, DIM), np.float32))
        sink.write(rows[:25], make_vectors(rows[:25]))
    # Closed without finish, as after a kill: rows of a write that returned must be stored.
    with _begun(make) as sink:
        _expect_rows(sink, rows[:25])
        sink.write(rows[20:], make_vectors(rows[20:]))  # five of them a second time
        _expect_rows(sink, rows)
        sink.finish()
        _expect_search(sink, rows)
        _expect_filters(sink, rows)
    with closing(make()) as sink:
        state = sink.inspect()
        assert state is not None, "inspect finds nothing after a load"
        digests = sink.digests([row.id for row in rows])
        assert len(digests) == len(rows), "digests does not work before begin"
        assert (state.num_rows, state.dim) == (len(rows), DIM), f"inspect returns {state}"
        assert (state.fingerprint, state.model) == (TARGET.fingerprint, TARGET.model)
        assert (state.similarity, state.precision) == (TARGET.similarity, TARGET.precision)
        _expect_search(sink, rows)


def _check_replacing(make: Callable[[], Sink], rows: list[Row]) -> None:
    """Replace vectors, replace metadata, and delete rows of a finished load."""
    with _begun(make) as sink:
        changed = [
            *make_rows(3, text="changed"),
            *[_with_metadata(row, {"page": -1}) for row in rows[3:6]],
            *rows[6:],
        ]
        sink.write(changed[:3], make_vectors(changed[:3]))
        sink.write_metadata(changed[3:6])
        _expect_rows(sink, changed)
        sink.delete([row.id for row in changed[30:]])
        sink.delete([row.id for row in make_rows(2, first=1000)])
        sink.delete([])
        changed = changed[:30]
        _expect_rows(sink, changed)
        bad = make_vectors(changed[:2])
        bad[1, 0] = np.nan
        for vectors in (bad, np.ones((2, DIM + 1), np.float32)):
            _expect_error(lambda vectors=vectors: sink.write(changed[:2], vectors))  # type: ignore[misc]
        _expect_rows(sink, changed)
        sink.finish()
        sink.finish()
        _expect_rows(sink, changed)
    with _begun(make) as sink:
        _expect_rows(sink, changed)
        _expect_search(sink, changed)


def _check_one_writer(make: Callable[[], Sink]) -> None:
    with _begun(make), closing(make()) as second:
        _expect_error(lambda: second.begin(TARGET, tell_nobody))
    with _begun(make):
        pass


def _check_misfits(make: Callable[[], Sink]) -> None:
    for target in (
        replace(TARGET, dim=DIM + 1),
        replace(TARGET, fingerprint="folder:4567"),
        replace(TARGET, similarity="dot"),
    ):
        with closing(make()) as sink:
            _expect_error(lambda sink=sink, target=target: sink.begin(target, tell_nobody))  # type: ignore[misc]
    with _begun(make):
        pass


def _check_position(make: Callable[[], Sink]) -> None:
    """Check that a position outlives the sink object; one is left for `_check_recreate`."""
    with closing(make()) as sink:
        if not hasattr(sink, "load_position"):
            return
    for position in ("a first 'one' ü", '{"a": "100% of it"}', None, "the last"):
        with _begun(make) as sink:
            cast(PositionSink, sink).save_position(position)
        with closing(make()) as sink:
            loaded = cast(PositionSink, sink).load_position()
            assert loaded == position, f"{position!r} was saved, not loaded"


def _check_recreate(make: Callable[[], Sink]) -> None:
    with _begun(make, replace(TARGET, fingerprint="folder:4567", recreate=True)) as sink:
        if hasattr(sink, "load_position"):
            assert sink.load_position() is None, "a position is left after recreate"
        _expect_rows(sink, [])
        rows = make_rows(3)
        sink.write(rows, make_vectors(rows))
        sink.finish()
    with closing(make()) as sink:
        state = sink.inspect()
        assert state is not None, "inspect finds nothing after recreate"
        assert (state.num_rows, state.fingerprint) == (3, "folder:4567"), f"inspect returns {state}"


@contextmanager
def _begun(make: Callable[[], Sink], target: Target = TARGET) -> Iterator[Sink]:
    """Write in the block; the sink is closed, also if a check fails."""
    with closing(make()) as sink:
        sink.begin(target, tell_nobody)
        yield sink


def _with_metadata(row: Row, metadata: dict[str, object]) -> Row:
    digest = row_digest(row.text, metadata, TARGET.fingerprint)
    return replace(row, metadata=metadata, digest=digest)


def _expect_rows(sink: Sink, rows: Sequence[Row]) -> None:
    """Assert that exactly these rows are stored."""
    keys = list(sink.scan())
    assert len(keys) == len(set(keys)), "scan yields a row twice"
    expected = {RowKey(id=row.id, source_id=row.source_id, chunk=row.chunk) for row in rows}
    assert set(keys) == expected, f"{len(keys)} rows, {len(rows)} expected"
    digests = sink.digests([row.id for row in rows])
    assert digests == {row.id: row.digest for row in rows}, "digests differ from what was written"
    state = sink.inspect()
    num_rows = 0 if state is None else state.num_rows
    assert num_rows == len(rows), f"inspect counts {num_rows} rows while {len(rows)} are stored"


def _expect_search(sink: Sink, rows: Sequence[Row]) -> None:
    """Assert that the nearest row to the vector of every tenth row is that row, with all fields."""
    assert sink.search(make_vectors(rows[:1])[0], 0) == [], "search of no rows returned some"
    for row, vector in list(zip(rows, make_vectors(rows), strict=True))[::10]:
        hits = sink.search(vector, 5)
        assert len(hits) == 5, f"search returned {len(hits)} hits, not 5"
        scores = [hit.score for hit in hits]
        assert scores == sorted(scores, reverse=True), "hits are not sorted, best first"
        best = hits[0]
        assert best.score > 0.99, f"the same vector scores {best.score}"
        assert (best.id, best.source_id, best.chunk) == (row.id, row.source_id, row.chunk)
        assert (best.text, best.metadata) == (row.text, row.metadata), "a hit's fields differ"


def _expect_filters(sink: Sink, rows: Sequence[Row]) -> None:
    """Assert that a sink with filters finds the rows that the reference accepts."""
    if not hasattr(sink, "search_where"):
        return
    for text in _FILTERS:
        where = parse_filter(text)
        accepts = matcher(where)
        expected = {row.id for row in rows if accepts(row.metadata)}
        hits = sink.search_where(make_vectors(rows[:1])[0], len(rows), where)
        found = [hit.id for hit in hits]
        assert set(found) == expected, f"{text}: {len(found)} hits, {len(expected)} expected"
        scores = [hit.score for hit in hits]
        assert scores == sorted(scores, reverse=True), f"{text}: hits are not sorted, best first"


def _expect_error(action: Callable[[], object]) -> None:
    message = None
    try:
        action()
    except SinkError as error:
        message = str(error)
    assert message is not None, "no SinkError was raised"
    assert "\n" not in message, f"an error has more than one line: {message}"
