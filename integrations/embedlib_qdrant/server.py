"""`qdrant://host:port/collection`: a Qdrant server, reached over gRPC.

The mark is in the collection's own metadata, made together with it in one request: there is no
instant at which a collection of ours has none. While a new collection is loaded its HNSW graph is
switched off (m = 0) and `finish` switches it on. The m to switch on is in the mark, so whoever
finishes the load, after whichever kill, finds it.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from embedlib.errors import SinkError
from embedlib.indexing import (
    FileLock,
    Row,
    SinkState,
    SinkUrl,
    Vectors,
    host_of,
    import_extra,
    lock_folder,
)
from embedlib_qdrant.collection import MARK_KEY, CollectionSink
from embedlib_qdrant.collection_options import GivenOptions, parse_options
from embedlib_qdrant.points import DISTANCES, SOURCE_ID_KEY, Mark, row_payload
from embedlib_qdrant.retry import retry

API_KEY = "QDRANT_API_KEY"
DEFAULT_PORT = 6334
"""Source: `service.grpc_port` of Qdrant's config/config.yaml."""
OLDEST_VERSION = (1, 16)
"""The first with metadata of collections."""

_TIMEOUT_S = 60
_NUM_RETRIES = 8
"""About two minutes."""
_NUM_FIRST_RETRIES = 3
"""Before the server has answered once: it is likelier that the address is wrong."""
_NOBODY_THERE = "check that the server runs, its host, and that the port is the one of gRPC (6334)"
_GO_ON = "what was written stays, run the same command again to go on"
_POLL_S = 1.0
_CHANNEL = {"grpc.initial_reconnect_backoff_ms": 500, "grpc.max_reconnect_backoff_ms": 5000}
"""gRPC's own wait between connections; by default up to two minutes, longer than our retries."""

T = TypeVar("T")


def open_sink(url: SinkUrl) -> ServerSink:
    """Make the sink of `qdrant://host:port/collection` or `qdrant+https://...`."""
    if "@" in url.location:
        # Nothing of it is quoted: it holds a secret.
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
    return ServerSink(
        f"{url.scheme}://{host_of(url.location)}/{collection}",
        host,
        port,
        collection,
        given,
        is_encrypted=url.scheme == "qdrant+https",
        api_key=os.environ.get(API_KEY) or None,
    )


