"""`qdrant://host:port/collection`: a Qdrant server, reached over gRPC.

The mark is stored in the collection's metadata by the request that creates the collection, so a
collection of embedlib always has one. While a new collection is loaded its HNSW graph is switched
off (m = 0), and `finish` switches it on with the m in the mark, also in a later run after a kill.
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
"""The first version with metadata of collections."""

_TIMEOUT_S = 60
_NUM_RETRIES = 8
"""About two minutes."""
_NUM_FIRST_RETRIES = 3
"""Before the first answer of the server: the address is then more likely to be wrong."""
_CHECK_ADDRESS = "check that the server runs, its host, and that the port is the one of gRPC (6334)"
_RUN_AGAIN = "written rows are kept, run the same command again to continue"
_POLL_S = 1.0
_CHANNEL = {"grpc.initial_reconnect_backoff_ms": 500, "grpc.max_reconnect_backoff_ms": 5000}
"""gRPC's wait between connections; its default of up to two minutes is longer than our retries."""

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
        """Return the client, created at the first call."""
        if self._client is None:
            module = import_extra("qdrant_client", "qdrant")
            with warnings.catch_warnings():
                # Warns about a key on an unencrypted connection; `lock` reports that itself.
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
                    # It would use REST on a thread of its own; `create` checks over gRPC.
                    check_compatibility=False,
                )
        return self._client

    def call(self, action: Callable[[], T]) -> T:
        """Run a request; repeat it after temporary failures."""
        result = retry(
            action,
            name=self.name,
            num_retries=_NUM_RETRIES if self._has_answered else _NUM_FIRST_RETRIES,
            remedy=_RUN_AGAIN if self._has_answered else _CHECK_ADDRESS,
            tell=self.tell or _ignore,
            sleep=self.sleep,
        )
        self._has_answered = True
        return result

    def lock(self, shard: str | None) -> None:
        """Take a lock on this machine, one per shard, because the server has no locks."""
        place = f"{self._host}:{self._port}/{self.collection}#{shard or ''}"
        folder = lock_folder()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SinkError(f"{self.name}: cannot create {folder}: {error.strerror}") from error
        digest = hashlib.blake2b(place.encode(), digest_size=16).hexdigest()
        self._lock = self._lock or FileLock(folder / f"qdrant-{digest}.lock", self.name)
        if self._api_key and not self._is_encrypted and self.tell is not None:
            self.tell(f"{self.name}: the API key is sent unencrypted; use qdrant+https")

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

    def prepare(self, mark: Mark) -> None:
        """Create the payload index that filters use, before rows are written."""
        # A killed writer may have created the collection without it.
        self.call(
            lambda: self.connect().create_payload_index(
                self.collection, SOURCE_ID_KEY, self.models.PayloadSchemaType.KEYWORD, wait=True
            )
        )
        self._has_changed = False

    def to_points(self, rows: Sequence[Row], vectors: Vectors) -> list[Any]:
        """Return protobuf points that contain the vectors' bytes unconverted."""
        self._has_changed = True
        grpc = import_extra("qdrant_client.grpc", "qdrant")
        payload_to_grpc = import_extra(
            "qdrant_client.conversions.conversion", "qdrant"
        ).payload_to_grpc
        # A DenseVector ends with its floats, little-endian; the bytes before them depend on their
        # number only. Source: protobuf's encoding of packed repeated fields.
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
        # Not the client's `upsert`: it takes lists of Python floats, and twice as long.
        grpc = import_extra("qdrant_client.grpc", "qdrant")
        request = grpc.UpsertPoints(collection_name=self.collection, points=points, wait=True)
        self.connect().grpc_points.Upsert(request, timeout=_TIMEOUT_S)

    def inspect(self) -> SinkState | None:
        """Return what is stored."""
        info = self.read_info()
        if info is None:
            return None
        mark = self.mark_of(info.config.metadata)
        count = self.call(
            lambda: self.connect().count(self.collection, self.only_ours(), exact=True)
        )
        return mark.to_state(count.count, _describe_index(info))

    def finish(self) -> None:
        """Switch the graph on and wait until the server has built it."""
        mark = self.require_begin()
        if self.read_info().config.hnsw_config.m != mark.options.m:
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
            progress = f"{info.indexed_vectors_count or 0} of {info.points_count or 0} points"
            if not is_green and progress != last_progress and self.tell is not None:
                self.tell(f"{self.name}: building the index, {progress}")
                last_progress = progress
            self.sleep(_POLL_S)
        self._has_changed = False

    def disconnect(self) -> None:
        """Close the connection and release the lock."""
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


def _describe_index(info: Any) -> str:
    if info.config.hnsw_config.m == 0:
        return "none yet, exact scan: the load was not finished"
    state = "" if info.status.value == "green" else f", {info.status.value}"
    return f"hnsw, {info.indexed_vectors_count or 0} of {info.points_count or 0} points{state}"


def _status_of(info: Any) -> str:
    return str(getattr(info.optimizer_status, "error", info.status))


def _ignore(_line: str) -> None:
    pass
