"""What a source gives, as documents that every destination can store, or as bad rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from embedlib.errors import shown
from embedlib.indexing.rows import BadRow, Document
from embedlib.indexing.sources.json_values import BadValueError, check_text, json_value
from embedlib.indexing.sources.opening import no_document

MAX_ID_CHARACTERS = 4096
"""Longer than any path; a database index cannot store much longer keys."""


def checked(item: Document | BadRow) -> Document | BadRow:
    """Convert a document that some destination could not store to a bad row.

    embedlib's own sources check their documents; a source of the caller may not.
    """
    if isinstance(item, BadRow):
        return _checked_bad_row(item)
    if not isinstance(item, Document):
        raise no_document(item)
    id_: str | None = None
    try:
        id_ = _checked_id(item.id)
        if not isinstance(item.text, str) or not item.text or item.text.isspace():
            raise BadValueError(f"has the text {shown(item.text)}, which must be a str with words")
        check_text(item.text)
        metadata = {} if item.metadata is None else item.metadata
        if not isinstance(metadata, Mapping):
            raise BadValueError(f"has the metadata {shown(metadata)}, which must be a mapping")
        if not isinstance(item.is_markdown, (bool, np.bool_)):
            raise BadValueError(
                f"has is_markdown = {shown(item.is_markdown)}, which must be True or False"
            )
        if not isinstance(item.place, str):
            raise BadValueError(f"has the place {shown(item.place)}, which must be a str")
        # Always replaced: a Decimal compares equal to the number it becomes, but JSON rejects it.
        return replace(item, id=id_, metadata=json_value(metadata))
    except BadValueError as error:
        return BadRow(place=place_of(item), reason=str(error), id=id_)
    except RecursionError:
        return BadRow(place=place_of(item), reason="has metadata nested too deeply", id=id_)


def _checked_bad_row(row: BadRow) -> BadRow:
    """Convert the fields to text; what cannot be an id is none."""
    try:
        id_ = _checked_id(row.id)
    except BadValueError:
        id_ = None
    file = None if row.file is None else str(row.file)
    return replace(row, id=id_, file=file, place=str(row.place), reason=str(row.reason))


def _checked_id(id_: object) -> str:
    # Files may have numbers as ids too, and are read in the same way.
    if isinstance(id_, (int, np.integer)) and not isinstance(id_, bool):
        id_ = str(json_value(id_))
    if not isinstance(id_, str) or not id_:
        raise BadValueError(f"has the id {shown(id_)}, which must be a str and not empty")
    if len(id_) > MAX_ID_CHARACTERS:
        raise BadValueError(f"has an id of more than {MAX_ID_CHARACTERS} characters")
    check_text(id_)
    return id_


def place_of(item: Document | BadRow) -> str:
    """Return where a document was read, for messages; else its id."""
    place = item.place if isinstance(item.place, str) else ""
    return place or shown(item.id, MAX_ID_CHARACTERS)
