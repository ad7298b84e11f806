"""`check_replaceable`: checks a sink against `ReplaceableSink`; for the tests of a sink."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np

from embedlib.errors import SinkError
from embedlib.indexing.rows import Row
from embedlib.indexing.sinks.protocol import Sink, SinkState, Target, tell_nobody
from embedlib.indexing.sinks.replaceable import (
    ReplaceableSink,
    ReplacedError,
    models_of,
    replaceable,
)
from embedlib.testing.asserts import need_asserts
from embedlib.testing.check_sink import TARGET, make_rows
from embedlib.vectors.arrays import Vectors

_OTHER = replace(TARGET, fingerprint="folder:4567", model="other/model")
_WIDER = replace(TARGET, fingerprint="folder:89ab", model="third/model", dim=TARGET.dim + 2)


def check_replaceable(make: Callable[[], Sink]) -> None:
    """Check a sink against the contract of `embedlib.indexing.ReplaceableSink`.

    Args:
        make: returns a new sink object at every call, always for the same destination, which must
            not exist yet.

    Raises:
        AssertionError: the sink violates the contract, or Python runs no assert statements; the
            message says which.
    """
    need_asserts("check_replaceable")

    def sink() -> ReplaceableSink:
        return replaceable(make())

    rows = make_rows(24)
    _check_first_load(sink, rows)
    for before, after in ((TARGET, _OTHER), (_OTHER, _WIDER)):
        with closing(sink()) as early, closing(sink()) as late:
            _hold(early, before)
            _expect_search(early, rows, before)
            _load_beside(sink, rows, before, after)
            _expect_search(early, rows, before)
            _hold(late, before)
            _check_switched(sink, rows, before, after)
            for held in (early, late):
                _expect_search(held, rows, before)
            _check_old_is_kept(sink, rows, before)
            _check_drop(sink, after)
            for held in (early, late):
                _expect_gone(held, rows[0], before)
    with closing(sink()) as again:
        _hold(again, _WIDER)
        _expect_search(again, rows, _WIDER)


def _check_first_load(make: Callable[[], ReplaceableSink], rows: list[Row]) -> None:
    """Load where nothing is: the rows are found when all of them are there."""
    with closing(make()) as sink:
        assert sink.old() is None, "old finds something before anything was written"
        sink.drop_old()
        with closing(sink.beside()) as beside:
            assert beside.inspect() is None, "beside finds something before anything was written"
            beside.begin(TARGET, tell_nobody)
            beside.write(rows, vectors_of(rows, TARGET))
            assert sink.inspect() is None, "rows are found before the switch"
            beside.finish()
            beside.switch()
    with closing(make()) as sink:
        _expect_state(sink.inspect(), TARGET, len(rows))
        assert sink.old() is None, "old rows are kept where there were none"


def _load_beside(
    make: Callable[[], ReplaceableSink], rows: list[Row], before: Target, after: Target
) -> None:
    """Load another model's rows in two runs; nobody finds them."""
    with closing(make()) as sink, closing(sink.beside()) as beside:
        beside.begin(after, tell_nobody)
        with closing(make()) as writer, closing(writer.beside()) as second:
            assert _error_of(lambda: writer.begin(before, tell_nobody)), "two writers, one beside"
            assert _error_of(lambda: second.begin(after, tell_nobody)), "two writers beside"
        beside.write(rows[:10], vectors_of(rows[:10], after))
    with closing(make()) as sink, closing(sink.beside()) as beside:
        _expect_state(sink.inspect(), before, len(rows))
        _expect_state(beside.inspect(), after, 10)
        beside.begin(after, tell_nobody)
        assert len(beside.digests([row.id for row in rows])) == 10, "rows beside are not kept"
        beside.write(rows[10:], vectors_of(rows[10:], after))
        beside.finish()
        assert {key.id for key in sink.scan()} == {row.id for row in rows}, "scan before begin"
        for each, target in ((beside, after), (sink, before)):
            _expect_stored(each, rows, target)
        beside.switch()


