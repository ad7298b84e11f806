"""How many replicas a model needs: by seconds of work, not by requests.

One request may hold 2,048 texts and another one, so their number says nothing. Each replica tells
how many seconds of work wait in it, and which share of the time it computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any

WORK, BUSY = "work_seconds", "busy"
"""What a replica records."""
FULL = 0.8
"""Share of the time that a replica may compute; above it, queues grow at the next rush."""


def replicas_needed(
    work: Iterable[float], busy: Iterable[float], num_requests: float, target_seconds: float
) -> int:
    """Return how many replicas keep the wait below the target.

    Args:
        work: of each replica, the seconds of work in it.
        busy: of each replica, the share of the time that it computed.
        num_requests: requests that wait or run anywhere.
        target_seconds: how long work may wait.
    """
    for_queue = sum(work) / target_seconds
    for_rate = sum(busy) / FULL
    needed = ceil(max(for_queue, for_rate) - 1e-9)
    return max(needed, 1) if num_requests > 0 or needed else 0


class WorkPolicy:
    """The autoscaling policy of a deployment; Ray applies bounds, factors and delays to it."""

    def __init__(self, target_seconds: float) -> None:
        """Aim at a wait of so many seconds."""
        self._target_seconds = target_seconds

    def __call__(self, ctx: Any) -> tuple[int, Mapping[str, Any]]:
        """Return the number of replicas for a `ray.serve.config.AutoscalingContext`."""
        metrics = ctx.aggregated_metrics or {}
        work, busy = (metrics.get(name, {}).values() for name in (WORK, BUSY))
        return replicas_needed(work, busy, ctx.total_num_requests, self._target_seconds), {}
