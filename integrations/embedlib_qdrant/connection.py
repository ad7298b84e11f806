"""The connection to a server: a client, and a way to have several requests in flight."""

from __future__ import annotations

import warnings
from typing import Any

from embedlib.indexing import import_extra

TIMEOUT_S = 60
"""Of a request."""
_SNAPSHOT_S = 3600
"""Of the request that copies a collection: gigabytes take minutes."""
_OPTIONS = {
    "grpc.initial_reconnect_backoff_ms": 500,
    "grpc.max_reconnect_backoff_ms": 5000,
    "grpc.max_send_message_length": -1,
    "grpc.max_receive_message_length": -1,
}
"""gRPC's defaults: up to two minutes between connections, which is longer than our retries, and
messages of at most 4 MB."""
_UPSERT = "/qdrant.Points/Upsert"
"""Source: points_service.proto of Qdrant."""


class Connection:
    """Opens what is asked for at the first use."""

    def __init__(self, host: str, port: int, *, is_encrypted: bool, api_key: str | None) -> None:
        self.host = host
        self.port = port
        self.is_encrypted = is_encrypted
        self.api_key = api_key
        self._client: Any = None
        self._channel: Any = None
        self._upsert: Any = None
        self._waiting = b""

    def again(self) -> Connection:
        """Return another connection to the same server."""
        return Connection(
            self.host, self.port, is_encrypted=self.is_encrypted, api_key=self.api_key
        )

    @property
    def client(self) -> Any:
        """The QdrantClient."""
        if self._client is None:
            module = import_extra("qdrant_client", "qdrant")
            with warnings.catch_warnings():
                # Warns about a key on an unencrypted connection; the sink reports that itself.
                warnings.simplefilter("ignore", UserWarning)
                self._client = module.QdrantClient(
                    host=self.host,
                    grpc_port=self.port,
                    prefer_grpc=True,
                    https=self.is_encrypted,
                    api_key=self.api_key,
                    timeout=TIMEOUT_S,
                    pool_size=1,
                    grpc_options=dict(_OPTIONS),
                    # It would use REST on a thread of its own, and warn about every server that is
                    # two minor versions older than the client; the sink checks what it needs.
                    check_compatibility=False,
                )
        return self._client

    def start_upsert(self, request: bytes, *, waits: bool) -> Any:
        """Send a request; return the future of its answer.

        Not over the client's channel: its interceptor waits for every answer.

        Args:
            request: a serialized UpsertPoints.
            waits: whether the server answers when it has applied the request, not only logged it.
        """
        if self._upsert is None:
            messages = import_extra("qdrant_client.grpc", "qdrant")
            self._upsert = self._open().unary_unary(
                _UPSERT, response_deserializer=messages.PointsOperationResponse.FromString
            )
            self._waiting = messages.UpsertPoints(wait=True).SerializeToString()
        # Parts of a message that are written one behind the other are read as one.
        sent = request + self._waiting if waits else request
        return self._upsert.future(sent, timeout=TIMEOUT_S, metadata=self._key())

    def take_snapshot(self, collection: str) -> str:
        """Let the server copy a collection; return the name of the copy."""
        messages = import_extra("qdrant_client.grpc", "qdrant")
        answer = messages.SnapshotsStub(self._open()).Create(
            messages.CreateSnapshotRequest(collection_name=collection),
            timeout=_SNAPSHOT_S,
            metadata=self._key(),
        )
        return str(answer.snapshot_description.name)

    def close(self) -> None:
        """Close both; may be called twice."""
        for opened in (self._channel, self._client):
            if opened is not None:
                opened.close()
        self._client = self._channel = self._upsert = None

    def _key(self) -> tuple[tuple[str, str], ...]:
        return (("api-key", self.api_key),) if self.api_key else ()

    def _open(self) -> Any:
        if self._channel is not None:
            return self._channel
        grpc = import_extra("grpc", "qdrant")
        place, options = f"{self.host}:{self.port}", list(_OPTIONS.items())
        if self.is_encrypted:
            self._channel = grpc.secure_channel(place, grpc.ssl_channel_credentials(), options)
        else:
            self._channel = grpc.insecure_channel(place, options)
        return self._channel
