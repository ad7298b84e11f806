"""How long each block may take, so that all of them end in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Final

SECONDS: Final = MappingProxyType(
    {
        "ceilings": 20.0,
        "gate": 30.0,
        "bulk": 70.0,
        "query": 12.0,
        "mixed": 40.0,
        "clients": 12.0,
        "variants": 60.0,
        "peers": 100.0,
        "start": 150.0,
    }
)
"""What a block would like to have for the largest model, an estimate; only the proportions count.
The first one that needs an engine starts it."""
MAX_MEASURING_S: Final = 5.0
"""Of one measurement: a steady rate shows in less."""
MIN_MEASURING_S: Final = 0.05
"""Of one that was begun, though the time is over: something has to come back."""
MEASURING_SHARE: Final = 0.5
"""Of a block's time: warming up, starting processes and making ids take the rest."""


class Budget:
    """Divides the time that is left among the blocks that are left.

    What a block leaves goes to those behind it, and what it takes too much is theirs as well.
    """

    def __init__(
        self, total_s: float, wishes_s: Sequence[float], clock: Callable[[], float]
    ) -> None:
        """Begin.

        Args:
            total_s: for everything.
            wishes_s: what the blocks would like to have, in their order.
            clock: returns the time in seconds.
        """
        self._clock = clock
        self._end = clock() + total_s
        self._wishes = list(wishes_s)
        self._block_end = self._end

    def begin_block(self) -> None:
        """Begin the next block."""
        now = self._clock()
        share = self._wishes[0] / sum(self._wishes)
        del self._wishes[0]
        self._block_end = now + max(0.0, self._end - now) * share

    @property
    def left_s(self) -> float:
        """What the block has left; below 0 it has taken too much."""
        return self._block_end - self._clock()

    @property
    def run_left_s(self) -> float:
        """What everything together has left."""
        return self._end - self._clock()

    def measuring_s(self, num_left: int) -> float:
        """Return how long the next measurement may take, when `num_left` are left in the block."""
        wanted = MEASURING_SHARE * self.left_s / num_left
        return min(MAX_MEASURING_S, max(MIN_MEASURING_S, wanted))
