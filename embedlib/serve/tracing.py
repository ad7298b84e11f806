"""Spans of OpenTelemetry for requests and jobs; its packages are loaded where it is switched on.

Source: OpenTelemetry's semantic conventions for generative AI and for HTTP; W3C Trace Context. A
span is written when the request is over, so that nothing is carried along with it.
"""

from __future__ import annotations

import os
from time import time_ns
from typing import TYPE_CHECKING, Any, Final

from embedlib.errors import ConfigError
from embedlib.packages.installing import install_line
from embedlib.serve.errors import HTTPError
from embedlib.serve.jobs.spans import JobSpan
from embedlib.serve.models.catalog import Task
from embedlib.serve.requests.exchange import Exchange
from embedlib.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_OPERATIONS: Final[dict[Task, str]] = {
    "embed": "embeddings",
    "embed_sparse": "embeddings",
    "embed_multi_vector": "embeddings",
    "rerank": "rerank",
    "classify": "classify",
}
"""`gen_ai.operation.name`; the conventions have only the first."""


class Tracing:
    """Writes spans to a provider, which it owns."""

    def __init__(self, provider: TracerProvider) -> None:
        """Take the provider."""
        from opentelemetry import trace
        from opentelemetry.context import Context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._api = trace
        self._provider = provider
        self._tracer = provider.get_tracer("embedlib", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._no_parent = Context()

    def write(
        self,
        exchange: Exchange,
        route: str,
        status: int,
        error: HTTPError | None,
        seconds: float,
    ) -> None:
        """Write the span of a request that ends now.

        Args:
            exchange: the request, with what it used.
            route: its path as the server knows it; empty: there is none.
            status: of the answer.
            error: the answer, if it is one.
            seconds: from the request to now.
        """
        ended_ns = time_ns()
        request = exchange.request
        attributes: dict[str, Any] = {
            "http.request.method": request.method,
            "http.response.status_code": status,
            "embedlib.request_id": exchange.request_id,
            **({"http.route": route} if route else {}),
            **_model_attributes(exchange),
        }
        if error is not None:
            attributes["error.type"] = error.kind
        span = self._tracer.start_span(
            f"{request.method} {route}".rstrip(),
            context=self._propagator.extract(request.headers),
            kind=self._api.SpanKind.SERVER,
            attributes=attributes,
            start_time=ended_ns - round(seconds * 1e9),
        )
        if status >= 500:  # below, the fault is the client's
            span.set_status(self._api.StatusCode.ERROR)
        span.end(ended_ns)

    def write_job(self, job: JobSpan) -> None:
        """Write the span of a piece of a job's work.

        It is the root of a trace of its own, linked to the request that made the job: that one is
        over, perhaps since days, and many jobs may be of one trace.
        """
        made = self._api.get_current_span(
            self._propagator.extract({"traceparent": job.traceparent})
        ).get_span_context()
        attributes: dict[str, Any] = {
            **job.attributes,
            "embedlib.job_id": job.job_id,
            "embedlib.job_state": job.state,
        }
        if job.error:
            attributes["error.type"] = job.error
        kinds = self._api.SpanKind
        span = self._tracer.start_span(
            f"{'deliver' if job.kind == 'webhook' else 'run'} {job.kind}",
            context=self._no_parent,
            kind=kinds.CLIENT if job.kind == "webhook" else kinds.CONSUMER,
            attributes=attributes,
            links=[self._api.Link(made)] if made.is_valid else [],
            start_time=round(job.started * 1e9),
        )
        if job.error:
            span.set_status(self._api.StatusCode.ERROR)
        span.end(round(job.ended * 1e9))

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def _model_attributes(exchange: Exchange) -> dict[str, Any]:
    """Return what is known of the model and of what it computed; never a text."""
    model, work = exchange.model, exchange.work
    if model is None:
        return {}
    attributes: dict[str, Any] = {
        "gen_ai.provider.name": "embedlib",
        "gen_ai.request.model": model.name,
        "gen_ai.response.model": model.name,
        "gen_ai.usage.input_tokens": work.usage.num_tokens,
        "embedlib.texts": work.usage.num_texts,
        "embedlib.truncated": len(work.usage.truncated),
        "embedlib.tokenize_seconds": work.usage.tokenize_seconds,
        "embedlib.queue_seconds": work.usage.queue_seconds,
        "embedlib.compute_seconds": work.usage.compute_seconds,
    }
    if model.task is not None:
        attributes["gen_ai.operation.name"] = _OPERATIONS[model.task]
    if work.dimensions is not None:
        attributes["gen_ai.embeddings.dimension.count"] = work.dimensions
    if work.lane is not None:
        attributes["embedlib.lane"] = work.lane.value
    return attributes


def open_tracing(endpoint: str) -> Tracing:
    """Return the tracing that sends spans to a collector.

    Its own environment variables (`OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER`, …) are respected.

    Args:
        endpoint: the address of the collector for OTLP over HTTP, `http://HOST:4318`.

    Raises:
        ConfigError: packages are missing, or it is no address.
    """
    if not endpoint.startswith(("http://", "https://")):
        # Not quoted: it may have a password in front of the host.
        raise ConfigError(
            "the address of the collector must begin with http:// or https://; give http://HOST:4318"
        )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            f"the package {error.name} is missing; {install_line('serve,otel')}"
        ) from error
    service = os.environ.get("OTEL_SERVICE_NAME", "embedlib")
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider)
