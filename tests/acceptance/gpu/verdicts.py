"""What was asked for, what was found, and whether that is enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.acceptance.gpu.journal import Line, found
from tests.acceptance.gpu.models import ENCODER, LARGE

BULK_LENGTHS: Final = "512"
"""Tokens of the texts that bulk rates are compared on."""
QUERY_TOKENS: Final = 16
FEW_QUERIES_PER_S: Final = 20.0
NUM_CLIENTS: Final = 1400

Find = Callable[[Sequence[Line]], "float | None"]


@dataclass(frozen=True)
class Question:
    """Something that was asked for."""

    what: str
    find: Find
    """Returns the number; None: it was not measured."""
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""

    @property
    def asked(self) -> str:
        """The bound in words."""
        if self.at_least is not None:
            return f"at least {self.at_least:,g}{self.unit}"
        return f"at most {self.at_most:,g}{self.unit}"

    def answer(self, lines: Sequence[Line], *, tells_speed: bool) -> dict[str, Any]:
        """Return the facts of a line.

        Args:
            lines: of the run.
            tells_speed: False: it ran on an emulation, of which nothing is asked.
        """
        value = self.find(lines)
        met = self._is_met(value) if value is not None and tells_speed else None
        return {"what": self.what, "asked": self.asked, "found": value, "met": met}

    def _is_met(self, value: float) -> bool:
        is_enough = self.at_least is None or value >= self.at_least
        return is_enough and (self.at_most is None or value <= self.at_most)


def ceiling_tflops(lines: Sequence[Line], model: str, precision: str) -> float | None:
    """Return the rate at which a layer's products could be computed, were there nothing else.

    Of each product it is the best way of multiplying with the most rows that were measured.
    """
    best: dict[tuple[int, int], tuple[int, float]] = {}
    for line in found(lines, "ceilings", model=model):
        if (
            "shape" not in line
            or line.get("is_sustained")
            or not line["what"].startswith(precision)
        ):
            continue
        rows, *sizes = line["shape"]
        key = (sizes[0], sizes[1])
        best[key] = max(best.get(key, (0, 0.0)), (rows, line["tflops"]))
    if not best:
        return None
    work = {key: key[0] * key[1] for key in best}
    return sum(work.values()) / sum(work[key] / rate for key, (_, rate) in best.items())


def _first(block: str, key: str, **facts: Any) -> Find:
    """A number of the first line with these facts."""

    def find(lines: Sequence[Line]) -> float | None:
        for line in found(lines, block, **facts):
            if line.get(key) is not None:
                return float(line[key])
        return None

    return find


def _smallest(block: str, key: str, peer: str = "", **facts: Any) -> Find:
    """The smallest number of all lines with these facts, of any settings of a peer."""

    def find(lines: Sequence[Line]) -> float | None:
        values = [
            float(line[key])
            for line in found(lines, block, **facts)
            if line.get(key) is not None and str(line.get("peer", "")).startswith(peer)
        ]
        return min(values, default=None)

    return find


def _share_of_gate(lines: Sequence[Line]) -> float | None:
    outcomes = [line.get("passed", False) for line in lines if line["block"] == "gate"]
    return sum(outcomes) / len(outcomes) if outcomes else None


_LARGE_512: Final[dict[str, Any]] = {"model": LARGE, "precision": "fp8", "lengths": BULK_LENGTHS}
_QUERY: Final[dict[str, Any]] = {"what": "ids", "tokens": QUERY_TOKENS}
_BESIDE: Final[dict[str, Any]] = {"model": LARGE, "queries_per_s": FEW_QUERIES_PER_S}

QUESTIONS: Final = (
    Question("checks of the gate that passed, share", _share_of_gate, at_least=1),
    Question(
        "7B, FP8, bulk of 512 tokens, tokens/s",
        _first("bulk", "tokens_per_s", **_LARGE_512),
        at_least=75_000,
    ),
    Question(
        "the same, share of the FP8 ceiling",
        _first("bulk", "share_of_ceiling", **_LARGE_512),
        at_least=0.85,
    ),
    Question(
        "7B, FP8 over our bf16",
        _first("bulk", "ratio", model=LARGE, what="fp8 over bf16"),
        at_least=1.5,
        unit="x",
    ),
    Question(
        "7B, over vLLM at its best",
        _smallest("peers", "ratio", "vllm", model=LARGE),
        at_least=1.15,
        unit="x",
    ),
    Question(
        "7B, over sentence-transformers bf16",
        _smallest("peers", "ratio", "sentence-transformers", model=LARGE),
        at_least=3,
        unit="x",
    ),
    Question(
        "7B, one query of 16 tokens, ids to vector, p50",
        _first("query", "p50_ms", model=LARGE, precision="fp8", **_QUERY),
        at_most=2.6,
        unit=" ms",
    ),
    Question(
        "BERT-large, the same, its faster precision",
        _smallest("query", "p50_ms", model=ENCODER, **_QUERY),
        at_most=0.6,
        unit=" ms",
    ),
    Question(
        "7B, 20 queries/s beside full bulk, p99",
        _first("mixed", "p99_ms", **_BESIDE),
        at_most=10,
        unit=" ms",
    ),
    Question("the same, share of bulk lost", _first("mixed", "bulk_loss", **_BESIDE), at_most=0.1),
    Question(
        f"7B, {NUM_CLIENTS:,} clients, a short text a second each, by the Embedder, p99",
        _first("clients", "p99_ms", model=LARGE, num_clients=NUM_CLIENTS, num_refused=0),
        at_most=20,
        unit=" ms",
    ),
    Question(
        "7B, second start of a compiled model, to the first vector",
        _first("start", "first_vector_s", model=LARGE, what="second"),
        at_most=15,
        unit=" s",
    ),
)
