"""Two loads of one collection from two machines, against the stub of conftest.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("qdrant_client", reason="needs the extra qdrant")

from embedlib.errors import SinkError
from embedlib.testing.check_sink import TARGET, make_rows, make_vectors
from embedlib_qdrant import lease as lease_module
from embedlib_qdrant.lease import EXPIRES_S, LEASE_KEY, Holder
from embedlib_qdrant.server import ServerSink
from tests.waiting import WAIT_SECONDS


@pytest.fixture
def on_machine(
    make_sink: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Return a function that begins a load, with the files of one machine."""

    def begin(machine: str, tell: Callable[[str], None] = str, **changes: Any) -> Any:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
        sink = make_sink()
        sleep = changes.pop("sleep", None)
        sink.sleep = sleep or sink.sleep
        try:
            sink.begin(replace(TARGET, **changes), tell)
        except SinkError:
            sink.close()
            raise
        return sink

    return begin


def stored_lease(stub: Any) -> Any:
    """The payload of the lease; None: nobody has it."""
    records, _ = stub.local.scroll("docs", limit=1000)
    (found,) = [r.payload[LEASE_KEY] for r in records if LEASE_KEY in r.payload] or [None]
    return found


def kill(sink: Any) -> None:
    """End a load as SIGKILL does: no more beats, the lock is released, the lease stays."""
    lease = vars(sink)["_lease"]
    vars(lease)["_stop"].set()
    vars(sink)["_lock"].release()


def daemons() -> list[bool]:
    """Of each thread that beats, whether it lets the program end."""
    return [each.daemon for each in threading.enumerate() if each.name == "embedlib-lease"]


def test_a_load_on_another_machine_is_refused_while_the_first_lives(
    on_machine: Callable[..., Any], stub: Any
) -> None:
    first = on_machine("a")
    holder = stored_lease(stub)
    told: list[str] = []
    with pytest.raises(SinkError) as caught:
        on_machine("b", told.append, sleep=lambda _: vars(first)["_lease"].beat())
    who = f"process {holder['process']} on {holder['host']} since {holder['since']}"
    assert str(caught.value) == (
        f"{first.name} is being written by {who}; wait for it or stop it: 30 s after its last sign "
        "of life the lease is free"
    )
    assert told == [
        f"{first.name} was being written by {who}; waiting up to 30 s to see whether it still is"
    ]
    rows = make_rows(4)
    first.write(rows, make_vectors(rows))  # which keeps it
    assert first.inspect().num_rows == len(list(first.scan())) == 4  # the lease is not a row


def test_the_lease_of_a_dead_load_is_taken_after_a_while(
    on_machine: Callable[..., Any], waits: list[float], stub: Any
) -> None:
    kill(on_machine("a"))
    second = on_machine("b")
    assert sum(waits) == EXPIRES_S
    assert stored_lease(stub)["token"] == vars(vars(second)["_lease"])["_own"].token


def test_on_the_same_machine_the_next_load_does_not_wait(
    on_machine: Callable[..., Any], waits: list[float]
) -> None:
    for _ in range(3):
        kill(on_machine("a"))
    on_machine("a")
    assert waits == []


def test_a_lease_that_was_given_back_is_free_at_once(
    on_machine: Callable[..., Any], waits: list[float], stub: Any
) -> None:
    first = on_machine("a")
    first.close()
    assert stored_lease(stub) is None
    on_machine("b").close()
    first = on_machine("a")
    on_machine("b", sleep=lambda _: first.close())  # while the second one watches
    assert waits == []


def test_a_load_that_was_taken_over_does_not_give_back_the_lease_of_another(
    on_machine: Callable[..., Any], stub: Any
) -> None:
    first = on_machine("a")
    vars(vars(first)["_lease"])["_stop"].set()  # it is suspended
    second = on_machine("b")
    first.close()
    assert stored_lease(stub)["token"] == vars(vars(second)["_lease"])["_own"].token


