"""What a benchmark run found: frozen, and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from embedlib.bench.race import Loaded, Skipped
from embedlib.measuring.provenance import checkout_commit, now
from embedlib.measuring.spread import Latency, Spread
from embedlib.version import __version__

TOP = 10
"""Documents whose place in a ranking is compared: about as many as are shown to a user."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """How long a new process takes."""

    first_vector_s: float
    """From starting Python to having the first vector: imports, loading, one query."""
    constructor_s: float
    """Of that, loading the model."""

    @classmethod
    def of(cls, loaded: Loaded) -> Start:
        """Return the times of a process that has loaded the model."""
        return cls(first_vector_s=loaded.first_vector_s, constructor_s=loaded.constructor_s)


@dataclass(frozen=True, kw_only=True)
class DuringBulk:
    """Queries answered by a contestant while it works on a bulk job."""

    query: Latency
    query_interval_ms: float
    tokens_per_s_without: Spread
    tokens_per_s_with: Spread
    bulk_loss: Spread
    """Share of the bulk rate that the queries cost, pass by pass."""


@dataclass(frozen=True, kw_only=True)
class Closeness:
    """Cosines between the vectors of a contestant and embedlib's in float32."""

    mean: float
    p1: float
    min: float


@dataclass(frozen=True, kw_only=True)
class OfTheLimit:
    """How near a contestant comes to what the machine can do in its precision."""

    bulk_share: float
    """Its bulk rate over the one that products alone would allow."""
    query_floor_ms: float
    """Reading the weights once, or their products for one query: what takes longer."""
    query_ratio: float
    """Its query p50 over that floor."""


@dataclass(frozen=True, kw_only=True)
class ContestantResult:
    """What was measured of one contestant."""

    name: str
    precision: str
    """What it multiplied in: "float32", "bf16", "int8" or "int8-g128"."""
    versions: Mapping[str, str]
    batches: str
    """How it makes them: its own way, or the best number of texts found."""
    tokens_per_s: Spread
    texts_per_s: Spread
    embedlib_ratio: Spread | None
    """The bulk rate of embedlib as it comes over this one's, turn by turn; None for itself."""
    float32_ratio: Spread | None
    """The same of embedlib in float32; None for embedlib itself."""
    query: Latency
    query_ratio: float | None
    """This one's query p50 over embedlib's; None for embedlib itself."""
    during_bulk: DuringBulk | None
    during_bulk_failure: str | None
    """Why there is no `during_bulk`."""
    cold_start: Start
    """The first one, with nothing prepared."""
    warm_start: Start
    """The second one, with a compiled engine or an exported model where it keeps one."""
    memory_after_load_mib: Mapping[str, float]
    """"peak", and "anonymous": what no file backs."""
    memory_after_bulk_mib: Mapping[str, float]
    closeness: Closeness
    of_the_limit: OfTheLimit | None
    """None: its precision was not measured alone."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the machine can do for the shapes of the model."""

    rows: int
    flop_per_token: int
    """In the model's linear layers."""
    num_weights: int
    """Of the linear layers."""
    gflop_per_s: Mapping[str, Mapping[str, Spread]]
    """By precision and by the library that computed them."""
    read_gb_per_s: Spread


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What every result says of its run."""

    date: str
    command: str
    embedlib_version: str
    commit: str | None
    """Of embedlib's checkout, with "-dirty" where files were changed; None outside of one."""
    machine: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """Return plain values for `json.dump`."""
        return dataclasses.asdict(self)


def provenance(machine: Mapping[str, str], command: str) -> dict[str, Any]:
    """Return the fields of `Measured` for a run that ends now."""
    return {
        "date": now(),
        "command": command,
        "embedlib_version": __version__,
        "commit": checkout_commit(),
        "machine": dict(machine),
    }


@dataclass(frozen=True, kw_only=True)
class BenchResult(Measured):
    """A whole run."""

    model: str
    revision: str | None
    texts: str
    """Where they come from."""
    num_texts: int
    num_different_texts: int
    num_tokens: int
    """As embedlib counts them, truncated, padding excluded: the same number for all."""
    num_truncated: int
    mean_query_tokens: float
    threads: int
    rounds: int
    contestants: tuple[ContestantResult, ...]
    """embedlib as it comes is the first, embedlib in float32 the second."""
    skipped: tuple[Skipped, ...]
    weights_mib: float
    """Of the weights files."""
    padding_share: float
    """Of what embedlib, as it comes, computed in the bulk passes."""
    engine_idle_share: float | None
    """Share of embedlib's bulk passes in which its engine had nothing to do; None: a static model,
    which the threads that tokenize compute."""
    limits: Limits


@dataclass(frozen=True, kw_only=True)
class RerankFigures:
    """What embedlib did in one precision; None: there is no peer."""

    precision: str
    """What it multiplied in."""
    documents_per_s: Spread
    ratio: Spread | None = None
    """This rate divided by the peer's, turn by turn."""
    max_difference: float | None = None
    """Largest difference of any score from the peer's."""
    top_overlap: float | None = None
    """Share of the peer's `TOP` best documents that are among the best here."""


@dataclass(frozen=True, kw_only=True)
class RerankResult(Measured):
    """A whole run of `--task rerank`."""

    model: str
    num_documents: int
    num_different_documents: int
    num_tokens: int
    """Of all pairs, special tokens included, as embedlib counts them."""
    num_truncated: int
    threads: int
    rounds: int
    versions: Mapping[str, str]
    ours: Mapping[str, RerankFigures]
    """By name: "embedlib" computes as it comes."""
    peer_batch_size: int | None
    """The best one found; None: there is no peer."""
    peer_documents_per_s: Spread | None
