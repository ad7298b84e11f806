"""Compares two sets of vectors of the same texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from embedlib.fidelity.outputs import Embedded
from embedlib.models.compiled.fidelity_report import FidelityReport, Gate, TextFidelity
from embedlib.vectors.similarity import similarity

TOP: Final = 10
NUM_WORST: Final = 5
WORST_TEXT_CHARACTERS: Final = 80


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Result of a comparison: the report, and the cosine of every row."""

    report: FidelityReport
    cosines: NDArray[np.float64]
    """float64[N], in the order of `MeasuredModel.row_texts`."""


def cosines(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return float64[N]: the cosine of each row of `first` with the same row of `second`.

    It is exactly 1 for equal rows.
    """
    a, b = first.astype(np.float64), second.astype(np.float64)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    products = (a * b).sum(axis=1)
    result = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    result[(first == second).all(axis=1)] = 1  # also two zero vectors
    clipped: NDArray[np.float64] = np.clip(result, -1, 1)  # rounding can exceed 1
    return clipped


def mean_and_p1(found: NDArray[np.float64]) -> tuple[float, float]:
    """Return the two figures of a gate: the mean, and the cosine that 99 of 100 texts reach."""
    return float(found.mean()), float(np.quantile(found, 0.01))


def passes(found: NDArray[np.float64], gate: Gate) -> bool:
    """Return whether vectors with these cosines count as the same."""
    mean, p1 = mean_and_p1(found)
    return mean >= gate.mean and p1 >= gate.p1


def top10_overlap(reference: Embedded, candidate: Embedded) -> float | None:
    """Return the share of a query's ten nearest documents found by both, averaged over queries.

    None if there are no queries, or at most ten documents.
    """
    if len(reference.queries) == 0 or len(reference.documents) <= TOP:
        return None
    nearest = [
        np.argsort(-similarity("cosine", side.queries, side.documents), axis=1, kind="stable")
        for side in (reference, candidate)
    ]
    shared = [len({*a[:TOP]} & {*b[:TOP]}) for a, b in zip(*nearest, strict=True)]
    return float(np.mean(shared)) / TOP


def compare(
    reference: Embedded,
    candidate: Embedded,
    texts: Sequence[str],
    make_report: Callable[..., FidelityReport],
) -> Comparison:
    """Compare the vectors of two precisions, or two engines, of one model.

    Args:
        reference: the rows to compare with.
        candidate: the rows that are measured.
        texts: the text of each row.
        make_report: takes the figures; knows what else the report says.
    """
    found = cosines(reference.all, candidate.all)
    worst = np.argsort(found, kind="stable")[:NUM_WORST]
    mean, p1 = mean_and_p1(found)
    report = make_report(
        num_texts=len(found),
        mean=mean,
        p1=p1,
        min=float(found.min()),
        top10_overlap=top10_overlap(reference, candidate),
        worst=tuple(
            TextFidelity(text=texts[row][:WORST_TEXT_CHARACTERS], cosine=float(found[row]))
            for row in worst
        ),
    )
    return Comparison(report=report, cosines=found)
