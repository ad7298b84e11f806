"""`qdrant://host:port/collection`: a Qdrant server, reached over gRPC.

The mark is stored in the collection's metadata by the request that creates the collection, so a
collection of embedlib always has one. `finish` builds what a search needs, also in a later run
after a kill: see `index_state`.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from embedlib.errors import SinkError
from embedlib.indexing import (
    BadRow,
    FileLock,
    Row,
    SinkState,
    SparseVector,
    Target,
    Tell,
    UnstorableRowsError,
    Vectors,
    lock_folder,
)
from embedlib_qdrant.collection import CollectionSink
from embedlib_qdrant.collection_options import GivenOptions
from embedlib_qdrant.connection import Connection
from embedlib_qdrant.creation import creation_arguments
from embedlib_qdrant.index_state import building_changes, describe_index, pausing_changes
from embedlib_qdrant.lease import Lease
from embedlib_qdrant.load_requests import LoadRequests
from embedlib_qdrant.metadata_limits import SERVER_LIMITS
from embedlib_qdrant.names import create_aliases, find_collection, list_aliases
from embedlib_qdrant.points import SOURCE_ID_KEY, SPARSE_NAME, Mark
from embedlib_qdrant.retry import T, retry
from embedlib_qdrant.server_version import METADATA, RANKING, check_version
from embedlib_qdrant.upserts import PointEncoder

POSITION_KEY = "embedlib_position"
"""Key in the collection's metadata; without a position it is null."""
_IN_FLIGHT = 4
"""Write requests that the server has at the same time; it applies them one after the other."""
_CHECKPOINT_ROWS = 16_384
"""Rows that the server may have in its write-ahead log and not have applied."""
_POLL_S = 1.0


