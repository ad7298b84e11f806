"""Searches for the smallest set of layers that must be kept to pass a gate."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import EngineBuildError
from embedlib.fidelity.compare import cosines, mean_and_p1, passes
from embedlib.fidelity.outputs import Embedded
from embedlib.fidelity.texts import FidelityTexts
from embedlib.models.compiled.fidelity_report import Gate

MAX_KEPT_SHARE: Final = 0.5
"""Maximum share of the linear layers' weights that is kept. Above it, 8 bits save too little."""
TINY: Final = 1e-12
"""Instead of a loss of zero, by which nothing can be divided."""


@dataclass(frozen=True)
class Unit:
    """Linear layers that are kept or quantized together."""

    layers: tuple[str, ...]
    num_weights: int
    """The cost of keeping them: the engine's time grows with it."""


class OutOfReachError(EngineBuildError):
    """The gate does not pass even with half of the weights kept."""


class Choices(Protocol):
    """A model in 8 bits whose linear layers can each be kept in a higher precision."""

    precision: str
    """The 8-bit precision."""
    kept_in: str
    """The precision of kept layers."""
    units: tuple[Unit, ...]

    def embed(self, kept: Collection[str], texts: FidelityTexts) -> Embedded:
        """Return the vectors of texts with these layers kept."""
        ...


@dataclass(frozen=True)
class Target:
    """Texts, and their reference vectors."""

    texts: FidelityTexts
    right: Embedded


@dataclass(frozen=True)
class LayerSearch:
    """Searches for the layers to keep, by measuring choices of layers on two sets of texts.

    Keeps no layer if the gate passes with all linear layers in 8 bits. Otherwise measures the gain
    of each unit by keeping it alone, sorts the units by gain per weight, and finds the shortest
    beginning of that order that passes: it starts at the one that the gains promise, goes on in
    steps that double, then by bisection.
    """

    choices: Choices
    """The model that is measured."""
    whole: Target
    """The texts that must pass the gate."""
    few: Target
    """The texts on which gains are measured."""
    report: Callable[[int, int], object] = lambda num_done, num_all: None
    """Called after every measurement with their number so far, and their maximum number."""
    _numbers: Iterator[int] = field(default_factory=lambda: count(1), init=False)

    def find(self, gate: Gate) -> tuple[str, ...]:
        """Return the layers to keep, sorted.

        Raises:
            EngineBuildError: the gate does not pass even with half of the weights kept.
        """
        plain = self._cosines(())
        if passes(plain, gate):
            return ()
        order, gains = self._rank()
        sums = np.cumsum([unit.num_weights for unit in order])
        most = int((sums <= MAX_KEPT_SHARE * sums[-1]).sum())
        needed = 1 - _allowed_share(plain, gate)
        sums_of_gains = np.maximum.accumulate(np.cumsum(gains))
        # The first `too_few` units do not pass, the first `enough` do or are too many.
        too_few, enough = 0, most + 1
        probe, step = min(int(np.searchsorted(sums_of_gains, needed)) + 1, most), 1
        found = plain
        while enough - too_few > 1:
            found = self._cosines(order[:probe])
            if passes(found, gate):
                enough = probe
            else:
                too_few = probe
            if enough > most:
                probe = min(too_few + step, most)
            elif too_few == 0:
                probe = max(enough - step, 1)
            else:
                probe = (too_few + enough) // 2
            step *= 2
        if too_few == most:
            raise _out_of_reach(self.choices, gate, plain, found)
        return _layers(order[:enough])

    def _rank(self) -> tuple[list[Unit], list[float]]:
        """Return the units, highest gain per weight first, and their gains.

        A gain is a share of what all units lose. The losses add up nearly: the errors of layers
        are independent, and 1 - cosine grows with the square of an error.
        """
        base = 1 - self._measure((), self.few).mean()
        gains = {
            unit: float(base + self._measure(unit.layers, self.few).mean() - 1) / max(base, TINY)
            for unit in self.choices.units
        }
        order = sorted(gains, key=lambda unit: -gains[unit] / unit.num_weights)
        return order, [gains[unit] for unit in order]

    def _cosines(self, units: Sequence[Unit]) -> NDArray[np.float64]:
        return self._measure(_layers(units), self.whole)

    def _measure(self, kept: Collection[str], target: Target) -> NDArray[np.float64]:
        found = self.choices.embed(kept, target.texts)
        self.report(next(self._numbers), max_measurements(self.choices))
        return cosines(target.right.all, found.all)


def max_measurements(choices: Choices) -> int:
    """Return the maximum number of times that `LayerSearch` embeds texts."""
    num_units = len(choices.units)
    return 3 + num_units + 2 * math.ceil(math.log2(num_units + 1))


def _allowed_share(plain: NDArray[np.float64], gate: Gate) -> float:
    """Return which share of the loss with all layers in 8 bits the gate allows."""
    mean, p1 = mean_and_p1(plain)
    return min((1 - gate.mean) / max(1 - mean, TINY), (1 - gate.p1) / max(1 - p1, TINY))


def _layers(units: Sequence[Unit]) -> tuple[str, ...]:
    return tuple(sorted(layer for unit in units for layer in unit.layers))


def _out_of_reach(
    choices: Choices, gate: Gate, plain: NDArray[np.float64], best: NDArray[np.float64]
) -> OutOfReachError:
    (mean, p1), (best_mean, best_p1) = mean_and_p1(plain), mean_and_p1(best)
    return OutOfReachError(
        f"{choices.precision} does not reach a mean cosine of {gate.mean} and {gate.p1} for 99 of "
        f"100 texts: with all linear layers in {choices.precision} it has {mean:.5f} and {p1:.5f}, "
        f"with half of their weights kept {best_mean:.5f} and {best_p1:.5f}; "
        f"lower the gate or stay with {choices.kept_in}"
    )