def _check_switched(
    make: Callable[[], ReplaceableSink], rows: list[Row], before: Target, after: Target
) -> None:
    with closing(make()) as sink:
        _expect_state(sink.inspect(), after, len(rows))
        _expect_state(sink.old(), before, len(rows))
        with closing(sink.beside()) as beside:
            assert beside.inspect() is None, "rows are beside after the switch"
        _hold(sink, after)
        _expect_search(sink, rows, after)
    with closing(make()) as writer:  # the load that brings the new rows up to date
        writer.begin(after, tell_nobody)
        assert len(writer.digests([row.id for row in rows])) == len(rows), "rows are lost"
        writer.finish()


def _check_old_is_kept(
    make: Callable[[], ReplaceableSink], rows: list[Row], before: Target
) -> None:
    """Another switch would lose the old rows, and is refused."""
    with closing(make()) as sink, closing(sink.beside()) as beside:
        beside.begin(before, tell_nobody)
        beside.write(rows[:1], vectors_of(rows[:1], before))
        beside.finish()
        assert _error_of(beside.switch), "a switch while old rows are kept"
    with closing(make()) as sink, closing(sink.beside()) as beside:
        beside.begin(replace(_WIDER, recreate=True), tell_nobody)
        assert list(beside.scan()) == [], "recreate keeps rows beside"
    with closing(make()) as sink:
        assert sink.inspect() is not None, "recreate beside drops what is found"


def _check_drop(make: Callable[[], ReplaceableSink], after: Target) -> None:
    with closing(make()) as sink:
        sink.drop_old()
        sink.drop_old()
        assert sink.old() is None, "old rows are still there"
        _expect_state(sink.inspect(), after, 24)


def vectors_of(rows: Sequence[Row], target: Target) -> Vectors:
    """Return float32[N, D] of unit length, another function of the rows for each target."""
    own = list(target.fingerprint.encode())
    drawn = [np.random.default_rng([*own, *row.id.bytes]).normal(size=target.dim) for row in rows]
    vectors = np.array(drawn).reshape(len(rows), target.dim)
    unit: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit


def _hold(sink: ReplaceableSink, target: Target) -> None:
    found = [sink.inspect(), sink.old()]
    wanted = models_of(target)
    [state] = [each for each in found if each is not None and models_of(each) == wanted]
    sink.hold(state)


def _search(sink: Sink, row: Row, target: Target) -> None:
    hits = sink.search(vectors_of([row], target)[0], 3)
    assert hits[0].id == row.id, "the nearest row to the vector of a row is another one"
    assert hits[0].score > 0.99, f"the same vector scores {hits[0].score}: of another model?"


def _expect_gone(sink: Sink, row: Row, target: Target) -> None:
    error = _error_of(lambda: _search(sink, row, target))
    assert isinstance(error, ReplacedError), f"a search whose rows are gone: {error!r}"


def _expect_search(sink: Sink, rows: Sequence[Row], target: Target) -> None:
    for row in rows[::5]:
        _search(sink, row, target)


def _expect_state(state: SinkState | None, target: Target, num_rows: int) -> None:
    assert state is not None, "there are no rows"
    found = (state.num_rows, state.dim, state.model)
    expected = (num_rows, target.dim, target.model)
    assert found == expected, f"{found} is found, not {expected}"
    assert models_of(state) == models_of(target), (
        f"{state.fingerprint} is found, not {target.fingerprint}"
    )


def _expect_stored(sink: ReplaceableSink, rows: Sequence[Row], target: Target) -> None:
    found = sink.stored_rows([row.id for row in rows])
    assert len(found) == len(rows), f"{len(found)} of {len(rows)} rows are read"
    for row, vector in zip(rows, vectors_of(rows, target), strict=True):
        text, stored = found[row.id]
        assert text == row.text, "the text of a row differs"
        assert np.allclose(stored, vector, atol=1e-3), "the vector of a row differs"


def _error_of(action: Callable[[], object]) -> SinkError | None:
    found = None
    try:
        action()
    except SinkError as error:
        found = error
    assert "\n" not in str(found), f"an error has more than one line: {found}"
    return found
