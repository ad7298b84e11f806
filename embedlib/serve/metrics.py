"""Metrics as text for Prometheus: of this server by model and lane, and under TEI's names.

Source: Prometheus' text exposition format 0.0.4; text-embeddings-inference 1.9, metric names. All
series are there from the start, and none is labelled by what a client sends. The event loop alone
counts; any thread may render.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from embedlib.batching.usage import Usage
from embedlib.engines.base import Lane
from embedlib.serve.models.admission import Unread
from embedlib.serve.models.catalog import Catalog, ServedModel
from embedlib.serve.models.sessions import engine_of
from embedlib.version import __version__

SECONDS: Final = tuple(0.0005 * 2**power for power in range(17))
"""Upper bounds of buckets: 0.5 ms to 33 s."""


@dataclass(slots=True)
class Histogram:
    """Counts of seconds by bucket."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count a time."""
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.total += seconds

    def lines(self, name: str, labels: Mapping[str, str]) -> Iterator[str]:
        """Yield the lines of the exposition format."""
        bounds = [f"{bound:g}" for bound in SECONDS] + ["+Inf"]
        sums = list(accumulate(self.counts))  # at once: the loop may count meanwhile
        for bound, count in zip(bounds, sums, strict=True):
            yield line(f"{name}_bucket", {**labels, "le": bound}, count)
        yield line(f"{name}_sum", labels, self.total)
        yield line(f"{name}_count", labels, sums[-1])


@dataclass(slots=True)
class LaneMetrics:
    """What one lane of one model did."""

    requests: int = 0
    texts: int = 0
    tokens: int = 0
    truncated: int = 0
    duration: Histogram = field(default_factory=Histogram)
    queue: Histogram = field(default_factory=Histogram)
    compute: Histogram = field(default_factory=Histogram)


SEARCH_STAGES: Final = ("embed", "search", "rerank")

REASONS: Final = (
    "overloaded",
    "unavailable",
    "timeout",
    "invalid",
    "unauthorized",
    "failed",
    "gone",
)
"""Why requests were not answered with what they asked for."""


