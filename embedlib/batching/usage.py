"""Counts and times of a call, summed over its jobs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields


@dataclass(kw_only=True)
class Usage:
    """Counts and times of the calls that it was passed to; each job adds its own (`Job.add_to`).

    Seconds are sums over jobs. The jobs of a stream overlap, so the sum may exceed the time of the
    stream.
    """

    num_texts: int = 0
    """Texts, or pairs."""
    num_tokens: int = 0
    """Tokens computed, after truncation: prompts and special tokens included, and of a divided text
    all its windows; padding excluded."""
    truncated: list[tuple[int, int]] = field(default_factory=list)
    """(row, tokens before truncation) of every truncated text."""
    tokenize_seconds: float = 0.0
    """Seconds in the tokenizer."""
    queue_seconds: float = 0.0
    """Seconds from queueing the first sequence to submitting it."""
    compute_seconds: float = 0.0
    """Seconds from submitting the first sequence to the last row."""
    total_seconds: float = 0.0
    """Seconds from the start of the call to its last row."""

    def add(self, other: Usage) -> None:
        """Add what another call counted."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
