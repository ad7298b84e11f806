"""Divides documents into chunks that fit the model, at headings, paragraphs and sentences.

The package semantic-text-splitter chooses where to cut. This module does the rest: it returns texts
that fit whole, cuts very long texts coarsely first, and makes sure that no chunk has too many
tokens, whatever the text contains.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import tokenizers

from embedlib.errors import ConfigError
from embedlib.indexing.chunks.markdown import Outline
from embedlib.indexing.chunks.splitter import Kind, Splitter
from embedlib.indexing.chunks.token_counts import count_tokens, without_limits
from embedlib.indexing.rows import Chunk, Document, Span

MAX_CHARS_PER_TOKEN = 16
"""A longer text is not tokenized whole to see whether it fits: almost none would."""

PART_CHARS = 100_000
"""Maximum characters of a part. Longer texts are cut into parts before the splitter sees them, so
that memory does not grow with the text's tokens."""

UNBROKEN_CHARS = 10_000
"""Where so many characters follow one another without a break, a part ends: for each chunk of them
the splitter tokenizes all that are left. 100,000 Chinese characters took it 14 s in one part."""

_BREAKS = (re.compile(r"\n[ \t]*\r?\n"), re.compile(r"\n"), re.compile(r"\s"))
"""Where a long text may be cut into parts, best first."""

_SENTENCES = re.compile(r"[.!?…][\"')\]]*\s+|[\u3002\uff01\uff1f]")
"""Where a text may be cut between sentences."""


class Chunker:
    """Cuts documents into chunks of at most `max_tokens` tokens.

    The same text always gives the same chunks. White space around a chunk is dropped, and so are
    chunks without a token. A single character with more tokens than allowed stays whole.
    """

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, max_tokens: int, overlap_tokens: int = 0
    ) -> None:
        """Make a chunker.

        Args:
            tokenizer: of the model; it is not changed.
            max_tokens: limit for the chunk's own text, without special tokens and prompt.
            overlap_tokens: maximum tokens at the end of a chunk that the next one repeats.

        Raises:
            ConfigError: chunks would not be longer than what they repeat.
        """
        if overlap_tokens >= max_tokens:
            raise ConfigError(
                f"chunks overlap by {overlap_tokens} tokens; it must be less than the {max_tokens} "
                "tokens of a chunk"
            )
        self._tokenizer = without_limits(tokenizer)
        self._max_tokens = max_tokens
        self._splitter = Splitter(self._tokenizer, max_tokens, overlap_tokens)

    def __call__(self, documents: Sequence[Document]) -> list[list[Chunk]]:
        """Return the chunks of every document, in text order.

        Raises:
            ConfigError: a document is too long and semantic-text-splitter is not installed or
                cannot use the tokenizer.
        """
        chunks = self._try_whole([document.text for document in documents])
        kinds: tuple[tuple[Kind, bool], ...] = (("TextSplitter", False), ("MarkdownSplitter", True))
        for kind, is_markdown in kinds:
            rows = [
                row
                for row, found in enumerate(chunks)
                if found is None and documents[row].is_markdown == is_markdown
            ]
            texts = [documents[row].text for row in rows]
            outlines = [Outline(text if is_markdown else "") for text in texts]
            split = self._split(texts, outlines, kind)
            for row, text, outline, spans in zip(rows, texts, outlines, split, strict=True):
                joined = self._join_headings(text, outline, spans)
                chunks[row] = [_chunk(text, span, outline.above(span[0])) for span in joined]
        return [found or [] for found in chunks]

    def _try_whole(self, texts: Sequence[str]) -> list[list[Chunk] | None]:
        """Return per text its one chunk if it fits, [] if it has no token, None if it is long."""
        chunks: list[list[Chunk] | None] = [None] * len(texts)
        rows = [
            row
            for row, text in enumerate(texts)
            if len(text) <= self._max_tokens * MAX_CHARS_PER_TOKEN
        ]
        spans = [_strip(texts[row], (0, len(texts[row]))) for row in rows]
        counts = self._count(
            [texts[row][slice(*span)] for row, span in zip(rows, spans, strict=True)]
        )
        for row, span, num_tokens in zip(rows, spans, counts, strict=True):
            if num_tokens <= self._max_tokens:
                chunks[row] = [_chunk(texts[row], span)] if num_tokens else []
        return chunks

    def _split(
        self, texts: Sequence[str], outlines: Sequence[Outline], kind: Kind
    ) -> list[list[Span]]:
        """Return the spans of the chunks of long texts."""
        parts = [
            (row, span)
            for row, (text, outline) in enumerate(zip(texts, outlines, strict=True))
            for part in _parts(text, outline)
            for span in _without_long_runs(text, part)
        ]
        pieces = self._splitter(kind, [texts[row][slice(*span)] for row, span in parts])
        counted: list[list[tuple[Span, int]]] = [[] for _ in texts]
        for (row, (part_start, _)), found in zip(parts, pieces, strict=True):
            for start, piece, num_tokens in found:
                begin = part_start + start
                counted[row].append(((begin, begin + len(piece)), num_tokens))
        return [self._fit(text, found) for text, found in zip(texts, counted, strict=True)]

    def _fit(self, text: str, counted: Iterable[tuple[Span, int]]) -> list[Span]:
        """Halve spans that have too many tokens, and drop those that have none or are white space.

        Python counts more characters as white space than the splitter, such as U+001F.
        """
        fitting: list[Span] = []
        for (start, end), num_tokens in counted:
            if num_tokens > self._max_tokens and end - start > 1:
                middle = (start + end) // 2
                halves = [_strip(text, (start, middle)), _strip(text, (middle, end))]
                fitting += self._fit(text, self._counted(text, halves))
            elif num_tokens and text[start:end].strip():
                fitting.append((start, end))
        return fitting

    def _counted(self, text: str, spans: Sequence[Span]) -> list[tuple[Span, int]]:
        counts = self._count([text[slice(*span)] for span in spans])
        return list(zip(spans, counts, strict=True))

    def _join_headings(self, text: str, outline: Outline, spans: Sequence[Span]) -> list[Span]:
        """Put a chunk that is a heading alone in front of the next one; it says nothing by itself.

        The splitter makes one where the text below the heading fills a chunk.
        """
        joined: list[Span] = []
        for span in spans:
            # With overlap, a chunk may begin with all that cuts have left of the one before.
            while joined and joined[-1][0] >= span[0]:
                joined.pop()
            if joined and outline.is_all(text, *joined[-1]):
                joined += self._join(text, outline, joined.pop(), span)
            else:
                joined.append(span)
        if len(joined) > 1 and outline.is_all(text, *joined[-1]):
            joined[-2:] = self._join_last(text, outline, *joined[-2:])
        return joined

    def _join_last(self, text: str, outline: Outline, span: Span, heading: Span) -> list[Span]:
        """Return the last chunks of a text that ends with a heading: it takes some text before."""
        whole = (span[0], heading[1])
        if self._fits(text, whole):
            return [_strip(text, whole)]
        for pattern in (_BREAKS[0], _BREAKS[1], _SENTENCES, _BREAKS[2]):
            for cut in reversed([match.end() for match in pattern.finditer(text, *span)]):
                before, after = _strip(text, (span[0], cut)), _strip(text, (cut, heading[1]))
                if not self._fits(text, after):
                    break
                if after[0] < heading[0] and not outline.is_all(text, *before):
                    return [before, after]
        return [span, heading]

    def _join(self, text: str, outline: Outline, heading: Span, span: Span) -> list[Span]:
        """Return the chunks of a heading and the chunk after it, which may have to be cut."""
        whole = (heading[0], span[1])
        if self._fits(text, whole):
            return [_strip(text, whole)]
        cut = self._cut(text, outline, heading, span)
        if cut is None:
            return [heading, span]
        after = self._counted(text, [_strip(text, (cut, span[1]))])
        return [_strip(text, (heading[0], cut)), *self._fit(text, after)]

    def _cut(self, text: str, outline: Outline, heading: Span, span: Span) -> int | None:
        """Return where to cut a chunk so that its beginning fits after a heading; None: nowhere."""
        # Not between the headings that it begins with and their text.
        begin, _ = _strip(text, (outline.skip(text, *span), span[1]))
        used, total = self._count([text[slice(*heading)], text[slice(*span)]])
        highest = span[0] + (span[1] - span[0]) * (self._max_tokens - used) // total
        # Some scripts have no blanks, and a word without an end is cut anyway.
        has_blanks = _BREAKS[2].search(text, begin, span[1]) is not None
        while highest > begin:
            cut = _find_break(text, begin, highest, (*_BREAKS, _SENTENCES))
            if cut is None and not has_blanks:
                cut = highest
            if cut is None or self._fits(text, (heading[0], cut)):
                return cut
            highest = cut - 1
        return None

    def _fits(self, text: str, span: Span) -> bool:
        """Return whether a span fits without the white space at its ends."""
        return self._count([text[slice(*span)].strip()])[0] <= self._max_tokens

    def _count(self, texts: Sequence[str]) -> list[int]:
        return count_tokens(self._tokenizer, texts)


