"""Equal sequences of a batch: computed once, and each gets its own copy of the row.

Sequences are twins if an engine cannot tell them apart: same token ids, same number of prompt
tokens, of tokens of type 0 and of tokens that others attend to. A batch lists twins like any other
sequences, so one that is cancelled, or whose job fails, takes nothing from the others; only what
the engine gets and what it returns are changed here.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from embedlib.batching.sequence import TokenizedText
from embedlib.vectors.arrays import Vectors


def identity(sequence: TokenizedText) -> Hashable:
    """Return what twins have in common."""
    return (
        sequence.num_prompt_tokens,
        sequence.num_type0_tokens,
        sequence.num_attended,
        tuple(sequence.token_ids),
    )


@dataclass(frozen=True)
class Distinct:
    """The sequences of a batch without their twins."""

    sequences: Sequence[TokenizedText]
    """The first one of each kind."""
    places: Sequence[int]
    """For every sequence of the batch its place among them."""

    @classmethod
    def of(cls, sequences: Sequence[TokenizedText]) -> Distinct:
        """Find the twins of a batch."""
        if len(sequences) == 1:
            return cls(sequences, (0,))
        place_of: dict[Hashable, int] = {}
        places = [place_of.setdefault(identity(item), len(place_of)) for item in sequences]
        if len(place_of) == len(sequences):
            return cls(sequences, places)
        firsts = dict(zip(reversed(places), reversed(sequences), strict=True))
        return cls([firsts[place] for place in range(len(firsts))], places)

    def rows_for_all(self, vectors: Vectors, *, is_per_token: bool) -> Vectors:
        """Return the rows of all sequences of the batch, given those of the distinct ones."""
        if len(self.sequences) == len(self.places):
            return vectors
        if not is_per_token:
            return vectors[list(self.places)]
        ends = np.cumsum([0, *(sequence.num_tokens for sequence in self.sequences)])
        rows = [np.arange(ends[place], ends[place + 1]) for place in self.places]
        expanded: Vectors = vectors[np.concatenate(rows)]
        return expanded
