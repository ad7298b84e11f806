"""A stub of a Qdrant server on loopback, for transport tests: it is not Qdrant.

It parses what our client sends with the official protobuf types, keeps points in qdrant-client's
memory, and fails on demand. It shows what happens to requests and answers on the way; what a real
server does with them, it does not show.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

grpc = pytest.importorskip("grpc", reason="needs the extra qdrant")

from qdrant_client import QdrantClient, models  # noqa: E402
from qdrant_client import grpc as messages  # noqa: E402
from qdrant_client.conversions.conversion import GrpcToRest, RestToGrpc  # noqa: E402

from embedlib.indexing.sinks.opening import open_sink  # noqa: E402
from embedlib_qdrant.lease import LEASE_KEY  # noqa: E402
from embedlib_qdrant.server import ServerSink  # noqa: E402
from tests.integrations.qdrant.real_server import (  # noqa: E402
    NONE,
    URL,
    QdrantServer,
    find_binary,
)

Fault = Callable[[Any], None]
"""Gets the call's context; raises through `abort`, or lets the call go on."""


class StubServer:
    """Requests of one collection service, recorded, answered, or failed."""

    def __init__(self) -> None:
        self.local = QdrantClient(":memory:")
        self.requests: list[tuple[str, Any]] = []
        self.api_keys: list[str | None] = []
        self.version = "1.20.0"
        self.keeps_metadata = True
        self.m: dict[str, int] = {}
        self.thresholds: dict[str, int] = {}
        self.num_optimizers = 1
        self.indexed_fields: list[str] = []
        self.statuses: deque[str] = deque()
        """Answers of the next looks at a collection; then always green."""
        self._before: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._after: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._lock = threading.Lock()
        self._workers = ThreadPoolExecutor(4)
        self._server = grpc.server(self._workers)
        for register in (
            messages.add_CollectionsServicer_to_server,
            messages.add_PointsServicer_to_server,
            messages.add_QdrantServicer_to_server,
        ):
            register(_Servicer(self), self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def fail(self, method: str, *faults: Fault) -> None:
        """Fail the next calls of a method before anything is done."""
        self._before[method] += faults

    def lose_answer(self, method: str, *faults: Fault) -> None:
        """Do what the next calls of a method ask for and fail them afterwards."""
        self._after[method] += faults

    def count(self, method: str) -> int:
        return sum(name == method for name, _ in self.requests)

    def answer(self, method: str, request: Any, context: Any) -> Any:
        kind = _lease_request(method, request) or method
        with self._lock:
            self.requests.append((kind, request))
            self.api_keys.append(dict(context.invocation_metadata()).get("api-key"))
            if self._before[kind]:
                self._before[kind].popleft()(context)
            answer = getattr(self, f"_{method}")(request, context)
            if self._after[kind]:
                self._after[kind].popleft()(context)
            return answer

    def close(self) -> None:
        self._server.stop(None).wait()
        self._workers.shutdown()
        self.local.close()

    def _HealthCheck(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        return messages.HealthCheckReply(title="stub", version=self.version)

    def _CollectionExists(self, request: Any, _context: Any) -> Any:  # noqa: N802
        exists = self.local.collection_exists(request.collection_name)
        return messages.CollectionExistsResponse(
            result=messages.CollectionExists(exists=exists), time=0.0
        )

    def _Create(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self.local.collection_exists(request.collection_name):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the collection already exists")
        metadata = GrpcToRest.convert_payload(request.metadata) if self.keeps_metadata else None
        self.local.create_collection(
            request.collection_name,
            vectors_config=GrpcToRest.convert_vectors_config(request.vectors_config),
            metadata=metadata,
        )
        self.m[request.collection_name] = request.hnsw_config.m
        self.thresholds[request.collection_name] = 10_000
        return messages.CollectionOperationResponse(result=True)

    def _Update(self, request: Any, _context: Any) -> Any:  # noqa: N802
        name = request.collection_name
        if request.HasField("hnsw_config"):
            self.m[name] = request.hnsw_config.m
        if request.optimizers_config.HasField("indexing_threshold"):
            self.thresholds[name] = request.optimizers_config.indexing_threshold
        self.local.update_collection(name, metadata=GrpcToRest.convert_payload(request.metadata))
        return messages.CollectionOperationResponse(result=True)

    def _ListAliases(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        return messages.ListAliasesResponse(aliases=self._describe(self.local.get_aliases()))

    def _ListCollectionAliases(self, request: Any, _context: Any) -> Any:  # noqa: N802
        found = self.local.get_collection_aliases(request.collection_name)
        return messages.ListAliasesResponse(aliases=self._describe(found))

    def _describe(self, found: Any) -> list[Any]:
        return [RestToGrpc.convert_alias_description(each) for each in found.aliases]

    def _UpdateAliases(self, request: Any, _context: Any) -> Any:  # noqa: N802
        actions = [GrpcToRest.convert_alias_operations(action) for action in request.actions]
        return messages.CollectionOperationResponse(
            result=self.local.update_collection_aliases(actions)
        )

    def _Delete(self, request: Any, _context: Any) -> Any:  # noqa: N802
        # Collections and Points have a method of this name each.
        if isinstance(request, messages.DeleteCollection):
            return messages.CollectionOperationResponse(
                result=self.local.delete_collection(request.collection_name)
            )
        ids = [GrpcToRest.convert_point_id(point) for point in request.points.points.ids]
        self.local.delete(request.collection_name, models.PointIdsList(points=ids))
        return _updated()

    def _Get(self, request: Any, _context: Any) -> Any:  # noqa: N802
        # As with Delete.
        name = request.collection_name
        if isinstance(request, messages.GetPoints):
            found = self.local.retrieve(
                name,
                [GrpcToRest.convert_point_id(point) for point in request.ids],
                with_payload=GrpcToRest.convert_with_payload_selector(request.with_payload),
                with_vectors=request.with_vectors.enable,
            )
            return messages.GetResponse(result=[RestToGrpc.convert_record(r) for r in found])
        info = RestToGrpc.convert_collection_info(self.local.get_collection(name))
        aliases = self.local.get_aliases().aliases
        name = next((each.collection_name for each in aliases if each.alias_name == name), name)
        info.config.hnsw_config.m = self.m[name]
        info.config.optimizer_config.indexing_threshold = self.thresholds[name]
        info.config.optimizer_config.deprecated_max_optimization_threads = self.num_optimizers
        status = self.statuses.popleft() if self.statuses else "Green"
        info.status = messages.CollectionStatus.Value(status)
        return messages.GetCollectionInfoResponse(result=info)

    def _Upsert(self, request: Any, _context: Any) -> Any:  # noqa: N802
        points = [GrpcToRest.convert_point_struct(point) for point in request.points]
        only = GrpcToRest.convert_filter(request.update_filter)
        is_lease = request.HasField("update_filter")
        self.local.upsert(request.collection_name, points, update_filter=only if is_lease else None)
        return _updated()

    def _UpdateBatch(self, request: Any, _context: Any) -> Any:  # noqa: N802
        for operation in request.operations:
            change = operation.set_payload
            self.local.set_payload(
                request.collection_name,
                GrpcToRest.convert_payload(change.payload),
                [GrpcToRest.convert_point_id(p) for p in change.points_selector.points.ids],
            )
        return messages.UpdateBatchResponse(result=[_updated().result])

    def _CreateFieldIndex(self, request: Any, _context: Any) -> Any:  # noqa: N802
        self.indexed_fields.append(request.field_name)
        if request.HasField("field_index_params"):
            self.local.create_payload_index(
                request.collection_name,
                request.field_name,
                GrpcToRest.convert_payload_schema_params(request.field_index_params),
            )
        return _updated()

    def _DeleteFieldIndex(self, request: Any, _context: Any) -> Any:  # noqa: N802
        self.local.delete_payload_index(request.collection_name, request.field_name)
        return _updated()

    def _Scroll(self, request: Any, _context: Any) -> Any:  # noqa: N802
        records, offset = self.local.scroll(
            request.collection_name,
            limit=request.limit,
            offset=GrpcToRest.convert_point_id(request.offset)
            if request.HasField("offset")
            else None,
            with_payload=GrpcToRest.convert_with_payload_selector(request.with_payload),
        )
        return messages.ScrollResponse(
            result=[RestToGrpc.convert_record(record) for record in records],
            next_page_offset=None
            if offset is None
            else RestToGrpc.convert_extended_point_id(offset),
        )

    def _Count(self, request: Any, _context: Any) -> Any:  # noqa: N802
        count = self.local.count(
            request.collection_name, GrpcToRest.convert_filter(request.filter)
        ).count
        return messages.CountResponse(result=messages.CountResult(count=count))

    def _Query(self, request: Any, _context: Any) -> Any:  # noqa: N802
        found = self.local.query_points(
            request.collection_name,
            query=GrpcToRest.convert_query(request.query)
            if request.query.HasField("text")
            else list(request.query.nearest.dense.data),
            using=request.using or None,
            query_filter=GrpcToRest.convert_filter(request.filter)
            if request.HasField("filter")
            else None,
            limit=request.limit,
        ).points
        points = [
            messages.ScoredPoint(
                id=RestToGrpc.convert_extended_point_id(hit.id),
                payload=RestToGrpc.convert_payload(hit.payload),
                score=hit.score,
                version=0,
            )
            for hit in found
        ]
        return messages.QueryResponse(result=points)


def _lease_request(method: str, request: Any) -> str | None:
    """The name of a request about the lease; None: it is about rows or the collection."""
    if method == "Upsert" and request.HasField("update_filter"):
        return "TakeLease"
    if isinstance(request, messages.GetPoints) and LEASE_KEY in str(request.with_payload):
        return "ReadLease"
    return None


def _updated() -> Any:
    return messages.PointsOperationResponse(
        result=messages.UpdateResult(operation_id=0, status=messages.UpdateStatus.Completed)
    )


class _Servicer:
    """Hands every method of gRPC's three services to the stub."""

    def __init__(self, stub: StubServer) -> None:
        self._stub = stub

    def __getattr__(self, method: str) -> Callable[[Any, Any], Any]:
        return lambda request, context: self._stub.answer(method, request, context)


def abort(code: str, details: str = "stub", *, retry_after: object = None) -> Fault:
    """Return a fault that ends a call with this status."""

    def fault(context: Any) -> None:
        if retry_after is not None:
            context.set_trailing_metadata((("retry-after", str(retry_after)),))
        context.abort(grpc.StatusCode[code], details)

    return fault


class CuttingProxy:
    """Passes bytes between a client and the stub until told to cut every connection."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.num_connections = 0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._wake_out, self._wake_in = os.pipe()
        self._is_cutting = False
        self._is_closing = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def cut(self) -> None:
        """Close every connection at once."""
        self._is_cutting = True
        os.write(self._wake_in, b"x")

    def close(self) -> None:
        self._is_closing = True
        os.write(self._wake_in, b"x")
        self._thread.join()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def _run(self) -> None:
        while not self._is_closing:
            sockets = [end for pair in self._pairs for end in pair]
            ready, _, _ = select.select([self._listener, self._wake_out, *sockets], [], [])
            if self._wake_out in ready:
                os.read(self._wake_out, 1)
            if self._is_cutting:
                self._is_cutting = False
                self._drop_all()
                continue
            if self._listener in ready:
                client, _ = self._listener.accept()
                self._pairs.append((client, socket.create_connection(("127.0.0.1", self._target))))
                self.num_connections += 1
            for pair in list(self._pairs):
                for source, sink in (pair, pair[::-1]):
                    if source in ready and not _pass_on(source, sink):
                        self._drop(pair)
                        break
        self._drop_all()
        self._listener.close()

    def _drop_all(self) -> None:
        for pair in list(self._pairs):
            self._drop(pair)

    def _drop(self, pair: tuple[socket.socket, socket.socket]) -> None:
        self._pairs.remove(pair)
        for end in pair:
            end.close()


def _pass_on(source: socket.socket, sink: socket.socket) -> bool:
    try:
        data = source.recv(1 << 16)
        sink.sendall(data)
    except OSError:
        return False
    return bool(data)


@pytest.fixture
def aborting() -> Callable[..., Fault]:
    """Return `abort`: a status name to a fault."""
    return abort


@pytest.fixture
def stub() -> Iterator[StubServer]:
    server = StubServer()
    yield server
    server.close()


@pytest.fixture
def proxy(stub: StubServer) -> Iterator[CuttingProxy]:
    between = CuttingProxy(stub.port)
    yield between
    between.close()


@pytest.fixture
def waits() -> list[float]:
    """Seconds that sinks waited, or would have."""
    return []


@pytest.fixture
def make_sink(
    stub: StubServer, waits: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., ServerSink]]:
    """Return a function that opens the stub's collection; all sinks are closed at the end."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("QDRANT_API_KEY", raising=False)
    monkeypatch.setenv("no_grpc_proxy", "127.0.0.1")
    sinks: list[ServerSink] = []

    def make(options: str = "", port: int | None = None) -> ServerSink:
        sink = open_sink(f"qdrant://127.0.0.1:{port or stub.port}/docs{options}")
        assert isinstance(sink, ServerSink)
        sink.sleep = waits.append
        sinks.append(sink)
        return sink

    yield make
    for sink in sinks:
        sink.close()


@pytest.fixture(scope="session")
def qdrant_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real server for all tests that need no other settings."""
    if os.environ.get(URL):
        yield os.environ[URL].rstrip("/")
        return
    binary = find_binary()
    if binary is None:
        pytest.skip(NONE)
    server = QdrantServer(binary, tmp_path_factory.mktemp("qdrant")).start()
    yield server.url
    server.kill()


@pytest.fixture
def start_qdrant(tmp_path: Path) -> Iterator[Callable[..., QdrantServer]]:
    """Return a function that starts real servers, each with settings of its own."""
    binary = find_binary()
    if binary is None:
        pytest.skip(NONE)
    servers: list[QdrantServer] = []

    def start(**settings: str) -> QdrantServer:
        servers.append(QdrantServer(binary, tmp_path / f"qdrant{len(servers)}", settings))
        return servers[-1].start()

    yield start
    for server in servers:
        server.kill()
