"""JobSpan: what is told of a piece of a job's work when it is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class JobSpan:
    """A run of a batch or of an asynchronous request, or an attempt to deliver a webhook."""

    kind: Literal["batch", "async_request", "webhook"]
    job_id: str
    traceparent: str
    """Of the request that made the job; empty: it had none."""
    started: float
    """In Unix seconds, as the next one."""
    ended: float
    state: str
    """Of the job, or of its webhook, at the end."""
    error: str
    """The kind of a failure; empty: there is none."""
    attributes: Mapping[str, str | int]
    """What else is known, by the names of OpenTelemetry; never a text."""


WriteSpan = Callable[[JobSpan], None]


def write_nowhere(span: JobSpan) -> None:
    """Drop a span, of a server without tracing."""