class ServerSink(CollectionSink):
    """A collection of a server."""

    is_shared = True
    metadata_limits = SERVER_LIMITS

    def __init__(
        self,
        name: str,
        connection: Connection,
        collection: str,
        given: GivenOptions,
        requests: LoadRequests,
    ) -> None:
        super().__init__(name, collection, given)
        self._connection = connection
        self._requests = requests
        self._alias = collection
        self._aliases: list[str] = []
        self._unapplied: set[UUID] = set()
        self._last_request = b""
        self.sleep: Callable[[float], None] = time.sleep
        self._lock: FileLock | None = None
        self._shard: str | None = None
        self._lease: Lease | None = None
        self._has_answered = False
        self._has_changed = False

    def connect(self) -> Any:
        """Return the client, created at the first call."""
        return self._connection.client

    def call(self, action: Callable[[], T]) -> T:
        """Run a request; repeat it after temporary failures."""
        result = retry(
            action,
            name=self.name,
            has_answered=self._has_answered,
            is_load=self._lock is not None,
            tell=self.tell,
            sleep=self.sleep,
        )
        self._has_answered = True
        return result

    def lock(self, shard: str | None) -> None:
        """Take a lock on this machine, one per shard."""
        folder = lock_folder()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SinkError(f"{self.name}: cannot create {folder}: {error.strerror}") from error
        self._shard = shard
        self._lock = self._lock or FileLock(self._lock_file(), self.name)
        connection = self._connection
        if connection.api_key and not connection.is_encrypted:
            self.tell(f"{self.name}: the API key is sent unencrypted; use qdrant+https")

    def take_lease(self) -> None:
        """Exclude writers on other machines."""
        if self._lease is None:
            self._lease = Lease(
                *(self.collection, self._shard, self._lock_file().with_suffix(".token")),
                *(self.name, self.connect(), self.call),
            )
        self._lease.take(self.tell, self.sleep)

    def begin(self, target: Target, tell: Tell) -> None:
        """Open or create the collection, with the index if nothing can be counted without it."""
        # An alias may be moved to another collection while this one is written.
        self.collection = self.call(lambda: find_collection(self.connect(), self._alias))
        super().begin(target, tell)
        info = self._loaded_info()
        strict = info.config.strict_mode_config
        if strict is not None and strict.enabled:
            self._create_payload_index(SOURCE_ID_KEY, "keyword")
        self._update(pausing_changes(self.models, info))

    def drop(self) -> None:
        """Remove the collection; `create` gives its aliases back."""
        if self.collection != self._alias:
            raise SinkError(
                f"{self.name} is an alias of the collection {self.collection!r}; nothing was "
                "dropped; to drop its rows, name the collection itself"
            )
        self._aliases = self.call(lambda: list_aliases(self.connect(), self.collection))
        if self._aliases:  # named, since they would be gone with a load that is killed here
            self.tell(f"{self.name}: the new one gets its aliases: {' '.join(self._aliases)}")
        if self._requests.takes_snapshot:
            self._take_snapshot()
        super().drop()

    def check_full_text(self, language: str | None) -> None:
        """Refuse a language that the server does not know, and all if it does not rank."""
        super().check_full_text(language)
        if language is not None:
            self._check_version(RANKING)

    def check_lease(self) -> None:
        """Raise an error if another writer has taken over."""
        if self._lease is not None:
            self._lease.check()

    def check_new(self, mark: Mark) -> None:
        """Refuse options that do not fit together, and a server that is too old."""
        options = mark.options
        if options.write_consistency > options.replicas:  # a write would wait for the others
            raise SinkError(
                f"{self.name}: write_consistency={options.write_consistency} is more than replicas="
                f"{options.replicas}; give both, such as replicas=2&write_consistency=2"
            )
        if mark.sparse is not None and options.vector == SPARSE_NAME:
            raise SinkError(
                f"{self.name}: vector={SPARSE_NAME} is the name of the sparse vectors; give the "
                "others another one"
            )
        self._check_version(METADATA)

    def create(self, mark: Mark) -> None:
        """Create the collection, without a graph."""
        try:
            self.request(
                "create_collection", self.collection, **creation_arguments(self.models, mark)
            )
        except SinkError:
            # A repeated request fails if the first one succeeded and only its answer was lost.
            if self.read_mark() != mark:
                raise
        if self._aliases:
            self.call(
                lambda: create_aliases(self.connect(), self.models, self.collection, self._aliases)
            )

    def store(
        self, rows: Sequence[Row], vectors: Vectors, weights: Sequence[SparseVector] | None
    ) -> None:
        """Send requests, several at a time, and wait until the server has logged all of them.

        It applies them later, in the order in which it took them. With several shards that order
        is one for each shard, so all requests are applied before they are answered.
        """
        self._has_changed = True
        mark = self.require_begin()
        waits = mark.options.shards > 1
        bad_rows, in_flight = list[BadRow](), deque[tuple[bytes, Any]]()
        has_sent = False
        encoder = PointEncoder(mark.dim, mark.options.vector, is_named=mark.sparse is not None)
        for request in encoder.requests(self.collection, rows, vectors, bad_rows, weights):
            if len(in_flight) == _IN_FLIGHT:
                self._await(*in_flight.popleft(), waits)
            in_flight.append((request, self._send(request, waits)))
            self._last_request, has_sent = request, True
        while in_flight:
            self._await(*in_flight.popleft(), waits)
        if has_sent and not waits:  # or `settle` would repeat a request from before, or none
            self._unapplied.update(row.id for row in rows)
            if len(self._unapplied) >= _CHECKPOINT_ROWS:
                self.settle()
        if bad_rows:
            raise UnstorableRowsError(self.name, bad_rows)

    def settle(self, ids: Sequence[UUID] | None = None) -> None:
        """Repeat the last request and wait until it is applied, and so are all before it."""
        if not self._unapplied or (ids is not None and self._unapplied.isdisjoint(ids)):
            return
        self._await(self._last_request, None, waits=True)
        self._unapplied.clear()

    def inspect(self) -> SinkState | None:
        """Return what is stored; of an alias, what it stands for now."""
        self.settle()
        name = self.collection if self._has_begun else self._alias
        info = self.read_info(name)
        if info is None:
            return None
        mark = self.mark_of(info.config.metadata)
        count = self.request("count", name, self.only_ours(), exact=True)
        return mark.to_state(count.count, describe_index(info, count.count))

    def identify(self) -> SinkState | None:
        """Return the same without the number of rows: the server looks at each to count them."""
        info = self.read_info(self.collection if self._has_begun else self._alias)
        return None if info is None else self.mark_of(info.config.metadata).to_state(0, "")

    def finish(self) -> None:
        """Build the payload indexes and the graph, which uses them, and wait until all is built."""
        mark = self.require_begin()
        self.check_lease()
        self.settle()
        info = self._loaded_info()
        for field, kind in {SOURCE_ID_KEY: "keyword", **self._requests.payload_indexes}.items():
            built = info.payload_schema.get(field)
            if built is None or built.data_type.value != kind:
                self._create_payload_index(field, kind)
        self.build_text_index(info)
        self._update(building_changes(self.models, info, mark.options.m))
        self._wait_until_built()

    def _wait_until_built(self) -> None:
        last_progress = None
        # After changes, one green status may be from before the optimizer has started.
        needed_greens, greens = (2 if self._has_changed else 1), 0
        while True:
            info = self._loaded_info()
            if info.status == self.models.CollectionStatus.RED:
                why = getattr(info.optimizer_status, "error", info.status)
                raise SinkError(f"{self.name}: the server's optimizer failed: {why}")
            if info.status == self.models.CollectionStatus.GREY:
                # Since a restart it waits for a change; one without an option counts.
                asked = self.models.OptimizersConfigDiff()
                self.request("update_collection", self.collection, optimizers_config=asked)
            is_green = info.status == self.models.CollectionStatus.GREEN
            if not is_green and info.config.optimizer_config.max_optimization_threads == 0:
                self.tell(f"{self.name}: no index is built while max_optimization_threads is 0")
                break
            greens = greens + 1 if is_green else 0
            if greens == needed_greens:
                break
            progress = f"{info.indexed_vectors_count or 0:,} vectors are in it"
            if not is_green and progress != last_progress:
                self.tell(f"{self.name}: building the index, {progress}")
                last_progress = progress
            self.sleep(_POLL_S)
        self._has_changed = False

    def load_position(self) -> str | None:
        """Return what is in the metadata of the collection."""
        info = self.read_info()
        stored = None if info is None else (info.config.metadata or {}).get(POSITION_KEY)
        return None if stored is None else str(stored)

    def save_position(self, position: str | None) -> None:
        """Change the metadata of the collection, after all rows are applied."""
        self.settle()
        self.change("update_collection", self.collection, metadata={POSITION_KEY: position})

    def disconnect(self) -> None:
        """Give the lease back, close the connection and release the lock."""
        lease, lock = self._lease, self._lock  # two threads may close it
        if lease is not None:
            lease.release()
        self._connection.close()
        self._unapplied.clear()
        if lock is not None:
            lock.release()
        self._lease = self._lock = None

    def _lock_file(self) -> Path:
        connection = self._connection
        place = f"{connection.host}:{connection.port}/{self.collection}#{self._shard or ''}"
        digest = hashlib.blake2b(place.encode(), digest_size=16).hexdigest()
        return lock_folder() / f"qdrant-{digest}.lock"

    def _await(self, request: bytes, answer: Any, waits: bool) -> None:
        """Wait for a request's answer; send it if there is none yet, and again after a failure."""
        attempts = iter([answer])

        def attempt() -> Any:
            return (next(attempts, None) or self._send(request, waits)).result()

        self.call(attempt)

    def _send(self, request: bytes, waits: bool) -> Any:
        """Start a write request, unless another load took over while this one could not write."""
        self.require_begin()  # it may be closed meanwhile, and would connect again
        self.check_lease()
        return self._connection.start_upsert(request, waits=waits)

    def _loaded_info(self) -> Any:
        """Return the `CollectionInfo`; an error if somebody has removed the collection."""
        return self.request("get_collection", self.collection)

    def _check_version(self, needed: tuple[tuple[int, int], str]) -> None:
        check_version(str(self.request("info").version), needed, self.name)

    def _create_payload_index(self, field: str, kind: str) -> None:
        self.request(
            "create_payload_index",
            self.collection,
            field,
            self.models.PayloadSchemaType(kind),
            wait=True,
        )

    def _update(self, changes: dict[str, Any]) -> None:
        if changes:
            self.request("update_collection", self.collection, **changes)
            self._has_changed = True

    def _take_snapshot(self) -> None:
        name = self.call(lambda: self._connection.take_snapshot(self.collection))
        self.tell(f"{self.name}: the server keeps the snapshot {name}")
