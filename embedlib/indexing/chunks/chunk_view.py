"""How documents are cut, for people to look at: each chunk with its lines and its tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tokenizers

from embedlib.indexing.chunks.token_counts import count_tokens
from embedlib.indexing.rows import Chunk


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkView:
    """A chunk of a document.

    Attributes:
        chunk: its number, from 0.
        num_tokens: of its text, without special tokens and prompt.
        num_prefix_tokens: by which its prefix makes it longer.
        first_line: of the document's text, from 1.
        last_line: the same.
        start_index: its first character.
        end_index: after its last character.
        headings: above it, outermost first.
        prefix: what is embedded in front of it; empty: nothing.
        window: number of the window that it is embedded in, from 0; None: without late chunking.
        text: what is stored.
    """

    chunk: int
    num_tokens: int
    num_prefix_tokens: int
    first_line: int
    last_line: int
    start_index: int
    end_index: int
    headings: tuple[str, ...]
    prefix: str
    window: int | None
    text: str


def view_chunks(
    text: str, chunks: Sequence[Chunk], tokenizer: tokenizers.Tokenizer
) -> Iterator[ChunkView]:
    """Yield the chunks of a document as they are looked at.

    Args:
        text: of the document.
        chunks: that a load cuts it into.
        tokenizer: of the model, without limits.
    """
    counts = count_tokens(tokenizer, [chunk.text for chunk in chunks])
    behind = [chunk.text if chunk.span else chunk.embedded or chunk.text for chunk in chunks]
    embedded = count_tokens(tokenizer, behind)
    window, begin, first_line = -1, 0, 1
    for number, chunk in enumerate(chunks):
        first_line += text.count("\n", begin, chunk.start)
        begin = chunk.start
        window += number == 0 or chunk.embedded != chunks[number - 1].embedded
        yield ChunkView(
            chunk=number,
            num_tokens=counts[number],
            num_prefix_tokens=embedded[number] - counts[number],
            first_line=first_line,
            last_line=first_line + chunk.text.count("\n"),
            start_index=chunk.start,
            end_index=chunk.end,
            headings=chunk.headings,
            prefix=behind[number].removesuffix(chunk.text),
            window=window if chunk.span else None,
            text=chunk.text,
        )
