"""Metrics of jobs, as text for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from embedlib.serve.metrics import head, line

KINDS: Final = ("batch", "async")
WAITING: Final = ("queued", "running")
ENDS: Final = ("done", "failed", "cancelled", "expired")
DELIVERIES: Final = ("delivered", "retried", "failed")


def _each(states: tuple[str, ...]) -> dict[tuple[str, str], int]:
    return {(kind, state): 0 for kind in KINDS for state in states}


@dataclass(slots=True)
class JobMetrics:
    """The counters of jobs; `now` and `num_webhooks` are of the database, counted when asked."""

    now: dict[tuple[str, str], int] = field(default_factory=lambda: _each(WAITING))
    ended: dict[tuple[str, str], int] = field(default_factory=lambda: _each(ENDS))
    lines: dict[str, int] = field(default_factory=lambda: {"done": 0, "failed": 0})
    deliveries: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DELIVERIES, 0))
    num_webhooks: int = 0
    num_blocked: int = 0
    """What waits for a disk that takes nothing; other steps may need nothing of it."""

    def render(self) -> Iterator[str]:
        """Yield the lines of the exposition format."""
        yield from head("embedlib_jobs", "gauge", "Jobs that have not ended, by state.")
        for (kind, state), count in self.now.items():
            yield line("embedlib_jobs", {"kind": kind, "state": state}, count)
        yield from head("embedlib_jobs_ended_total", "counter", "Jobs that have ended, by end.")
        for (kind, state), count in self.ended.items():
            yield line("embedlib_jobs_ended_total", {"kind": kind, "state": state}, count)
        yield from head("embedlib_batch_lines_total", "counter", "Lines of batches answered.")
        for state, count in self.lines.items():
            yield line("embedlib_batch_lines_total", {"state": state}, count)
        yield from head("embedlib_webhook_deliveries_total", "counter", "Webhooks, by outcome.")
        for outcome, count in self.deliveries.items():
            yield line("embedlib_webhook_deliveries_total", {"outcome": outcome}, count)
        yield from head("embedlib_webhooks_waiting", "gauge", "Webhooks to be delivered.")
        yield line("embedlib_webhooks_waiting", {}, self.num_webhooks)
        yield from head("embedlib_jobs_blocked", "gauge", "Whether the disk takes nothing.")
        yield line("embedlib_jobs_blocked", {}, int(self.num_blocked > 0))
