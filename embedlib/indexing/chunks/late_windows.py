"""Late chunking of documents: the windows that are embedded at once, each with its chunks.

A document that the model takes whole is one window. A longer one has several, of whole chunks. Each
but the first begins with the last chunk of the one before, or with several, as context: their
tokens are seen by the others, and not pooled.

Source: Günther et al. 2024, "Late Chunking: Contextual Chunk Embeddings Using Long-Context
Embedding Models", arXiv:2409.04701, section 3, where a window is called a macro chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from inspect import signature
from typing import Any

import tokenizers

from embedlib.errors import ConfigError
from embedlib.indexing.chunks.token_counts import count_tokens, without_limits
from embedlib.indexing.embedders import TextEmbedder
from embedlib.indexing.rows import Chunk, CutDocuments, Document

CONTEXT_TOKENS = 256
"""Context that may be more than one chunk. At most a quarter of a window.

Source: DEFAULT_LONG_LATE_CHUNKING_OVERLAP_SIZE in run_chunked_eval.py of jina-ai/late-chunking.
"""
WINDOW_CHUNKS = 4
"""Chunks that a full window has at least, unless the caller sets their size: a chunk as long as the
window would have no context."""


def check_late(embedder: TextEmbedder) -> None:
    """Refuse a model that cannot embed chunks late, before anything is read.

    It makes the second engine, which computes the vectors of tokens.

    Raises:
        ConfigError: its pooling is another than the mean, an option contradicts late chunking, or
            it is another embedder than an `Embedder`, here or in workers of a cluster.
        EngineError: its engine has no vectors of tokens.
    """
    submit: Callable[..., Future[Any]] = embedder.submit_batch
    if "chunks" not in signature(submit).parameters:
        raise ConfigError(
            "late_chunking needs an embedlib.Embedder; leave it out for an embedder of your own"
        )
    try:
        submit(["a"], role="document", chunks=[[(0, 1)]]).result()
    except ConfigError as error:
        raise ConfigError(f"late_chunking: {error}") from error


class WindowedChunks:
    """Cuts documents, and gives each chunk the window that it is embedded in."""

    def __init__(self, cut: CutDocuments, tokenizer: tokenizers.Tokenizer, max_tokens: int) -> None:
        """Prepare.

        Args:
            cut: cuts the documents.
            tokenizer: of the model; it is not changed.
            max_tokens: of a window, without special tokens and prompt.
        """
        self._cut = cut
        self._tokenizer = without_limits(tokenizer)
        self._max_tokens = max_tokens
        self._context_tokens = min(CONTEXT_TOKENS, max_tokens // 4)

    def __call__(self, documents: Sequence[Document]) -> list[list[Chunk]]:
        """Return the chunks of every document, in text order."""
        return [
            list(self._put(document.text, chunks))
            for document, chunks in zip(documents, self._cut(documents), strict=True)
        ]

    def _put(self, text: str, chunks: Sequence[Chunk]) -> Iterator[Chunk]:
        for begin, first, after in self._windows(text, chunks):
            start, end = _span(chunks[begin:after])
            window = text[start:end]
            for chunk in chunks[first:after]:
                span = (chunk.start - start, chunk.end - start)
                yield replace(chunk, embedded=window, span=span)

    def _windows(self, text: str, chunks: Sequence[Chunk]) -> Iterator[tuple[int, int, int]]:
        """Yield the first chunk of every window, the first one that it pools, and its end."""
        counts = count_tokens(self._tokenizer, [chunk.text for chunk in chunks])
        first = 0
        while first < len(chunks):
            begin, after = self._context(counts, first), first + 1
            room = self._max_tokens - sum(counts[begin:after])
            while after < len(chunks) and counts[after] <= room:
                room -= counts[after]
                after += 1
            # Counted apart, tokens are other ones at the ends of chunks, and overlaps count twice.
            while after - begin > 1 and self._excess(text, chunks[begin:after]) > 0:
                if begin < first:
                    begin += 1
                else:
                    after -= 1
            yield begin, first, after
            first = after

    def _context(self, counts: Sequence[int], first: int) -> int:
        """Return the first chunk of the context of a window that pools from `first` on."""
        begin = max(0, first - 1)
        while begin > 0 and sum(counts[begin - 1 : first]) <= self._context_tokens:
            begin -= 1
        return begin

    def _excess(self, text: str, chunks: Sequence[Chunk]) -> int:
        return count_tokens(self._tokenizer, [text[slice(*_span(chunks))]])[0] - self._max_tokens


def _span(chunks: Sequence[Chunk]) -> tuple[int, int]:
    return chunks[0].start, max(chunk.end for chunk in chunks)