def cut_nothing(documents: Sequence[Document]) -> list[list[Chunk]]:
    """Return every document as one chunk."""
    return [[_chunk(document.text, (0, len(document.text)))] for document in documents]


def _parts(text: str, outline: Outline) -> Iterator[Span]:
    """Yield parts of at most PART_CHARS, cut before headings or between paragraphs."""
    headings = [heading.start for heading in outline.headings]
    start = 0
    while len(text) - start > PART_CHARS:
        lowest, highest = start + PART_CHARS // 2, start + PART_CHARS
        index = bisect_right(headings, highest) - 1
        if index >= 0 and headings[index] > lowest:
            end = headings[index]
        else:
            end = _find_break(text, lowest, highest) or highest
        yield start, end
        start = end
    yield start, len(text)


def _without_long_runs(text: str, part: Span) -> Iterator[Span]:
    """Yield a part, cut wherever it has UNBROKEN_CHARS without white space or a sentence's end."""
    start, end = part
    last = start
    breaks = (kind.finditer(text, *part) for kind in (_BREAKS[2], _SENTENCES))
    for place in (*sorted(match.end() for found in breaks for match in found), end):
        while place - last > UNBROKEN_CHARS:
            last += UNBROKEN_CHARS
            yield start, last
            start = last
        last = place
    yield start, end


def _find_break(
    text: str, lowest: int, highest: int, patterns: Sequence[re.Pattern[str]] = _BREAKS
) -> int | None:
    """Return the end of the last break of the best kind there is."""
    for pattern in patterns:
        ends = [match.end() for match in pattern.finditer(text, lowest, highest)]
        if ends:
            return ends[-1]
    return None


def _strip(text: str, span: Span) -> Span:
    """Return a span without the white space around it."""
    start, end = span
    piece = text[start:end]
    return end - len(piece.lstrip()), start + len(piece.rstrip())


def _chunk(text: str, span: Span, headings: tuple[str, ...] = ()) -> Chunk:
    start, end = span
    return Chunk(text=text[start:end], start=start, end=end, headings=headings)