class ServerSink(CollectionSink):
    """A collection of a server."""

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        collection: str,
        given: GivenOptions,
        *,
        is_encrypted: bool,
        api_key: str | None = None,
    ) -> None:
        super().__init__(name, collection, given)
        self._host = host
        self._port = port
        self._is_encrypted = is_encrypted
        self._api_key = api_key
        self.sleep: Callable[[float], None] = time.sleep
        self._client: Any = None
        self._lock: FileLock | None = None
        self._has_answered = False
        self._has_changed = False

    def connect(self) -> Any:
        """Return the client."""
        if self._client is None:
            module = import_extra("qdrant_client", "qdrant")
            with warnings.catch_warnings():
                # Of a key over an unencrypted connection; `lock` tells it in our own words.
                warnings.simplefilter("ignore", UserWarning)
                self._client = module.QdrantClient(
                    host=self._host,
                    grpc_port=self._port,
                    prefer_grpc=True,
                    https=self._is_encrypted,
                    api_key=self._api_key,
                    timeout=_TIMEOUT_S,
                    pool_size=1,
                    grpc_options=dict(_CHANNEL),
                    # It would ask over REST, in a thread of its own; `create` asks over gRPC.
                    check_compatibility=False,
                )
        return self._client

    def call(self, action: Callable[[], T]) -> T:
        """Run a request, and again where that may help."""
        result = retry(
            action,
            name=self.name,
            num_retries=_NUM_RETRIES if self._has_answered else _NUM_FIRST_RETRIES,
            remedy=_GO_ON if self._has_answered else _NOBODY_THERE,
            tell=self.tell or _ignore,
            sleep=self.sleep,
        )
        self._has_answered = True
        return result

    def lock(self, shard: str | None) -> None:
        """Take a lock on this machine: a server has none. Shards have one each."""
        place = f"{self._host}:{self._port}/{self.collection}#{shard or ''}"
        folder = lock_folder()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SinkError(f"{self.name}: cannot make {folder}: {error.strerror}") from error
        digest = hashlib.blake2b(place.encode(), digest_size=16).hexdigest()
        self._lock = self._lock or FileLock(folder / f"qdrant-{digest}.lock", self.name)
        if self._api_key and not self._is_encrypted and self.tell is not None:
            self.tell(f"{self.name}: the API key goes over the network as it is; use qdrant+https")

    def create(self, mark: Mark) -> None:
        """Make the collection, without a graph."""
        version = str(self.call(lambda: self.connect().info()).version)
        if _parse_version(version) < OLDEST_VERSION:
            raise SinkError(
                f"{self.name}: the server is Qdrant {version}; embedlib keeps what made a "
                "collection in its metadata, which needs 1.16 or newer"
            )
        try:
            self.call(lambda: self._create(mark))
        except SinkError:
            # A repeated request finds what the first one made before its answer was lost.
            if self.read_mark() != mark:
                raise

    def prepare(self, mark: Mark) -> None:
        """Have the index that filters use, before there are rows."""
        # A killed writer may have made the collection only.
        self.call(
            lambda: self.connect().create_payload_index(
                self.collection, SOURCE_ID_KEY, self.models.PayloadSchemaType.KEYWORD, wait=True
            )
        )
        self._has_changed = False

    def to_points(self, rows: Sequence[Row], vectors: Vectors) -> list[Any]:
        """Return protobuf points, with the vectors' bytes as they are."""
        self._has_changed = True
        grpc = import_extra("qdrant_client.grpc", "qdrant")
        payload_to_grpc = import_extra(
            "qdrant_client.conversions.conversion", "qdrant"
        ).payload_to_grpc
        # A DenseVector ends with its floats, little-endian: what is before them depends on their
        # number alone. Source: protobuf's encoding of packed repeated fields.
        dim = vectors.shape[1]
        prefix = grpc.DenseVector(data=[0.0] * dim).SerializeToString()[: -4 * dim]
        points = []
        for row, vector in zip(rows, vectors.astype("<f4", copy=False), strict=True):
            point = grpc.PointStruct(
                id=grpc.PointId(uuid=str(row.id)), payload=payload_to_grpc(row_payload(row))
            )
            point.vectors.vector.dense.MergeFromString(prefix + vector.tobytes())
            points.append(point)
        return points

    def upsert(self, points: list[Any]) -> None:
        """Send points as one request and wait until they can be read."""
        # Not the client's `upsert`: it takes vectors as lists of Python floats, at twice the time.
        grpc = import_extra("qdrant_client.grpc", "qdrant")
        request = grpc.UpsertPoints(collection_name=self.collection, points=points, wait=True)
        self.connect().grpc_points.Upsert(request, timeout=_TIMEOUT_S)

    def inspect(self) -> SinkState | None:
        """Return what is there."""
        info = self.read_info()
        if info is None:
            return None
        mark = self.mark_of(info.config.metadata)
        count = self.call(
            lambda: self.connect().count(self.collection, self.only_ours(), exact=True)
        )
        return mark.to_state(count.count, _describe_index(info))

    def finish(self) -> None:
        """Switch the graph on and wait until it is built."""
        mark = self.require_begin()
        if self.read_info().config.hnsw_config.m != mark.options.m:
            self.call(lambda: self._switch_graph_on(mark))
            self._has_changed = True
        told = None
        # One look may fall between the end of the writing and the start of the optimizer.
        needed_greens, greens = (2 if self._has_changed else 1), 0
        while True:
            info = self.read_info()
            if info.status == self.models.CollectionStatus.RED:
                raise SinkError(f"{self.name}: the server's optimizer failed: {_status_of(info)}")
            is_green = info.status == self.models.CollectionStatus.GREEN
            greens = greens + 1 if is_green else 0
            if greens == needed_greens:
                break
            progress = f"{info.indexed_vectors_count or 0} of {info.points_count or 0} points"
            if not is_green and progress != told and self.tell is not None:
                self.tell(f"{self.name}: building the index, {progress}")
                told = progress
            self.sleep(_POLL_S)
        self._has_changed = False

    def disconnect(self) -> None:
        """Close the connection and give the lock up."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

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
        # always_ram: the small copy is what a search reads, and it fits.
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


def _describe_index(info: Any) -> str:
    if info.config.hnsw_config.m == 0:
        return "none yet, exact scan: the load was not finished"
    state = "" if info.status.value == "green" else f", {info.status.value}"
    return f"hnsw, {info.indexed_vectors_count or 0} of {info.points_count or 0} points{state}"


def _status_of(info: Any) -> str:
    return str(getattr(info.optimizer_status, "error", info.status))


def _ignore(_line: str) -> None:
    pass
