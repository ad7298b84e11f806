"""What `embedlib bench --serve` found: frozen, and the same as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from embedlib.bench.race import Skipped
from embedlib.bench.result import Measured
from embedlib.measuring.spread import Latency, Spread


@dataclass(frozen=True, kw_only=True)
class ServerFigures:
    """What was measured of one server through its port."""

    name: str
    request_texts: int
    """Texts of one bulk request."""
    texts_per_s: Spread
    bulk_ratio: Spread
    """Its bulk rate over that of `encode` in process, turn by turn."""
    query: Latency
    query_more_ms: float
    """Its query p50 less that in process."""
    during_bulk: Latency
    """Queries while `BACKFILL_CONNECTIONS` connections send bulk requests."""
    client_share: float
    """Of the machine, taken by the client in the bulk passes."""
    server_share: float | None
    """Of the machine, taken by the server in the bulk passes; None: it was started by others."""


@dataclass(frozen=True, kw_only=True)
class ServerAlone:
    """What a server costs whose engine answers at once."""

    requests_per_s: float
    requests_per_core_s: float
    """Requests of one text for each second that the server computed."""
    latency: Latency
    clients: int
    """Connected at once."""
    crowd_requests: int
    crowd_failures: Mapping[str, int]
    """Requests that failed, by reason."""
    crowd_latency: Latency | None
    """None: not one succeeded."""
    client_share: float
    """Of the machine, taken by the client in the first of the two."""


@dataclass(frozen=True, kw_only=True)
class ServeResult(Measured):
    """A whole run of `--serve`."""

    model: str
    precision: str
    num_texts: int
    num_different_texts: int
    num_tokens: int
    threads: int
    rounds: int
    connections: int
    """That send bulk requests."""
    versions: Mapping[str, str]
    in_process_texts_per_s: Spread
    in_process_query: Latency
    in_process_during_bulk: Latency
    servers: tuple[ServerFigures, ...]
    """embedlib is the first."""
    skipped: tuple[Skipped, ...]
    alone: ServerAlone
