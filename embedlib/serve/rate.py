"""How fast a model computes: of late, and not since it was loaded."""

from __future__ import annotations

RATE_SECONDS = 1.0
"""Of computing, over which a rate is measured. The first batch of a model takes many times as long
as others, and a batch of one query computes a hundredth of the tokens of a batch of bulk."""


class Rate:
    """Tokens per second, measured between the times at which it is asked for. Any thread asks."""

    def __init__(self) -> None:
        """Begin when nothing was computed."""
        self._since = (0, 0.0)
        self._rate = 0.0

    def at(self, num_tokens: int, seconds: float) -> float:
        """Return the rate when so much was computed, in so many seconds of it; 0: not known yet."""
        tokens_before, seconds_before = self._since
        passed = seconds - seconds_before
        if passed >= RATE_SECONDS:
            self._rate = (num_tokens - tokens_before) / passed
            self._since = num_tokens, seconds
        return self._rate
