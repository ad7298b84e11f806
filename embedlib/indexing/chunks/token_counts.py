"""Counts the tokens of texts: by the tokenizer, or by words, of which each is tokenized once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import tokenizers

from embedlib.batching.tokenizing.refusals import lacking

COUNT_TEXTS: Final = 256
"""Texts per call of the tokenizer."""

MAX_WORD_CHARS: Final = 20
"""Of a text whose words are longer in the mean, few words occur again: Chinese, data in base64."""

_KEPT_WORDS: Final = 1 << 16
_KEPT_CHARS: Final = 40
"""Longer words seldom occur again, and are not kept."""

_HEAD_CHARS: Final = 6
"""Characters for each token that fits, of which a text that does not fit has at least one token."""

_WORDS: Final = re.compile(r"[ \t\r\n]*[^ \t\r\n]+|[ \t\r\n]+")
"""A word and the white space before it, which is a part of its first token to many tokenizers. What
else is white space to Python, such as U+001F, ends no word of a BERT."""


class WordCounts:
    """Counts the tokens of a text as those of its words, of which each is tokenized once.

    That is right for nearly all tokenizers that divide texts into words first; whoever uses it
    checks the result with `count_tokens`.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, max_tokens: int) -> None:
        """Know no words yet.

        Args:
            tokenizer: without limits.
            max_tokens: of a text with more it does not matter how many they are.
        """
        self._max_tokens = max_tokens
        self._words = _Words(tokenizer)

    def total(self, text: str) -> int:
        """Return the tokens of a text."""
        return sum(map(self._words.__getitem__, _WORDS.findall(text)))

    def size(self, text: str) -> int:
        """Return the tokens of a text; if they do not fit, a larger number for a longer text."""
        head = _HEAD_CHARS * self._max_tokens
        if len(text) > head:
            words = _WORDS.findall(text, 0, head)
            if sum(map(self._words.__getitem__, words[:-1])) > self._max_tokens:
                return self._max_tokens + len(text)
        return self.total(text)


class _Words(dict[str, int]):
    """The number of tokens of each word that was asked for."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __missing__(self, word: str) -> int:
        [count] = count_tokens(self._tokenizer, [word])
        if len(word) <= _KEPT_CHARS:
            if len(self) >= _KEPT_WORDS:
                self.clear()
            self[word] = count
        return count


def divides_words(tokenizer: tokenizers.Tokenizer) -> bool:
    """Return whether a tokenizer divides a text into words first.

    Those of Gemma and Mistral do not: their tokens may go on behind a blank.
    """
    text, normalizer = "ab cd", tokenizer.normalizer
    if normalizer is not None:
        text = normalizer.normalize_str(text)
    words = tokenizer.pre_tokenizer
    return words is not None and len(words.pre_tokenize_str(text)) > 1


def has_words(text: str) -> bool:
    """Return whether a text has as many words as texts of most languages have."""
    return len(text) <= MAX_WORD_CHARS * len(text.split())


def count_tokens(tokenizer: tokenizers.Tokenizer, texts: Sequence[str]) -> list[int]:
    """Return the number of tokens of every text, without special tokens.

    Args:
        tokenizer: without limits.
        texts: any number.

    Raises:
        EmbedlibError: the tokenizer lacked threads or memory.
    """
    counts: list[int] = []
    for first in range(0, len(texts), COUNT_TEXTS):
        try:
            encodings = tokenizer.encode_batch_fast(
                list(texts[first : first + COUNT_TEXTS]), add_special_tokens=False
            )
        except BaseException as error:  # a panic is no Exception
            lack = lacking(error)
            if lack is None:
                raise
            raise lack from error
        counts += [len(encoding.ids) for encoding in encodings]
    return counts


def without_limits(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return the tokenizer without truncation and padding, to count the tokens of a text."""
    if tokenizer.truncation is None and tokenizer.padding is None:
        return tokenizer
    copy = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    copy.encode_special_tokens = tokenizer.encode_special_tokens  # not in the JSON
    copy.no_truncation()
    copy.no_padding()
    return copy
