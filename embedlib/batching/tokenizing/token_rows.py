"""Late interaction: tokens behind a short query, and which tokens of a sequence get a vector."""

from __future__ import annotations

from dataclasses import dataclass

from embedlib.batching.sequence import TokenizedText


@dataclass(frozen=True, kw_only=True)
class TokenRows:
    """What a late-interaction model does to the sequences of a role."""

    skipped_ids: frozenset[int] = frozenset()
    """Tokens without a vector."""
    fill_id: int = 0
    """The token behind a short sequence; it gets a vector."""
    min_tokens: int = 0
    """Shorter sequences are filled up to this length."""
    is_fill_attended: bool = True
    """Whether the other tokens attend to these."""

    def apply(self, sequence: TokenizedText) -> None:
        """Fill up a sequence, and note the tokens that get a vector."""
        num_given = sequence.num_tokens
        if num_given < self.min_tokens:
            # A list of its own: others may hold the given one.
            missing = self.min_tokens - num_given
            sequence.token_ids = [*sequence.token_ids, *[self.fill_id] * missing]
            if not self.is_fill_attended:
                sequence.num_attended = num_given
        if not self.skipped_ids.isdisjoint(sequence.token_ids):
            sequence.returned_rows = [
                place
                for place, token_id in enumerate(sequence.token_ids)
                if token_id not in self.skipped_ids
            ]
