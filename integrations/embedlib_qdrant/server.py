"""`qdrant://host:port/collection`: a Qdrant server, reached over gRPC.

The mark is stored in the collection's metadata by the request that creates the collection, so a
collection of embedlib always has one. While a new collection is loaded its HNSW graph is switched
off (m = 0), and `finish` switches it on with the m in the mark, also in a later run after a kill.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from embedlib.errors import SinkError
from embedlib.indexing import (
    BadRow,
    FileLock,
    Row,
    SinkState,
    SinkUrl,
    Target,
    Tell,
    UnstorableRowsError,
    Vectors,
    host_of,
    lock_folder,
)
from embedlib_qdrant.collection import MARK_KEY, CollectionSink
from embedlib_qdrant.collection_name import check_collection_name
from embedlib_qdrant.collection_options import GivenOptions, parse_options
from embedlib_qdrant.connection import Connection
from embedlib_qdrant.lease import Lease
from embedlib_qdrant.points import DISTANCES, SOURCE_ID_KEY, Mark
from embedlib_qdrant.retry import retry
from embedlib_qdrant.upserts import PointEncoder

API_KEY = "QDRANT_API_KEY"
DEFAULT_PORT = 6334
"""Source: `service.grpc_port` of Qdrant's config/config.yaml."""
OLDEST_VERSION = (1, 16)
"""The first version with metadata of collections."""

_IN_FLIGHT = 4
"""Write requests that the server has at the same time; it applies them one after the other."""
_POLL_S = 1.0

T = TypeVar("T")


def open_sink(url: SinkUrl) -> ServerSink:
    """Make the sink of `qdrant://host:port/collection` or `qdrant+https://...`."""
    if "@" in url.location:
        # The message does not quote the URL: it contains a secret.
        raise SinkError(
            f"{url.scheme}: a URL takes no user, password or API key; set the environment "
            f"variable {API_KEY} instead"
        )
    given = parse_options(url.take("on_disk", "quantization", "m", "ef_construct", "shards"))
    example = f"{url.scheme}://localhost:{DEFAULT_PORT}/documents"
    try:
        parts = urlsplit(url.location)
        host, port = parts.hostname, parts.port or DEFAULT_PORT
    except ValueError as error:
        raise SinkError(f"{url.scheme}:{url.location}: {error}; such as {example}") from error
    collection = unquote(parts.path.strip("/"))
    if not host or not collection or "/" in collection:
        raise SinkError(
            f"{url.scheme}:{url.location} needs a host and a collection, such as {example}"
        )
    check_collection_name(collection)
    connection = Connection(
        host,
        port,
        is_encrypted=url.scheme == "qdrant+https",
        api_key=os.environ.get(API_KEY) or None,
    )
    name = f"{url.scheme}://{host_of(url.location)}/{collection}"
    return ServerSink(name, connection, collection, given)