def test_a_load_that_was_taken_over_is_lost_also_when_the_other_ends_at_that_moment(
    on_machine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = vars(on_machine("a"))["_lease"]
    vars(lease)["_stop"].set()  # it is suspended
    second, look = on_machine("b"), lease._look

    def look_and_end() -> Holder | None:
        holder: Holder | None = look()
        second.close()
        return holder

    monkeypatch.setattr(lease, "_look", look_and_end)
    lease.beat()
    with pytest.raises(SinkError, match="this load stops"):
        lease.check()


def test_a_beat_is_not_asked_for_again_at_once(
    on_machine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, stub: Any
) -> None:
    lease = vars(on_machine("a"))["_lease"]
    vars(lease)["_stop"].set()
    num_requests = len(stub.requests)
    lease.check()
    assert len(stub.requests) == num_requests, "it was just taken"
    now = lease._last_beat_s + EXPIRES_S + 1
    monkeypatch.setattr(lease_module, "_now_s", lambda: now)
    counts = []
    for _ in range(3):
        lease.check()
        counts.append(len(stub.requests))
    assert counts == [counts[0]] * 3
    assert stored_lease(stub)["beat"] == 1


def test_of_two_that_find_a_dead_load_one_wins(on_machine: Callable[..., Any], stub: Any) -> None:
    kill(on_machine("a"))
    third: list[Any] = []

    def meanwhile(_seconds: float) -> None:
        """At the last look of the second machine the third one takes over."""
        if len(stub_reads(stub)) == int(EXPIRES_S) + 2:
            third.append(on_machine("c"))

    def stub_reads(stub: Any) -> list[Any]:
        return [method for method, _ in stub.requests if method == "ReadLease"]

    with pytest.raises(SinkError, match="is being written by process"):
        on_machine("b", sleep=meanwhile)
    assert stored_lease(stub)["token"] == vars(vars(third[0])["_lease"])["_own"].token


def test_a_load_that_lives_after_the_last_look_keeps_its_lease(
    on_machine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, stub: Any
) -> None:
    lease, put = vars(on_machine("a"))["_lease"], lease_module.Lease._put

    def be_too_late(other: Any, token: str, beat: int | None = None) -> None:
        if other is not lease:
            lease.beat()
        put(other, token, beat)

    monkeypatch.setattr(lease_module.Lease, "_put", be_too_late)
    with pytest.raises(SinkError, match="is being written by process"):
        on_machine("b")
    assert stored_lease(stub)["token"] == vars(lease)["_own"].token


def test_a_replica_may_show_the_lease_a_moment_later(
    on_machine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = vars(on_machine("a"))["_lease"]
    read, answers = lease._read, list[Any]([None])
    monkeypatch.setattr(lease, "_read", lambda *_: answers.pop() if answers else read())
    monkeypatch.setattr(lease_module, "_LOOK_S", 0)
    lease.beat()
    lease.check()
    assert answers == []


def test_of_two_that_take_a_dead_loads_lease_at_once_one_wins(
    on_machine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, stub: Any
) -> None:
    kill(on_machine("a"))
    put, winners = lease_module.Lease._put, list[Any]()

    def be_too_late(lease: Any, token: str, beat: int | None = None) -> None:
        """Write behind the load of a third machine."""
        with monkeypatch.context() as undone:
            undone.setattr(lease_module.Lease, "_put", put)
            winners.append(on_machine("c"))
        put(lease, token, beat)

    with monkeypatch.context() as late:
        late.setattr(lease_module.Lease, "_put", be_too_late)
        with pytest.raises(SinkError, match="is being written by process"):
            on_machine("b")
    assert stored_lease(stub)["token"] == vars(vars(winners[0])["_lease"])["_own"].token


def test_a_load_that_slept_too_long_stops(
    on_machine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = on_machine("a")
    kill(first)
    second = on_machine("b")
    monkeypatch.setattr(lease_module, "EXPIRES_S", -1.0)  # as if the machine was suspended
    rows = make_rows(4)
    for action in (
        lambda: first.write(rows, make_vectors(rows)),
        lambda: first.write_metadata(rows),
        lambda: first.delete([rows[0].id]),
        first.finish,
    ):
        with pytest.raises(SinkError, match=r"process \d+ on .* has taken over; written rows are"):
            action()
    second.write(rows, make_vectors(rows))


def test_a_load_that_slept_until_another_one_had_ended_stops(
    on_machine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, stub: Any
) -> None:
    first = on_machine("a")
    kill(first)
    second = on_machine("b", recreate=True, fingerprint="folder:another-model")
    rows = make_rows(4)
    second.write(rows, make_vectors(rows))
    second.close()
    monkeypatch.setattr(lease_module, "EXPIRES_S", -1.0)
    monkeypatch.setattr(lease_module, "_LOOK_S", 0.0)
    for _ in range(2):
        with pytest.raises(SinkError, match="its lease is gone: another load has"):
            first.write(rows[:1], make_vectors(rows[:1]))
    assert stored_lease(stub) is None


@pytest.mark.parametrize(
    ("method", "act"),
    [
        ("Upsert", lambda sink, rows: sink.write(rows, make_vectors(rows))),
        ("Delete", lambda sink, rows: sink.delete([rows[0].id])),
        ("UpdateBatch", lambda sink, rows: sink.write_metadata(rows)),
        ("Update", lambda sink, rows: sink.save_position("here")),
    ],
)
def test_a_load_that_lost_its_lease_while_it_waited_changes_nothing(
    on_machine: Callable[..., Any],
    aborting: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    stub: Any,
    method: str,
    act: Callable[..., None],
) -> None:
    first, rows = on_machine("a"), make_rows(4)
    first.write(rows, make_vectors(rows))
    first.settle()
    kill(first)

    taken: list[Any] = []

    def be_cut_off(_seconds: float) -> None:
        """Wait so long before the request is sent again that another machine takes over."""
        taken.extend([on_machine("b"), stub.count(method)])
        monkeypatch.setattr(lease_module, "EXPIRES_S", -1.0)

    first.sleep = be_cut_off
    stub.fail(method, aborting("UNAVAILABLE"))
    with pytest.raises(SinkError, match=r"this load stops, .* has taken over; written rows are"):
        act(first, rows)
    assert stub.count(method) == taken[1]


def test_an_answer_that_comes_late_does_not_prolong_the_lease(
    on_machine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, stub: Any
) -> None:
    """The others have counted since the server wrote the beat."""
    now = [0.0]
    monkeypatch.setattr(lease_module, "_now_s", lambda: now[0])
    first, rows = on_machine("a"), make_rows(4)
    kill(first)

    def be_late(_context: Any) -> None:
        now[0] += EXPIRES_S + 1

    stub.fail("ReadLease", be_late)
    vars(first)["_lease"].beat()
    on_machine("b")
    with pytest.raises(SinkError, match="has taken over"):
        first.write(rows, make_vectors(rows))


def test_a_closed_load_sends_nothing_again(
    on_machine: Callable[..., Any], aborting: Callable[..., Any], stub: Any
) -> None:
    """After Ctrl-C another thread closes what waits for the server."""
    sink, rows = on_machine("a"), make_rows(4)
    sink.sleep = lambda _seconds: sink.close()
    stub.fail("Upsert", aborting("UNAVAILABLE"))
    with pytest.raises(SinkError, match="begin was not called"):
        sink.write(rows, make_vectors(rows))
    assert stub.count("Upsert") == 1

    sink = on_machine("a")
    sink.write(rows, make_vectors(rows))
    sink.close()
    assert sink.inspect().num_rows == 4
    assert stub.count("Upsert") == 2


@pytest.mark.parametrize("action", ["inspect", "delete"])
def test_a_load_that_lost_its_lease_does_not_repeat_what_it_wrote_last(
    on_machine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    first = on_machine("a")
    rows = make_rows(4)
    first.write(rows, make_vectors(rows))
    kill(first)
    second = on_machine("b", recreate=True, fingerprint="folder:another-model")
    monkeypatch.setattr(lease_module, "EXPIRES_S", -1.0)
    with pytest.raises(SinkError, match="has taken over"):
        getattr(first, action)(*[[rows[0].id]][: action == "delete"])
    assert second.inspect().num_rows == 0


def test_a_server_that_hangs_does_not_keep_a_load_from_ending(
    on_machine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, stub: Any
) -> None:
    monkeypatch.setattr(lease_module, "BEAT_S", 0.0)
    monkeypatch.setattr(lease_module, "_TIMEOUT_S", 0)
    hangs, goes_on, answered = threading.Event(), threading.Event(), list[bool]()

    def hang(_context: Any) -> None:
        hangs.set()
        answered.append(goes_on.wait(WAIT_SECONDS))

    sink = on_machine("a")
    stub.fail("ReadLease", hang)
    assert hangs.wait(WAIT_SECONDS)
    sink.close()
    assert answered == []
    goes_on.set()


def test_a_server_that_is_gone_does_not_keep_a_load_from_ending(
    on_machine: Callable[..., Any], aborting: Callable[..., Any], waits: list[float], stub: Any
) -> None:
    sink = on_machine("a")
    stub.fail("ReadLease", aborting("UNAVAILABLE"))
    sink.close()
    assert stored_lease(stub) is not None
    on_machine("a")  # which finds the lock free, and the lease its own
    assert waits == []


def test_of_two_threads_that_close_a_load_the_first_gives_the_lease_back(
    on_machine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, stub: Any
) -> None:
    """And the second lets the connection, and the lock of this machine, be until then."""
    sink = on_machine("a")
    asked, is_closed = threading.Event(), threading.Event()

    def be_slow(_context: Any) -> None:
        asked.set()
        is_closed.wait(0.3)

    def close_early() -> None:
        is_closed.set()
        close()

    close = vars(sink)["_connection"].close
    monkeypatch.setattr(vars(sink)["_connection"], "close", close_early)
    stub.fail("ReadLease", be_slow)
    threads = [threading.Thread(target=sink.close) for _ in range(2)]
    threads[0].start()
    assert asked.wait(WAIT_SECONDS)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert stored_lease(stub) is None


def test_a_lease_outlives_the_collection_that_its_holder_drops(
    on_machine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A beat before the lease is in the new one finds none."""
    monkeypatch.setattr(lease_module, "_LOOK_S", 0.0)
    on_machine("a").close()
    create = ServerSink.create

    def create_and_beat(sink: ServerSink, mark: Any) -> None:
        create(sink, mark)
        vars(sink)["_lease"].beat()

    monkeypatch.setattr(ServerSink, "create", create_and_beat)
    sink = on_machine("a", recreate=True)
    assert daemons() == [True], "one thread, though the lease was taken twice"
    rows = make_rows(4)
    sink.write(rows, make_vectors(rows))
    assert sink.inspect().num_rows == 4


def test_a_lease_that_cannot_be_seen_after_it_was_taken_is_none(
    on_machine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    monkeypatch.setattr(lease_module.Lease, "_read", lambda *_: None)
    with pytest.raises(SinkError, match="is being written by another load; wait for it or stop"):
        on_machine("a")
    assert waits == [lease_module._LOOK_S] * lease_module._NUM_LOOKS


def test_the_lease_is_kept_by_beats(
    on_machine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, stub: Any
) -> None:
    monkeypatch.setattr(lease_module, "BEAT_S", 0.0)
    sink = on_machine("a")
    has_beaten = threading.Event()
    original = stub._Upsert
    stub._Upsert = lambda *arguments: (has_beaten.set(), original(*arguments))[1]
    assert has_beaten.wait(WAIT_SECONDS)
    assert daemons() == [True]
    sink.close()
    assert daemons() == []


def test_recreate_does_not_drop_the_rows_of_a_load_that_lives(
    on_machine: Callable[..., Any], stub: Any
) -> None:
    first = on_machine("a")
    rows = make_rows(4)
    first.write(rows, make_vectors(rows))
    with pytest.raises(SinkError, match="is being written by"):
        on_machine("b", recreate=True, sleep=lambda _: vars(first)["_lease"].beat())
    assert first.inspect().num_rows == 4
    first.close()
    second = on_machine("b", recreate=True)
    assert stored_lease(stub) is not None
    assert second.inspect().num_rows == 0


def test_shards_have_leases_of_their_own(
    on_machine: Callable[..., Any], waits: list[float]
) -> None:
    on_machine("a", shard="1/2")
    on_machine("b", shard="2/2")
    assert waits == []


def test_a_holder_is_stored_with_all_fields() -> None:
    holder = Holder(token="t", beat=3, host="h", process=7, since="2026-01-02 03:04:05 UTC")
    assert Holder(**asdict(holder)) == holder
    assert str(holder) == "process 7 on h since 2026-01-02 03:04:05 UTC"


def test_who_begins_again_has_only_the_lease_of_that_load(
    on_machine: Callable[..., Any], waits: list[float]
) -> None:
    """And sends nothing again of the rows that were dropped."""
    sink = on_machine("a", shard="1/2")
    rows = make_rows(4)
    sink.write(rows, make_vectors(rows))
    sink.begin(replace(TARGET, shard="2/2", recreate=True), str)
    assert sink.inspect().num_rows == 0
    on_machine("b", shard="1/2")
    assert waits == []
    with pytest.raises(SinkError, match="is being written by"):
        on_machine("b", shard="2/2", sleep=lambda _: vars(sink)["_lease"].beat())


def test_a_machine_keeps_its_token(tmp_path: Path) -> None:
    file = tmp_path / "a.token"
    token = lease_module._read_token(file, "docs")
    assert lease_module._read_token(file, "docs") == token
    file.write_text("\n")  # of a load that was killed before it wrote one
    new = lease_module._read_token(file, "docs")
    assert len(new) == len(token)
    assert new == file.read_text() != token
    file.write_bytes(b"\xff")
    for place in (file, tmp_path):
        with pytest.raises(SinkError, match=f"^cannot write docs: {place}: "):
            lease_module._read_token(place, "docs")
