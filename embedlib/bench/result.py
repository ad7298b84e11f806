"""What a benchmark run found: frozen, and the same as JSON."""

from __future__ import annotations

import dataclasses
import statistics
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

_T = TypeVar("_T")


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
    """Times from asking one query to having its vector."""

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


@dataclass(frozen=True, kw_only=True)
class Start:
    """How long a fresh process takes."""

    first_vector_s: float
    """From starting Python to having the first vector: imports, loading, one query."""
    constructor_s: float
    """Of that, loading the model."""


@dataclass(frozen=True, kw_only=True)
class ContestantResult:
    """What one contestant did."""

    name: str
    versions: Mapping[str, str]
    batch_size: int | None
    """The best one found; None: it makes batches by itself."""
    tokens_per_s: Spread
    texts_per_s: Spread
    embedlib_ratio: Spread | None
    """embedlib's bulk rate divided by this one's, turn by turn; None for embedlib itself."""
    query: Latency
    query_ratio: float | None
    """This one's query p50 divided by embedlib's; None for embedlib itself."""
    cold_start: Start
    """The first one, with nothing prepared."""
    warm_start: Start
    """The second one, with a compiled engine or an exported model where it keeps one."""
    peak_memory_after_load_mib: float
    peak_memory_after_bulk_mib: float
    max_difference: float | None
    """Largest difference of any element of any vector to embedlib's; None for embedlib itself."""


@dataclass(frozen=True, kw_only=True)
class DuringBulk:
    """Queries answered by embedlib while it works on a bulk job."""

    query: Latency
    query_interval_ms: float
    tokens_per_s_without: Spread
    tokens_per_s_with: Spread
    bulk_loss: Spread
    """Share of the bulk rate that the queries cost, pass by pass."""


@dataclass(frozen=True, kw_only=True)
class Sgemm:
    """The machine's own rate for float32 matrix products of the model's shapes."""

    rows: int
    flop_per_token: int
    """In the model's linear layers."""
    gflop_per_s: Mapping[str, Spread]
    """By the library that computed them."""
    ceiling_tokens_per_s: float
    """What the fastest library would allow if there were nothing but linear layers."""
    embedlib_share: float
    """embedlib's bulk rate divided by the ceiling."""


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A peer that could not be measured."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """A whole run."""

    date: str
    command: str
    embedlib_version: str
    commit: str | None
    """Of embedlib's checkout, with "-dirty" where files were changed; None outside of one."""
    machine: Mapping[str, str]
    model: str
    revision: str | None
    precision: str
    texts: str
    """Where they come from."""
    num_texts: int
    num_tokens: int
    """As embedlib counts them, truncated, padding excluded: the same number for all."""
    num_truncated: int
    mean_query_tokens: float
    threads: int
    rounds: int
    contestants: tuple[ContestantResult, ...]
    """embedlib is the first."""
    skipped: tuple[Skipped, ...]
    during_bulk: DuringBulk
    padding_share: float
    """Of what embedlib computed in the bulk passes."""
    engine_idle_share: float
    """Share of embedlib's bulk passes in which its engine had nothing to do."""
    sgemm: Sgemm

    def as_json(self) -> dict[str, Any]:
        """Return plain values for `json.dump`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> BenchResult:
        """Return the result that `as_json` was made from."""
        return _build(cls, content)


def _build(kind: type[_T], content: Any) -> _T:
    """Rebuild a dataclass from plain values by its type hints."""
    hints = typing.get_type_hints(kind)
    return kind(**{name: _value(hints[name], value) for name, value in content.items()})


def _value(hint: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type[Any], hint), value)
    if origin is types.UnionType:  # of something and None
        return None if value is None else _value(arguments[0], value)
    if origin is tuple:
        return tuple(_value(arguments[0], item) for item in value)
    if origin is Mapping or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return {name: _value(arguments[1], item) for name, item in value.items()}
    return value


def aba_ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return our rate over theirs, for turns that alternate ours, theirs, ours, ..., ours.

    Each of theirs is compared with the mean of ours just before and just after it: a machine that
    slowly changes its speed cancels out.
    """
    assert len(ours) == len(theirs) + 1, "turns must begin and end with ours"
    return [
        (before + after) / 2 / rate
        for before, after, rate in zip(ours[:-1], ours[1:], theirs, strict=True)
    ]