class Metrics:
    """The counters of a server."""

    def __init__(self, catalog: Catalog, unread: Unread, searched: Iterable[str] = ()) -> None:
        """Start at zero, for every model and lane, and every destination that is searched."""
        self._catalog = catalog
        self._unread = unread
        self.sections: list[Callable[[], Iterator[str]]] = []
        """Yield the lines of other parts of the server."""
        self.searches = {(name, stage): Histogram() for name in searched for stage in SEARCH_STAGES}
        self.lanes = {(model.name, lane): LaneMetrics() for model in catalog for lane in Lane}
        self.failures = dict.fromkeys(REASONS, 0)
        self.num_inflight = 0
        self.statuses = dict.fromkeys(("2xx", "3xx", "4xx", "5xx"), 0)

    def answered(
        self,
        model: ServedModel,
        lane: Lane,
        usage: Usage,
        seconds: float,
    ) -> None:
        """Count a request that was answered after so many seconds."""
        found = self.lanes[model.name, lane]
        found.requests += 1
        found.texts += usage.num_texts
        found.tokens += usage.num_tokens
        found.truncated += len(usage.truncated)
        found.duration.observe(seconds)
        found.queue.observe(usage.queue_seconds)
        found.compute.observe(usage.compute_seconds)

    def searched(self, name: str, seconds: Mapping[str, float]) -> None:
        """Count a search of a destination that was answered, with the time of each stage."""
        for stage, each in seconds.items():
            self.searches[name, stage].observe(each)

    def render(self) -> bytes:
        """Return the page for Prometheus."""
        others = [line for section in self.sections for line in section()]
        return ("\n".join([*self._own(), *others, *self._of_tei()]) + "\n").encode()

    def _own(self) -> Iterator[str]:
        yield from head("embedlib_build_info", "gauge", "The version.")
        yield line("embedlib_build_info", {"version": __version__}, 1)
        yield from head("embedlib_inflight_requests", "gauge", "Requests that wait for an answer.")
        yield line("embedlib_inflight_requests", {}, self.num_inflight)
        yield from head("embedlib_unread_bytes", "gauge", "Bytes of answers not read by clients.")
        yield line("embedlib_unread_bytes", {}, self._unread.num_bytes)
        yield from head("embedlib_responses_total", "counter", "Answers by status.")
        for status, count in self.statuses.items():
            yield line("embedlib_responses_total", {"status": status}, count)
        yield from head("embedlib_failures_total", "counter", "Requests not answered, by reason.")
        for reason, count in self.failures.items():
            yield line("embedlib_failures_total", {"reason": reason}, count)
        yield from self._counters()
        yield from self._gauges()
        for name, what in (
            ("duration", "Seconds from request to answer."),
            ("queue", "Seconds in the queue."),
            ("compute", "Seconds in the engine."),
        ):
            metric = f"embedlib_{name}_seconds"
            yield from head(metric, "histogram", what)
            for (model, lane), lane_metrics in self.lanes.items():
                histogram: Histogram = getattr(lane_metrics, name)
                yield from histogram.lines(metric, {"model": model, "lane": lane.value})
        if self.searches:
            yield from head("embedlib_search_seconds", "histogram", "Seconds of searches.")
        for (name, stage), histogram in self.searches.items():
            yield from histogram.lines(
                "embedlib_search_seconds", {"collection": name, "stage": stage}
            )

    def _counters(self) -> Iterator[str]:
        for name, what in (
            ("requests", "Requests answered."),
            ("texts", "Texts or pairs computed."),
            ("tokens", "Tokens computed."),
            ("truncated", "Texts that were truncated."),
        ):
            metric = f"embedlib_{name}_total"
            yield from head(metric, "counter", what)
            for (model, lane), lane_metrics in self.lanes.items():
                labels = {"model": model, "lane": lane.value}
                yield line(metric, labels, getattr(lane_metrics, name))

    def _gauges(self) -> Iterator[str]:
        for unit, what in (
            ("texts", "Texts that wait or that the model works on."),
            ("tokens", "Tokens of these texts, estimated from their characters."),
        ):
            yield from head(f"embedlib_queued_{unit}", "gauge", what)
            for model in self._catalog:
                for lane in Lane:
                    labels = {"model": model.name, "lane": lane.value}
                    count = getattr(model.admission.queued(lane), unit)
                    yield line(f"embedlib_queued_{unit}", labels, count)
        yield from head("embedlib_queued_seconds", "gauge", "Seconds of work queued.")
        for model in self._catalog:
            seconds = model.admission.seconds_of_work
            yield line("embedlib_queued_seconds", {"model": model.name}, seconds)
        yield from head("embedlib_model_ready", "gauge", "Whether a model is loaded.")
        for model in self._catalog:
            labels = {"model": model.name, "engine": "", "precision": ""}
            if model.session is not None:
                labels["engine"] = type(engine_of(model.session)).__name__
                labels["precision"] = model.session.precision
            yield line("embedlib_model_ready", labels, int(model.state == "ready"))

    def _of_tei(self) -> Iterator[str]:
        """Yield what dashboards for text-embeddings-inference read, summed over models."""
        lanes = list(self.lanes.values())
        num_requests = sum(lane.requests for lane in lanes)
        for name, count in (
            ("te_request_count", num_requests + sum(self.failures.values())),
            ("te_request_success", num_requests),
            ("te_embed_count", sum(lane.texts for lane in lanes)),
        ):
            yield f"# TYPE {name} counter"
            yield line(name, {}, count)
        yield "# TYPE te_queue_size gauge"
        doors = [model.admission for model in self._catalog]
        queued = sum(door.queued(lane).texts for door in doors for lane in Lane)
        yield line("te_queue_size", {}, queued)
        for name, part in (
            ("te_request_duration", "duration"),
            ("te_request_queue_duration", "queue"),
            ("te_request_inference_duration", "compute"),
        ):
            yield f"# TYPE {name} histogram"
            yield from _summed(getattr(lane, part) for lane in lanes).lines(name, {})


def _summed(histograms: Iterable[Histogram]) -> Histogram:
    total = Histogram()
    for histogram in histograms:
        total.counts = [a + b for a, b in zip(total.counts, histogram.counts, strict=True)]
        total.total += histogram.total
    return total


def head(name: str, kind: str, what: str) -> Iterator[str]:
    """Yield the lines that describe a metric."""
    yield f"# HELP {name} {what}"
    yield f"# TYPE {name} {kind}"


def line(name: str, labels: Mapping[str, str], value: float) -> str:
    """Return the line of one series."""
    written = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{written}}} {value!r}" if written else f"{name} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
