"""A result of `embedlib bench --serve` as Markdown tables."""

from __future__ import annotations

from collections.abc import Callable

from embedlib.bench.serve_result import ServeResult, ServerFigures
from embedlib.bench.table import NONE, count_different, provenance_rows, spread_text
from embedlib.measuring.markdown import Row, markdown
from embedlib.measuring.spread import Latency


def render_serve(result: ServeResult) -> str:
    """Return the whole result as Markdown."""
    texts = count_different(result.num_texts, "texts", result.num_different_texts)
    heading = (
        f"{result.model}, {result.precision}, threads: {result.threads}, rounds: {result.rounds}; "
        f"{texts}, {result.num_tokens:,} tokens; vectors as base64"
    )
    parts = [
        heading,
        markdown(_servers(result)),
        markdown(_alone(result)),
        "\n".join(f"- {one.name}: not measured: {one.reason}" for one in result.skipped),
        markdown([("circumstances", ""), *provenance_rows(result, result.versions)]),
    ]
    return "\n\n".join(part for part in parts if part)


def _servers(result: ServeResult) -> list[Row]:
    """One row per figure; one column for the model in process, and one per server."""
    query, beside = result.in_process_query, result.in_process_during_bulk
    rows: list[tuple[str, str, Callable[[ServerFigures], str]]] = [
        ("texts a request", NONE, lambda one: f"{one.request_texts}"),
        (
            f"bulk, {result.connections} connections, texts/s",
            f"{result.in_process_texts_per_s.median:,.1f}",
            lambda one: f"{one.texts_per_s.median:,.1f}",
        ),
        ("bulk rate over that in process", NONE, lambda one: spread_text(one.bulk_ratio, "%")),
        ("query p50 / p99, ms", _times(query), lambda one: _times(one.query)),
        (
            "query p50 over that in process",
            NONE,
            lambda one: f"{one.query.p50_ms / query.p50_ms:.2f}x, {one.query_more_ms:+.2f} ms",
        ),
        ("query during bulk p50 / p99, ms", _times(beside), lambda one: _times(one.during_bulk)),
        (
            "its p99 over that in process",
            NONE,
            lambda one: f"{one.during_bulk.p99_ms / beside.p99_ms:.2f}x",
        ),
        (
            "share of the machine in bulk, server + client",
            NONE,
            lambda one: f"{_share(one)} + {one.client_share:.0%}",
        ),
    ]
    head = ("", "in process", *(one.name for one in result.servers))
    return [head, *((name, own, *map(cell, result.servers)) for name, own, cell in rows)]


def _alone(result: ServeResult) -> list[Row]:
    alone = result.alone
    failed = sum(alone.crowd_failures.values())
    reasons = "; ".join(f"{count} x {reason}" for reason, count in alone.crowd_failures.items())
    return [
        ("a server whose engine answers at once", ""),
        ("requests of one text for each second of a core", f"{alone.requests_per_core_s:,.0f}"),
        ("requests of one text a second", f"{alone.requests_per_s:,.0f}"),
        ("their p50 / p99", f"{_times(alone.latency)} ms"),
        ("share of the machine that the client takes", f"{alone.client_share:.0%}"),
        (f"{alone.clients:,} clients at once, requests", f"{alone.crowd_requests:,}"),
        ("of these failed", f"{failed:,}" + (f" ({reasons})" if reasons else "")),
        (
            "their p50 / p99",
            f"{_times(alone.crowd_latency)} ms" if alone.crowd_latency else NONE,
        ),
    ]


def _times(latency: Latency) -> str:
    return f"{latency.p50_ms:.2f} / {latency.p99_ms:.2f}"


def _share(one: ServerFigures) -> str:
    return NONE if one.server_share is None else f"{one.server_share:.0%}"
