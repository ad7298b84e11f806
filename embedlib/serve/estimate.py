"""How many tokens texts will have: a door is asked before they are tokenized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from embedlib.serve.admission import Load


class TokenEstimate:
    """Estimates the tokens of texts from their characters, as those before them were."""

    def __init__(self) -> None:
        """Start with four characters a token, about as of English."""
        self._num_chars = 4
        self._num_tokens = 1

    def load_of(self, texts: Sequence[Any], num_chars: int) -> Load:
        """Return the work of texts, pairs or token ids, which are counted."""
        if isinstance(texts[0], list):
            return Load(len(texts), num_chars)
        return Load(len(texts), len(texts) + num_chars * self._num_tokens // self._num_chars)

    def learn(self, texts: Sequence[Any], num_chars: int, num_tokens: int) -> None:
        """Take how many tokens texts had, truncated as they were."""
        if not isinstance(texts[0], list):
            self._num_chars += num_chars
            self._num_tokens += num_tokens


def count_chars(texts: Sequence[Any]) -> int:
    """Return the characters of texts or pairs, or the number of token ids."""
    if isinstance(texts[0], tuple):
        return sum([len(first) + len(second) for first, second in texts])
    return sum(map(len, texts))
