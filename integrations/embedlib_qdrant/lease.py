"""The lease of a collection: one loader at a time, also from different machines.

Qdrant has no locks, but an upsert with a filter changes a point only if the stored one matches, and
that is atomic. The lease is a point in the collection itself, so that a key for this one collection
is enough to take it. It has no vector, so no search finds it, and none of the payload that embedlib
counts as a row. Its holder counts its beats up every few seconds.

No clock is compared with that of another machine: whoever wants the lease watches whether the beats
go on, for `EXPIRES_S` of its own time. On one machine a lock on a file decides, and the token in a
file beside it shows that the holder of the lease was a process which had that lock and has ended.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4, uuid5

from embedlib.errors import SinkError
from embedlib.indexing import import_extra

LEASE_KEY = "_embedlib_lease"
"""Of the payload."""
_NAMESPACE = UUID("d6a0fa46-5f0e-5c7b-9d9c-2f6f3d6c3a11")
"""Of the ids of leases. It must not change: two versions of embedlib would not see each other."""
BEAT_S = 5.0
EXPIRES_S = 30.0
"""Beats may be late: the server or the machine of the holder may be busy."""
_WATCH_S = 1.0
_NUM_LOOKS = 5
_LOOK_S = 0.2
_TIMEOUT_S = 5
"""Of each step that gives the lease back."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who has the lease.

    Attributes:
        token: of a machine and a destination; secret from nobody.
        beat: counts up while the holder lives.
        host: name of its machine.
        process: its id there.
        since: when it took the lease, by its own clock.
    """

    token: str
    beat: int
    host: str
    process: int
    since: str

    def __str__(self) -> str:
        """Return who it is, for a message."""
        return f"process {self.process} on {self.host} since {self.since}"


class Lease:
    """Takes, keeps and gives back the lease of a collection, or of one shard of the source."""

    def __init__(
        self,
        collection: str,
        shard: str | None,
        token_file: Path,
        name: str,
        client: Any,
        request: Callable[[Callable[[], Any]], Any],
    ) -> None:
        """Read the token; the caller holds the lock on the file beside it.

        Args:
            collection: its name on the server.
            shard: of the source; leases of different shards do not exclude each other.
            token_file: where this machine keeps its token of this destination.
            name: the destination, for messages.
            client: the QdrantClient.
            request: runs a request, and repeats it after temporary failures.
        """
        self._collection = collection
        self._id = str(uuid5(_NAMESPACE, shard or ""))
        self._name = name
        self._client = client
        self._request = request
        self._models = import_extra("qdrant_client.models", "qdrant")
        now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        self._own = Holder(
            token=_read_token(token_file, name),
            beat=0,
            host=socket.gethostname(),
            process=os.getpid(),
            since=now,
        )
        self._is_lost = False
        self._lost_to: Holder | None = None
        self._last_beat_s = 0.0
        self._guard = threading.Lock()
        self._releasing = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, tell: Callable[[str], None], sleep: Callable[[float], None]) -> None:
        """Become the holder, or stay it in a collection that was created again.

        Raises:
            SinkError: another holder is alive.
        """
        seen = self._request(self._read)
        if seen is not None and seen.token != self._own.token:
            seen = self._watch(seen, tell, sleep)
        token, beat = ("", None) if seen is None else (seen.token, seen.beat)
        with self._guard:  # against a beat that has found no lease before it was written again
            self._last_beat_s = _now_s()
            self._request(lambda: self._put(token, beat))
            holder = self._read_changed(seen, sleep)
            if holder is None or holder.token != self._own.token:
                raise self._refusal(holder or seen)
            self._is_lost = False
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._keep_beating, name="embedlib-lease", daemon=True
            )
            self._thread.start()

    def check(self) -> None:
        """Make sure that the lease is still held; asks the server only if the beats were late.

        Raises:
            SinkError: another load has taken it.
        """
        if _now_s() - self._last_beat_s > EXPIRES_S:
            self._request(self.beat)
        if self._is_lost:
            why = (
                "its lease is gone: another load has taken over and ended, or the collection was "
                "emptied or restored"
            )
            if self._lost_to is not None:
                why = f"it was not heard of for {EXPIRES_S:g} s, and {self._lost_to} has taken over"
            raise SinkError(f"{self._name}: this load stops, {why}; written rows are kept")

    def beat(self) -> None:
        """Show that the holder lives, and find out whether it still is the holder."""
        with self._guard:
            # Others count from when the server wrote the beat; the answer may come much later.
            started_s = _now_s()
            # First, since a lease that is gone would be written again.
            holder = self._look()
            if holder is not None and holder.token == self._own.token:
                self._own = replace(self._own, beat=self._own.beat + 1)
                self._put(self._own.token)
                holder = self._look()
            self._is_lost = holder is None or holder.token != self._own.token
            self._lost_to = holder
            self._last_beat_s = started_s

    def release(self) -> None:
        """Stop beating, and give the lease back if the server answers; may be called twice.

        Also by two threads: after Ctrl-C the one that writes may still wait for the server. The
        second waits for the first: it closes the connection, and admits the next load of this
        machine, whose lease has the same token.
        """
        self._stop.set()
        with self._releasing:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._give_back(thread)

    def _give_back(self, thread: threading.Thread) -> None:
        thread.join(_TIMEOUT_S)
        if thread.is_alive():
            return  # a beat waits for the server: the lease expires
        try:
            holder = self._read(_TIMEOUT_S)
            if holder is not None and holder.token == self._own.token:
                ids = self._models.PointIdsList(points=[self._id])
                self._client.delete(self._collection, ids, wait=True, timeout=_TIMEOUT_S)
        except Exception:
            return  # the server is gone, or the collection: the lease expires

    def _keep_beating(self) -> None:
        while not self._stop.wait(BEAT_S):
            try:
                self.beat()
            except Exception:
                continue  # the thread that writes meets the same failure and reports it

    def _watch(
        self, seen: Holder, tell: Callable[[str], None], sleep: Callable[[float], None]
    ) -> Holder | None:
        """Return a holder that shows no life, or None when the lease was given back."""
        tell(
            f"{self._name} was being written by {seen}; waiting up to {EXPIRES_S:g} s to see "
            "whether it still is"
        )
        for _ in range(int(EXPIRES_S / _WATCH_S)):
            sleep(_WATCH_S)
            now: Holder | None = self._request(self._read)
            if now is None:
                return None
            if now != seen:
                raise self._refusal(now)
        return seen

    def _read_changed(self, seen: Holder | None, sleep: Callable[[float], None]) -> Holder | None:
        """Return the holder after a change; a replica may show it a moment later."""
        for _ in range(_NUM_LOOKS):
            holder: Holder | None = self._request(self._read)
            if holder != seen or (holder is not None and holder.token == self._own.token):
                break
            sleep(_LOOK_S)
        return holder

    def _look(self) -> Holder | None:
        """Return the holder; a replica may show a new one a moment later."""
        for _ in range(_NUM_LOOKS):
            holder = self._read()
            if holder is not None or self._stop.wait(_LOOK_S):
                break
        return holder

    def _refusal(self, holder: Holder | None) -> SinkError:
        return SinkError(
            f"{self._name} is being written by {holder or 'another load'}; wait for it or stop it: "
            f"{EXPIRES_S:g} s after its last sign of life the lease is free"
        )

    def _read(self, timeout: int | None = None) -> Holder | None:
        # From one replica: with one of two nodes dead there is no majority.
        found = self._client.retrieve(
            self._collection, [self._id], with_payload=[LEASE_KEY], timeout=timeout
        )
        if not found or LEASE_KEY not in (found[0].payload or {}):
            return None
        return Holder(**found[0].payload[LEASE_KEY])

    def _put(self, token: str, beat: int | None = None) -> None:
        """Write the lease if the stored one has this token and beat, or if there is none."""
        # The only change by a condition that a server in strict mode takes without an index.
        self._client.upsert(
            self._collection,
            [
                self._models.PointStruct(
                    id=self._id, vector={}, payload={LEASE_KEY: asdict(self._own)}
                )
            ],
            update_filter=self._only(token, beat),
            # All changes go through one node that lives; STRONG would wait for one that is dead.
            ordering=self._models.WriteOrdering.MEDIUM,
            wait=True,
        )

    def _only(self, token: str, beat: int | None) -> Any:
        """Return the filter for the lease with this token, and this beat."""
        models = self._models
        must = [
            models.HasIdCondition(has_id=[self._id]),
            models.FieldCondition(key=f"{LEASE_KEY}.token", match=models.MatchValue(value=token)),
        ]
        if beat is not None:
            match = models.MatchValue(value=beat)
            must.append(models.FieldCondition(key=f"{LEASE_KEY}.beat", match=match))
        return models.Filter(must=must)


def _now_s() -> float:
    """Return a time that goes on while the machine is suspended, where the system has such."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _read_token(path: Path, name: str) -> str:
    """Return this machine's token of a destination, made at the first load."""
    try:
        if path.exists() and (token := path.read_text(encoding="utf-8").strip()):
            return token
        token = str(uuid4())
        path.write_text(token, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SinkError(f"cannot write {name}: {path}: {error}") from error
    return token
