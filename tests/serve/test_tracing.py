"""Spans of OpenTelemetry, kept in memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from embedlib.errors import ConfigError, EngineRunError
from embedlib.serve import Tracing, create_app, open_tracing
from embedlib.testing import FakeEngine, fake_embedder
from tests.serve.conftest import Client

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def traced(engine: FakeEngine) -> Iterator[tuple[Client, Any]]:
    """A server, and the exporter that has its spans."""
    pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    client = Client(create_app({"small": fake_embedder(engine)}, tracing=Tracing(provider)))
    client.start()
    yield client, exporter
    client.close()


def test_the_span_of_a_request(traced: tuple[Client, Any]) -> None:
    client, exporter = traced
    body = {"input": ["hidden", "b" * 40], "dimensions": 3}
    client.post("/v1/embeddings", body, headers={"traceparent": PARENT, "x-request-id": "r1"})
    [span] = exporter.get_finished_spans()
    assert (span.name, span.kind.name) == ("POST /v1/embeddings", "SERVER")
    assert span.context.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert span.parent.span_id == 0xB7AD6B7169203331
    seconds = {f"embedlib.{name}_seconds" for name in ("tokenize", "queue", "compute")}
    assert seconds <= set(span.attributes)
    assert {name: value for name, value in span.attributes.items() if name not in seconds} == {
        "http.request.method": "POST",
        "http.route": "/v1/embeddings",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "embeddings",
        "gen_ai.provider.name": "embedlib",
        "gen_ai.request.model": "small",
        "gen_ai.response.model": "small",
        "gen_ai.usage.input_tokens": 38,
        "gen_ai.embeddings.dimension.count": 3,
        "embedlib.request_id": "r1",
        "embedlib.lane": "bulk",
        "embedlib.texts": 2,
        "embedlib.truncated": 1,
    }
    assert 0 < span.end_time - span.start_time < 60e9
    assert span.status.is_unset
    assert "hidden" not in span.to_json()


def test_the_fault_of_the_client_and_of_the_engine(
    traced: tuple[Client, Any], engine: FakeEngine
) -> None:
    client, exporter = traced
    client.refuse("/v1/embeddings", {"input": []})
    client.send("GET", "/nothing")
    engine.fail_next(EngineRunError("failed"))
    client.refuse("/v1/embeddings", {"input": "a"})
    ours, nothing, failed = exporter.get_finished_spans()
    assert (ours.attributes["error.type"], ours.status.is_unset) == ("empty", True)
    assert (nothing.name, nothing.attributes["error.type"]) == ("GET", "no_route")
    assert (failed.attributes["error.type"], failed.status.is_ok) == ("failed", False)
    assert failed.parent is None


def test_a_collector_is_an_address() -> None:
    with pytest.raises(ConfigError, match="'collector:4317' is no collector; give http"):
        open_tracing("collector:4317")


def test_nothing_is_loaded_unless_it_is_switched_on() -> None:
    code = (
        "import sys, embedlib.serve, embedlib.serve.server; print('opentelemetry' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
