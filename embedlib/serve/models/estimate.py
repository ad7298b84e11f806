"""What a door is told of texts before they are tokenized: their tokens, and how fast they go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from embedlib.serve.errors import HTTPError
from embedlib.serve.models.admission import Load

MAX_TEXT_CHARACTERS: Final = 1 << 20
"""Of one text; a tokenizer takes up to 150 bytes of memory for each."""
MAX_TOKENS_PER_CHARACTER: Final = 4
"""That are learned: one for each byte of UTF-8. Special tokens and prompts of empty texts would
make any number of them."""
RATE_SECONDS = 1.0
"""Of computing, over which a rate is measured. The first batch of a model takes many times as long
as others, and a batch of one query computes a hundredth of the tokens of a batch of bulk."""


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
            self._num_tokens += min(num_tokens, num_chars * MAX_TOKENS_PER_CHARACTER)


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


def check_lengths(texts: Sequence[Any], num_chars: int, field: str) -> None:
    """Check that no text takes a tokenizer too much memory.

    Args:
        texts: texts, pairs or token ids, which have no tokenizer.
        num_chars: of all, as `count_chars` counts them.
        field: of the body, which has them.

    Raises:
        HTTPError: one is.
    """
    if num_chars <= MAX_TEXT_CHARACTERS or isinstance(texts[0], list):
        return
    for row, text in enumerate(texts):
        longest = max(map(len, text)) if isinstance(text, tuple) else len(text)
        if longest > MAX_TEXT_CHARACTERS:
            raise HTTPError(
                413,
                f"text {row} has {longest:,} characters; one may have {MAX_TEXT_CHARACTERS:,}, "
                "since all of it is tokenized at once: divide it",
                "too_large",
                param=field,
            )


def count_chars(texts: Sequence[Any]) -> int:
    """Return the characters of texts or pairs, or the number of token ids."""
    if isinstance(texts[0], tuple):
        return sum([len(first) + len(second) for first, second in texts])
    return sum(map(len, texts))
