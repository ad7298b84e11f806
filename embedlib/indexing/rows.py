"""The nouns of a bulk load: what a source gives, what a chunk is, what a sink gets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any
from uuid import UUID, uuid5

ROW_NAMESPACE = UUID("6e5ae0c6-5a0b-5c4e-9a3f-0d8c2c1b7a51")
"""Namespace of all row ids. Drawn once; another one would be another row for every text."""

CONTENT_BYTES = 16
METADATA_BYTES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One text of a source.

    Attributes:
        id: names the document for ever; a changed text under the same id replaces the old one. Not
            empty, without NUL. A load takes a whole number as its digits.
        text: valid Unicode without NUL, not empty.
        metadata: JSON values by key; a load takes scalars of NumPy too, and None as empty. embedlib
            adds source (the id) and, to a chunk, chunk, start_index, end_index and headings, each
            unless it is here already.
        place: where it was read, for messages: "line 12 of 'notes.jsonl'".
        is_markdown: whether chunks should follow Markdown headings.
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
        id: the document's id, if that much is known.
    """

    place: str
    reason: str
    id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A piece of a document's text: `document.text[start:end] == text`.

    Attributes:
        text: what is embedded and stored.
        start: first character.
        end: one past the last character.
        headings: the Markdown headings above it, outermost first.
    """

    text: str
    start: int
    end: int
    headings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of the destination.

    Attributes:
        id: of source id and chunk number, see `row_id`.
        source_id: the document's id.
        chunk: number of the chunk in its document, from 0.
        text: the chunk's text.
        metadata: JSON values by key.
        digest: `row_digest`: equal means that nothing has to be done.
    """

    id: UUID
    source_id: str
    chunk: int
    text: str
    metadata: Mapping[str, Any]
    digest: bytes


def row_id(source_id: str, chunk: int) -> UUID:
    """Return the id that this chunk of this document has in every destination, in every run."""
    return uuid5(ROW_NAMESPACE, f"{source_id}\0{chunk}")


def row_digest(text: str, metadata: Mapping[str, Any], fingerprint: str) -> bytes:
    """Return bytes[24] that tell whether a stored row is up to date.

    The first 16 bytes cover what decides the vector, text and model; the last 8 the metadata. A row
    that differs only in the latter gets new metadata and keeps its vector.
    """
    model = model_digest(fingerprint).encode()
    key = blake2b(model, digest_size=32).digest()  # of any length; a key has 64 bytes at most
    content = blake2b(text.encode(), digest_size=CONTENT_BYTES, key=key)
    canonical = json.dumps(metadata, sort_keys=True, ensure_ascii=False, allow_nan=False).encode()
    return content.digest() + blake2b(canonical, digest_size=METADATA_BYTES).digest()


def model_digest(fingerprint: str) -> str:
    """Return what of a fingerprint decides the vectors: not the hub's commit.

    A commit may change nothing but a model's description, and the digest covers everything else.
    """
    return fingerprint.rpartition(":")[2]


def has_same_content(digest: bytes, other: bytes) -> bool:
    """Whether two rows have the same vector."""
    return digest[:CONTENT_BYTES] == other[:CONTENT_BYTES]
