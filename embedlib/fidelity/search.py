"""The search for the layers to keep: as few as a wanted fidelity allows."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import EngineBuildError
from embedlib.fidelity.compare import cosines, mean_and_p1
from embedlib.fidelity.outputs import Embedded
from embedlib.fidelity.texts import FidelityTexts
from embedlib.models.compiled.fidelity_report import Gate

MAX_KEPT_SHARE: Final = 0.5
"""Of the weights of the linear layers; with more of them kept, 8 bits are not worth having."""


@dataclass(frozen=True)
class Unit:
    """Linear layers that are kept together, or not."""

    layers: tuple[str, ...]
    num_weights: int
    """What keeping them costs: the engine's time grows with it."""


class Choices(Protocol):
    """A model in 8 bits, with any of its linear layers kept in more."""

    precision: str
    """Of 8 bits."""
    kept_in: str
    """The precision of kept layers."""
    units: tuple[Unit, ...]

    def embed(self, kept: Collection[str], texts: FidelityTexts) -> Embedded:
        """Return the vectors with these layers kept."""
        ...


@dataclass(frozen=True)
class Target:
    """Texts, and their vectors that are taken for right."""

    texts: FidelityTexts
    right: Embedded


class Search:
    """Measures choices of layers on one set of texts.

    All linear layers in 8 bits, if that passes. Else layers are kept, those first that gain most
    for their size: the gain of each is measured by keeping it alone; then the shortest beginning of
    that order that passes is searched by halving.
    """

    def __init__(
        self,
        choices: Choices,
        whole: Target,
        few: Target,
        report: Callable[[], object] = lambda: None,
    ) -> None:
        """Take the parts.

        Args:
            choices: what is measured.
            whole: what must pass the gate.
            few: what gains are measured on.
            report: called after every measurement.
        """
        self._choices = choices
        self._whole = whole
        self._few = few
        self._report = report

    def find(self, gate: Gate) -> tuple[str, ...]:
        """Return the layers to keep, sorted.

        Raises:
            EngineBuildError: even with half of the weights kept the gate is not passed.
        """
        plain = self._cosines(())
        if _passes(plain, gate):
            return ()
        order = self._rank()
        sums = np.cumsum([unit.num_weights for unit in order])
        # The first `too_few` units do not pass, the first `enough` do.
        too_few, enough = 0, int((sums <= MAX_KEPT_SHARE * sums[-1]).sum())
        best = self._cosines(order[:enough])
        if not _passes(best, gate):
            raise _out_of_reach(self._choices, gate, plain, best)
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            if _passes(self._cosines(order[:middle]), gate):
                enough = middle
            else:
                too_few = middle
        return _layers(order[:enough])

    def _rank(self) -> list[Unit]:
        """Return the units, highest gain for its cost first."""
        units = self._choices.units
        base = self._measure((), self._few).mean()
        gains = {
            unit: float(self._measure(unit.layers, self._few).mean() - base) / unit.num_weights
            for unit in units
        }
        return sorted(units, key=lambda unit: (-gains[unit], unit.layers))

    def _cosines(self, units: Sequence[Unit]) -> NDArray[np.float64]:
        return self._measure(_layers(units), self._whole)

    def _measure(self, kept: Collection[str], target: Target) -> NDArray[np.float64]:
        found = self._choices.embed(kept, target.texts)
        self._report()
        return cosines(target.right.all, found.all)


def max_measurements(choices: Choices) -> int:
    """Return how many times `Search` embeds texts at most."""
    num_units = len(choices.units)
    return 3 + num_units + math.ceil(math.log2(num_units + 1))


def _passes(found: NDArray[np.float64], gate: Gate) -> bool:
    mean, p1 = mean_and_p1(found)
    return mean >= gate.mean and p1 >= gate.p1


def _layers(units: Sequence[Unit]) -> tuple[str, ...]:
    return tuple(sorted(layer for unit in units for layer in unit.layers))


def _out_of_reach(
    choices: Choices, gate: Gate, plain: NDArray[np.float64], best: NDArray[np.float64]
) -> EngineBuildError:
    (mean, p1), (best_mean, best_p1) = mean_and_p1(plain), mean_and_p1(best)
    return EngineBuildError(
        f"{choices.precision} does not reach a mean cosine of {gate.mean} and {gate.p1} for 99 of "
        f"100 texts: with all linear layers in {choices.precision} it has {mean:.5f} and {p1:.5f}, "
        f"with half of their weights kept in {choices.kept_in} {best_mean:.5f} and {best_p1:.5f}; "
        f"lower the gate or stay with {choices.kept_in}"
    )
