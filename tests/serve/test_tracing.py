"""Spans of OpenTelemetry, kept in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from embedlib.errors import ConfigError, EngineRunError
from embedlib.serve import ServeOptions, Tracing, create_app, open_tracing
from embedlib.testing import FakeEngine, fake_embedder
from tests.serve.conftest import Client

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def traced(engine: FakeEngine, tmp_path: Path) -> Iterator[tuple[Client, Any]]:
    """A server, and the exporter that has its spans."""
    pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    app = create_app(
        {"small": fake_embedder(engine)},
        options=ServeOptions(data_dir=str(tmp_path / "jobs")),
        tracing=Tracing(provider),
    )
    client = Client(app)
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


def test_the_run_of_a_job_is_linked_to_the_request_that_made_it(
    traced: tuple[Client, Any], engine: FakeEngine
) -> None:
    client, exporter = traced
    sent = [
        client.send("POST", "/async_predict", {"model_input": body}, headers=headers).json()
        for body, headers in (
            ({"input": "hidden"}, {"traceparent": PARENT}),
            ({"input": "a", "dimensions": 99}, {}),
            ({"input": "a"}, {"traceparent": "x" * 200}),
        )
    ]

    async def all_have_ended() -> None:
        async with client.http() as http:
            for each in sent:
                path = f"/async_request/{each['request_id']}"
                while (await http.get(path)).json()["status"] in ("QUEUED", "IN_PROGRESS"):
                    pass

    client.run(all_have_ended())
    spans = {
        span.attributes["embedlib.job_id"]: span
        for span in exporter.get_finished_spans()
        if span.name == "run async_request"
    }
    linked, wrong, unlinked = (spans[each["request_id"]] for each in sent)
    assert linked.kind.name == "CONSUMER"
    assert linked.parent is None
    assert linked.context.trace_id != 0x0AF7651916CD43DD8448EB211C80319C
    [link] = linked.links
    assert link.context.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert link.context.span_id == 0xB7AD6B7169203331
    assert linked.attributes["embedlib.job_state"] == "SUCCEEDED"
    assert linked.attributes["gen_ai.request.model"] == "small"
    assert linked.status.is_unset
    assert "hidden" not in linked.to_json()
    assert (wrong.attributes["error.type"], wrong.status.is_ok) == ("invalid", False)
    assert wrong.links == unlinked.links == ()


def test_a_collector_is_an_address() -> None:
    with pytest.raises(ConfigError, match="must begin with http:// or https://; give"):
        open_tracing("collector:4317")


def test_spans_reach_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="no extra otel")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    paths: list[str] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            paths.append(self.path if b"a span" in body else "no span")
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        server.timeout = 30  # where nothing comes, the test fails
        answering = threading.Thread(target=server.handle_request)
        answering.start()
        tracing = open_tracing(f"http://127.0.0.1:{server.server_port}/")
        tracing._tracer.start_span("a span").end()
        tracing.close()
        answering.join()
    assert paths == ["/v1/traces"]
