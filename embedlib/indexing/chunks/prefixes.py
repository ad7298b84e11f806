"""Prefixes of chunks: text that is embedded in front of a chunk, and not stored.

A chunk out of the middle of a document often does not say what it is about. Its headings do, or the
document's title, or a sentence that a language model has written about it.

Source: Anthropic, "Introducing Contextual Retrieval" (September 2024), for the last kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tokenizers

from embedlib.errors import ConfigError, shown
from embedlib.indexing.chunks.templates import Prefix, Template, parse_template
from embedlib.indexing.chunks.token_counts import count_tokens, without_limits
from embedlib.indexing.rows import Chunk, CutDocuments, Document
from embedlib.indexing.sinks.protocol import Tell
from embedlib.indexing.sources.json_values import BadValueError, check_text

PREFIX_TOKENS = 128
"""Room that a chunk leaves for its prefix where the model has no more: a path of headings, or a
sentence or two. At most a quarter of the model's room."""


def prefix_room(room: int) -> int:
    """Return how many tokens of a model's room chunks leave to their prefixes."""
    return min(PREFIX_TOKENS, room // 4)


class PrefixedChunks:
    """Cuts documents and puts a prefix in front of each chunk.

    The prefix is that of the template or function, followed by the path of headings. It is
    shortened where both do not fit: first by the outermost headings, then by its beginning.
    """

    def __init__(
        self,
        cut: CutDocuments,
        tokenizer: tokenizers.Tokenizer,
        room: int | None,
        prefix: Prefix | None,
        tell: Tell,
        *,
        with_headings: bool,
    ) -> None:
        """Prepare.

        Args:
            cut: cuts the documents.
            tokenizer: of the model; it is not changed.
            room: maximum tokens of prefix and text; None: no limit, since the text has none.
            prefix: a template or a function; None: the headings alone.
            tell: called once for a document without a field of the template, and once for a prefix
                that is shortened.
            with_headings: whether the path of headings is put in front.
        """
        self._cut = cut
        self._tokenizer = without_limits(tokenizer)
        self._room = room
        self._own = _make_own(prefix, tell)
        self._with_headings = with_headings
        self._tell = tell
        self._has_told = False

    def __call__(self, documents: Sequence[Document]) -> list[list[Chunk]]:
        """Return the chunks of every document, in text order.

        Raises:
            ConfigError: the function returned something else than text.
        """
        return [
            self._put(document, chunks)
            for document, chunks in zip(documents, self._cut(documents), strict=True)
        ]

    def _put(self, document: Document, chunks: Sequence[Chunk]) -> list[Chunk]:
        paths = [chunk.headings if self._with_headings else () for chunk in chunks]
        owns = [self._own(document, chunk) for chunk in chunks]
        texts = [
            _join(own, path) + chunk.text
            for own, path, chunk in zip(owns, paths, chunks, strict=True)
        ]
        counts = [] if self._room is None else count_tokens(self._tokenizer, texts)
        for number, num_tokens in enumerate(counts):
            if num_tokens > (self._room or 0) and texts[number] != chunks[number].text:
                self._tell_once(document)
                texts[number] = self._shorten(owns[number], paths[number], chunks[number].text)
        return [
            chunk if text == chunk.text else replace(chunk, embedded=text)
            for chunk, text in zip(chunks, texts, strict=True)
        ]

    def _shorten(self, own: str, path: tuple[str, ...], text: str) -> str:
        """Return a chunk's text behind as much of its prefix as fits."""
        while path:
            path = path[1:]
            if self._excess(_join(own, path) + text) <= 0:
                return _join(own, path) + text
        starts = [
            start for start, _ in self._tokenizer.encode(own, add_special_tokens=False).offsets
        ]
        num_cut, excess = 0, self._excess(own + text)
        while excess > 0:
            num_cut += excess
            if num_cut >= len(starts):
                return text
            excess = self._excess(own[starts[num_cut] :] + text)
        return own[starts[num_cut] :] + text

    def _excess(self, text: str) -> int:
        return count_tokens(self._tokenizer, [text])[0] - (self._room or 0)

    def _tell_once(self, document: Document) -> None:
        if not self._has_told:
            self._has_told = True
            self._tell(
                f"{document.id!r} has a prefix that does not fit beside a chunk, so its beginning "
                "is left out; smaller chunks (chunk_tokens, --chunk-tokens) leave it more room"
            )


def _make_own(prefix: Prefix | None, tell: Tell) -> Callable[[Document, Chunk], str]:
    """Return what gives the prefix of a chunk, without headings."""
    if prefix is None:
        return lambda document, chunk: ""
    if isinstance(prefix, str):
        return _Filler(parse_template(prefix), tell)
    function = prefix

    def call(document: Document, chunk: Chunk) -> str:
        text: Any = function(document, chunk)
        if not isinstance(text, str):
            raise ConfigError(
                f"prefix returned {shown(text)} for {document.id!r}; it must return a str"
            )
        try:
            check_text(text)
        except BadValueError as error:
            raise ConfigError(f"prefix returned a text for {document.id!r} that {error}") from None
        return text

    return call


class _Filler:
    """Fills a template with the fields of a document."""

    def __init__(self, template: Template, tell: Tell) -> None:
        self._template = template
        self._tell = tell
        self._has_told = False

    def __call__(self, document: Document, chunk: Chunk) -> str:
        values = {"source": document.id, "headings": " > ".join(chunk.headings)}
        values |= document.metadata
        missing = self._template.missing(values)
        if not missing:
            return self._template.fill(values)
        named = [name for name in missing if name != "headings"]
        if named and not self._has_told:
            self._has_told = True
            self._tell(
                f"{document.id!r} has no {' and no '.join(map(repr, named))}, so no prefix is "
                f"put in front of it; its fields: {', '.join(map(repr, values))}"
            )
        return ""


def _join(own: str, path: tuple[str, ...]) -> str:
    return f"{own}{' > '.join(path)}\n\n" if path else own
