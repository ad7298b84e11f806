"""The data types of a bulk load, row ids and digests, and which rows have to be embedded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any
from uuid import UUID, uuid5

ROW_NAMESPACE = UUID("6e5ae0c6-5a0b-5c4e-9a3f-0d8c2c1b7a51")
"""Namespace of all row ids. It must never change: every row of every destination would be new."""

CONTENT_BYTES = 16
METADATA_BYTES = 8

Span = tuple[int, int]
"""Index of the first character, and index after the last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One text of a source.

    Attributes:
        id: identifies the document in every run; a changed text under the same id replaces the old
            one. Not empty, without NUL. `index` converts an integer to its digits.
        text: valid Unicode without NUL, not empty.
        metadata: JSON values by key; `index` also accepts NumPy scalars, and None as empty. It adds
            `source` (the id) and, to a chunk, `chunk`, `start_index`, `end_index` and `headings`,
            each unless the key is present.
        place: where it was read, for messages: "line 12 of 'notes.jsonl'".
        is_markdown: whether chunks follow Markdown headings.
    """

    id: str
    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""
    is_markdown: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class BadRow:
    """A row of a source that cannot be embedded.

    Attributes:
        place: where it was read.
        reason: what is wrong with it, in one line.
        id: the document's id; None if it could not be read.
        file: set if the row stands for all documents of a file, whose ids are `FILE#...`: what is
            stored of them is kept.
    """

    place: str
    reason: str
    id: str | None = None
    file: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A piece of a document's text: `document.text[start:end] == text`.

    Attributes:
        text: what is stored, and embedded unless `embedded` says otherwise.
        start: index of the first character.
        end: index after the last character.
        headings: the Markdown headings above it, outermost first.
        embedded: the text with a prefix, or the window of late chunking; None: the text is embedded
            as it is.
        span: of late chunking, where the text is in its window.
    """

    text: str
    start: int
    end: int
    headings: tuple[str, ...] = ()
    embedded: str | None = None
    span: Span | None = None


CutDocuments = Callable[[Sequence[Document]], list[list[Chunk]]]
"""Returns the chunks of every document, in text order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of the destination.

    Attributes:
        id: derived from source id and chunk number, see `row_id`.
        source_id: the document's id.
        chunk: number of the chunk in its document, from 0.
        text: the chunk's text.
        metadata: JSON values by key.
        digest: `row_digest`; a stored row with the same digest is up to date.
        embedded: what is embedded in place of the text, and not stored; None: the text.
        span: of late chunking, the characters of `embedded` that the vector is made of.
    """

    id: UUID
    source_id: str
    chunk: int
    text: str
    metadata: Mapping[str, Any]
    digest: bytes
    embedded: str | None = None
    span: Span | None = None

    @property
    def text_to_embed(self) -> str:
        """The text, behind its prefix if it has one; of late chunking the whole window."""
        return self.text if self.embedded is None else self.embedded

    def bad_row(self, reason: str) -> BadRow:
        """Return this row as one that cannot be embedded or stored."""
        place = f"{self.source_id!r}, chunk {self.chunk}"
        return BadRow(place=place, reason=reason, id=self.source_id)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowChanges:
    """What has to be done with rows that were compared with the stored ones.

    Attributes:
        to_embed: new rows, and rows whose text or model changed.
        to_update: rows whose metadata alone changed; their stored vectors are right.
        num_unchanged: how many rows are up to date.
    """

    to_embed: list[Row]
    to_update: list[Row]
    num_unchanged: int


def find_changes(rows: Sequence[Row], stored: Mapping[UUID, bytes]) -> RowChanges:
    """Decide which rows have to be embedded, and which need new metadata only.

    Args:
        rows: read from the source.
        stored: the digests that the destination has of them, by row id.
    """
    to_embed, to_update = list[Row](), list[Row]()
    for row in rows:
        digest = stored.get(row.id)
        if digest is None or not has_same_content(digest, row.digest):
            to_embed.append(row)
        elif digest != row.digest:
            to_update.append(row)
    num_unchanged = len(rows) - len(to_embed) - len(to_update)
    return RowChanges(to_embed=to_embed, to_update=to_update, num_unchanged=num_unchanged)


def row_id(source_id: str, chunk: int) -> UUID:
    """Return the id of this chunk of this document, the same in every destination and every run."""
    return uuid5(ROW_NAMESPACE, f"{source_id}\0{chunk}")


def row_digest(
    text: str,
    metadata: Mapping[str, Any],
    fingerprint: str,
    embedded: str | None = None,
    span: Span | None = None,
) -> bytes:
    """Return bytes[24] that change whenever a stored row is out of date.

    The first 16 bytes cover what decides the vector, text and model; the last 8 the metadata. A row
    that differs only in the latter gets new metadata and keeps its vector.

    Args:
        text: of the row.
        metadata: of the row.
        fingerprint: of the model.
        embedded: as in `Row`; the text is covered all the same, since it is stored.
        span: as in `Row`.
    """
    model = model_digest(fingerprint).encode()
    if embedded is not None:  # no fingerprint has a NUL, so no other row has this key
        place = "" if span is None else f"{span[0]}:{span[1]}"
        model += f"\0{place}\0{embedded}".encode()
    # Hashed first: a fingerprint has any length, and a key of blake2b at most 64 bytes.
    key = blake2b(model, digest_size=32).digest()
    content = blake2b(text.encode(), digest_size=CONTENT_BYTES, key=key)
    canonical = json.dumps(metadata, sort_keys=True, ensure_ascii=False, allow_nan=False).encode()
    return content.digest() + blake2b(canonical, digest_size=METADATA_BYTES).digest()


def model_digest(fingerprint: str) -> str:
    """Return the part of a fingerprint that decides the vectors, without the hub's commit.

    A commit may change nothing but a model's description, and the digest covers everything else.
    """
    return fingerprint.rpartition(":")[2]


def has_same_content(digest: bytes, other: bytes) -> bool:
    """Whether two row digests stand for the same vector."""
    return digest[:CONTENT_BYTES] == other[:CONTENT_BYTES]