class ServerSink(CollectionSink):
    """A collection of a server."""

    def __init__(
        self, name: str, connection: Connection, collection: str, given: GivenOptions
    ) -> None:
        super().__init__(name, collection, given)
        self._connection = connection
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
            tell=self.tell or _ignore,
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
        if connection.api_key and not connection.is_encrypted and self.tell is not None:
            self.tell(f"{self.name}: the API key is sent unencrypted; use qdrant+https")

    def take_lease(self) -> None:
        """Exclude writers on other machines."""
        if self._lease is None:
            self._lease = Lease(
                *(self.collection, self._shard, self._lock_file().with_suffix(".token")),
                *(self.name, self.connect(), self.call),
            )
        self._lease.take(self.tell or _ignore, self.sleep)

    def begin(self, target: Target, tell: Tell) -> None:
        """Open or create the collection, with the index if nothing can be counted without it."""
        super().begin(target, tell)
        strict = self.read_info().config.strict_mode_config
        if strict is not None and strict.enabled:
            self.call(self._create_payload_index)

    def check_lease(self) -> None:
        """Raise an error if another writer has taken over."""
        if self._lease is not None:
            self._lease.check()

    def create(self, mark: Mark) -> None:
        """Create the collection, without a graph."""
        version = str(self.call(lambda: self.connect().info()).version)
        if _parse_version(version) < OLDEST_VERSION:
            raise SinkError(
                f"{self.name}: the server is Qdrant {version}; embedlib stores the model's name in "
                "the metadata of a collection, which needs 1.16 or newer"
            )
        try:
            self.call(lambda: self._create(mark))
        except SinkError:
            # A repeated request fails if the first one succeeded and only its answer was lost.
            if self.read_mark() != mark:
                raise

    def store(self, rows: Sequence[Row], vectors: Vectors) -> None:
        """Send requests, several at a time, and wait until the server has applied all of them.

        The server applies the requests to a shard in the order in which it took them, so the last
        one need be awaited only, after it has taken all others.
        """
        self._has_changed = True
        awaits_all = self.require_begin().options.shards > 1
        bad_rows, in_flight = list[BadRow](), deque[tuple[Any, Any]]()
        requests = PointEncoder(vectors.shape[1]).requests(self.collection, rows, vectors, bad_rows)
        last = None
        for request in requests:
            if last is not None:
                last.wait = awaits_all
                in_flight.append((last, self._connection.start_upsert(last)))
            if len(in_flight) == _IN_FLIGHT:
                self._settle(*in_flight.popleft())
            last = request
        while in_flight:
            self._settle(*in_flight.popleft())
        if last is not None:
            last.wait = True
            self._settle(last, self._connection.start_upsert(last))
        if bad_rows:
            raise UnstorableRowsError(self.name, bad_rows)

    def inspect(self) -> SinkState | None:
        """Return what is stored."""
        info = self.read_info()
        if info is None:
            return None
        mark = self.mark_of(info.config.metadata)
        count = self.call(
            lambda: self.connect().count(self.collection, self.only_ours(), exact=True)
        )
        return mark.to_state(count.count, _describe_index(info, count.count))

    def finish(self) -> None:
        """Build the index of `source_id`, switch the graph on and wait until it is built."""
        mark = self.require_begin()
        self.check_lease()
        info = self.read_info()
        if SOURCE_ID_KEY not in info.payload_schema:
            self.call(self._create_payload_index)
        if info.config.hnsw_config.m != mark.options.m:
            self.call(lambda: self._switch_graph_on(mark))
            self._has_changed = True
        last_progress = None
        # After changes, one green status may be from before the optimizer has started.
        needed_greens, greens = (2 if self._has_changed else 1), 0
        while True:
            info = self.read_info()
            if info.status == self.models.CollectionStatus.RED:
                raise SinkError(f"{self.name}: the server's optimizer failed: {_status_of(info)}")
            is_green = info.status == self.models.CollectionStatus.GREEN
            greens = greens + 1 if is_green else 0
            if greens == needed_greens:
                break
            progress = f"{info.indexed_vectors_count or 0:,} vectors are in it"
            if not is_green and progress != last_progress and self.tell is not None:
                self.tell(f"{self.name}: building the index, {progress}")
                last_progress = progress
            self.sleep(_POLL_S)
        self._has_changed = False

    def disconnect(self) -> None:
        """Give the lease back, close the connection and release the lock."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None
        self._connection.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _lock_file(self) -> Path:
        connection = self._connection
        place = f"{connection.host}:{connection.port}/{self.collection}#{self._shard or ''}"
        digest = hashlib.blake2b(place.encode(), digest_size=16).hexdigest()
        return lock_folder() / f"qdrant-{digest}.lock"

    def _settle(self, request: Any, answer: Any) -> None:
        """Wait for the answer of a request that was sent; send it again after a failure."""
        attempts = iter([answer])
        self.call(lambda: (next(attempts, None) or self._connection.start_upsert(request)).result())

    def _create_payload_index(self) -> None:
        self.connect().create_payload_index(
            self.collection, SOURCE_ID_KEY, self.models.PayloadSchemaType.KEYWORD, wait=True
        )

    def _create(self, mark: Mark) -> None:
        models, options = self.models, mark.options
        self.connect().create_collection(
            self.collection,
            vectors_config=models.VectorParams(
                size=mark.dim,
                distance=models.Distance(DISTANCES[mark.similarity]),
                on_disk=options.on_disk,
            ),
            hnsw_config=models.HnswConfigDiff(
                m=0, ef_construct=options.ef_construct, on_disk=options.on_disk
            ),
            quantization_config=self._quantization(options.quantization),
            shard_number=options.shards,
            metadata={MARK_KEY: mark.to_json()},
        )

    def _switch_graph_on(self, mark: Mark) -> None:
        self.connect().update_collection(
            self.collection, hnsw_config=self.models.HnswConfigDiff(m=mark.options.m)
        )

    def _quantization(self, name: str) -> Any:
        # always_ram: a search reads these small copies first.
        models = self.models
        if name == "scalar":
            return models.ScalarQuantization(
                scalar=models.ScalarQuantizationConfig(
                    type=models.ScalarType.INT8, quantile=0.99, always_ram=True
                )
            )
        if name == "binary":
            return models.BinaryQuantization(
                binary=models.BinaryQuantizationConfig(always_ram=True)
            )
        return None


def _parse_version(version: str) -> tuple[int, ...]:
    numbers = version.split("-")[0].split(".")
    return tuple(int(number) for number in numbers[:2] if number.isdecimal())


def _describe_index(info: Any, num_rows: int) -> str:
    if info.config.hnsw_config.m == 0:
        return "none yet, exact scan: the load was not finished"
    state = "" if info.status.value == "green" else f", {info.status.value}"
    if not info.indexed_vectors_count and not state:
        threshold = info.config.optimizer_config.indexing_threshold
        return (
            "none needed, exact scan: the server builds one when a segment has more than "
            f"{threshold:,} kB of vectors"
            if threshold
            else "none, exact scan: the server's indexing_threshold is 0"
        )
    return f"hnsw, {info.indexed_vectors_count or 0} of {num_rows} points{state}"


def _status_of(info: Any) -> str:
    return str(getattr(info.optimizer_status, "error", info.status))


def _ignore(_line: str) -> None:
    pass
