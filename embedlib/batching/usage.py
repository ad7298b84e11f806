"""What one call used: counts and times, summed over the jobs of the call."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Usage:
    """What calls used; each job adds itself (`Job.add_to`).

    Seconds are sums over jobs. The jobs of a stream overlap, so their sum may be longer than the
    stream took.
    """

    num_texts: int = 0
    """Texts, or pairs."""
    num_tokens: int = 0
    """Tokens computed, after truncation: those of prompts and special tokens included, of a divided
    text those of all its windows; padding excluded."""
    truncated: list[tuple[int, int]] = field(default_factory=list)
    """(row, tokens before the cut) of every text that was cut."""
    tokenize_seconds: float = 0.0
    """Seconds in the tokenizer."""
    queue_seconds: float = 0.0
    """Seconds from the first sequence queued to the first one submitted to the engine."""
    compute_seconds: float = 0.0
    """Seconds from the first sequence submitted to the last row returned."""
    total_seconds: float = 0.0
    """Seconds from the start of the call to its last row."""
