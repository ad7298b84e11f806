"""Summaries of repeated measurements: spread, latency, and ratios of turns that alternate."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Spread:
    """One number measured several times."""

    median: float
    min: float
    max: float
    values: tuple[float, ...]
    """In the order of measuring."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarize values; there must be at least one."""
        return cls(
            median=statistics.median(values),
            min=min(values),
            max=max(values),
            values=tuple(values),
        )


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Times between asking a query and receiving its vector."""

    num_queries: int
    p50_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, latencies_ms: Sequence[float]) -> Latency:
        """Summarize latencies; there must be at least one."""
        p50, p99 = np.percentile(latencies_ms, (50, 99))
        return cls(
            num_queries=len(latencies_ms),
            p50_ms=float(p50),
            p99_ms=float(p99),
            max_ms=max(latencies_ms),
        )


def aba_ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return our rate over theirs, for turns that alternate ours, theirs, ours, ..., ours.

    Each of theirs is compared with the mean of ours just before and just after it, so a slow drift
    of the machine's speed cancels out.
    """
    assert len(ours) == len(theirs) + 1, "turns must begin and end with ours"
    return [
        (before + after) / 2 / rate
        for before, after, rate in zip(ours[:-1], ours[1:], theirs, strict=True)
    ]


def ratios_in_turns(
    ours: Sequence[float], theirs: Sequence[float], place: int, num_others: int
) -> list[float]:
    """Return `aba_ratios` where several others take turns, each between two turns of ours.

    Args:
        ours: our rates: before the first of the others and after each of them.
        theirs: the rates of one of the others.
        place: which one it is, counted from 0.
        num_others: how many there are.
    """
    befores = range(place, len(ours) - 1, num_others)
    return [
        ratio
        for before, rate in zip(befores, theirs, strict=True)
        for ratio in aba_ratios(ours[before : before + 2], [rate])
    ]
