"""Cuts texts with the package semantic-text-splitter, and tells it quickly what fits.

To find the end of each chunk it counts ten times as many tokens as a text has. So it is told the
sums of words, which are known after a text or two. Where the tokenizer finds another number of
tokens in a chunk, the text is cut again by the tokenizer's own counts.
Source: docs/measurements/database.md, cutting documents.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Literal

import tokenizers

from embedlib.errors import ConfigError
from embedlib.indexing.chunks.token_counts import (
    WordCounts,
    count_tokens,
    divides_words,
    has_words,
)
from embedlib.packages.installing import install_line

Kind = Literal["TextSplitter", "MarkdownSplitter"]
Pieces = list[tuple[int, str]]
"""Pieces of a text, each behind its start in characters."""
CountedPieces = list[tuple[int, str, int]]
"""The same, each with its number of tokens."""

_IMPORTED_IN = os.getpid()
"""A forked child lacks the threads of the splitter's pool: a call that uses them would not end."""


class Splitter:
    """Cuts texts into pieces of at most so many tokens, at the best places there are."""

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, max_tokens: int, overlap_tokens: int
    ) -> None:
        """Make one; the package is imported when the first text is cut.

        Args:
            tokenizer: without limits; it is not changed.
            max_tokens: limit of a piece, without special tokens.
            overlap_tokens: maximum tokens at the end of a piece that the next one repeats.
        """
        self._tokenizer = tokenizer
        self._limits = (max_tokens, overlap_tokens)
        self._divides_words = divides_words(tokenizer)
        self._words = WordCounts(tokenizer, max_tokens)
        self._failure: BaseException | None = None
        self._by_words: dict[Kind, Any] = {}
        self._by_tokens: dict[Kind, Any] = {}

    def __call__(self, kind: Kind, texts: Sequence[str]) -> list[CountedPieces]:
        """Return the pieces of every text.

        Some may have too many tokens: the package returns its smallest piece even if it does not
        fit, assumes that short texts fit without counting, and has its own build of the tokenizer.

        Raises:
            ConfigError: semantic-text-splitter is not installed or cannot use the tokenizer.
        """
        found = self._counted([self._cut_by_words(kind, text) for text in texts])
        others = [row for row, pieces in enumerate(found) if not self._is_right(pieces)]
        cut = self._cut_by_tokens(kind, [texts[row] for row in others])
        for row, pieces in zip(others, self._counted(cut), strict=True):
            found[row] = pieces
        return found

    def _cut_by_words(self, kind: Kind, text: str) -> Pieces:
        """Return the pieces of a text, or none where its words are not to be counted."""
        # On the main thread a signal may interrupt Python's function, at which the package panics.
        is_main = threading.current_thread() is threading.main_thread()
        if is_main or not (self._divides_words and has_words(text)):
            return []
        if kind not in self._by_words:
            self._by_words[kind] = self._package(kind).from_callback(self._size, *self._limits)
        pieces: Pieces = self._by_words[kind].chunk_indices(text)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return pieces

    def _size(self, text: str) -> int:
        """Return what `WordCounts.size` does; an error, of which the package would die, waits."""
        try:
            return self._words.size(text)
        except BaseException as error:
            self._failure = error
            return 0

    def _is_right(self, pieces: CountedPieces) -> bool:
        """Return whether there are pieces that have as many tokens as their words."""
        return bool(pieces) and all(self._words.total(text) == count for _, text, count in pieces)

    def _cut_by_tokens(self, kind: Kind, texts: Sequence[str]) -> list[Pieces]:
        if not texts:
            return []
        if kind not in self._by_tokens:
            make = self._package(kind).from_huggingface_tokenizer
            try:
                # It counts without special tokens, and builds the tokenizer again from its JSON.
                self._by_tokens[kind] = make(self._tokenizer, *self._limits)
            except Exception as error:  # it raises bare Exception
                raise ConfigError(
                    f"semantic-text-splitter cannot use the tokenizer of this model: {error}; "
                    "split the texts yourself, or choose another model"
                ) from error
        made = self._by_tokens[kind]
        if os.getpid() != _IMPORTED_IN:
            return [made.chunk_indices(text) for text in texts]
        cut: list[Pieces] = made.chunk_all_indices(texts)
        return cut

    def _counted(self, cut: Sequence[Pieces]) -> list[CountedPieces]:
        texts = [text for pieces in cut for _, text in pieces]
        counts = iter(count_tokens(self._tokenizer, texts))
        return [[(start, text, next(counts)) for start, text in pieces] for pieces in cut]

    def _package(self, kind: Kind) -> Any:
        """Return a class of the package.

        Raises:
            ConfigError: it is not installed.
        """
        try:
            return getattr(import_module("semantic_text_splitter"), kind)
        except ImportError as error:
            raise ConfigError(
                "semantic_text_splitter is not installed, and a text is longer than "
                f"{self._limits[0]} tokens; {install_line('index')} ({error})"
            ) from error
