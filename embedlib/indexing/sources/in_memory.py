"""The source of what a program holds: dicts, tables, and documents of other libraries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import length_hint
from types import NotImplementedType
from typing import Any

from embedlib.errors import ConfigError, SourceError, shown
from embedlib.indexing.rows import BadRow, Document
from embedlib.indexing.sinks.protocol import Tell
from embedlib.indexing.sources.protocol import SourceOptions
from embedlib.indexing.sources.row_fields import SAMPLE_ROWS, Fields, RawRow, choose_fields
from embedlib.indexing.sources.tables import is_table, table_rows

_NAME = "the source"
_OWN_ID = "id"
_Kind = str | None
"""Rows of a kind have their id and text in the same fields: "row" for dicts and tables, else the
attribute with the text of a document. None: an item that needs no conversion."""


class MemorySource:
    """The documents of an iterable, or of one table; what needs no conversion is passed on."""

    def __init__(self, source: Iterable[Any], options: SourceOptions, tell: Tell) -> None:
        options.refuse_since("what a program holds")
        self._source = source
        self._options = options
        self._tell = tell

    def __length_hint__(self) -> int | NotImplementedType:
        return length_hint(self._source) or NotImplemented

    def __iter__(self) -> Iterator[Document | BadRow]:
        rows = self._rows()
        fields: dict[str, Fields] = {}
        while (entry := next(rows, None)) is not None:
            kind, item = entry
            if kind is None:
                yield item
            elif kind in fields:
                yield fields[kind].to_document(item, _NAME)
            else:
                sample = [entry, *islice(rows, SAMPLE_ROWS - 1)]
                of_kind = [row for other, row in sample if other == kind]
                fields[kind] = self._choose(kind, of_kind)
                rows = chain(sample, rows)

    def _rows(self) -> Iterator[tuple[_Kind, Any]]:
        items = [self._source] if is_table(self._source) else self._source
        number = 0
        for item in items:
            if isinstance(item, (Document, BadRow)):
                yield None, item
                continue
            if not isinstance(item, Mapping) and is_table(item):
                for fields in table_rows(item):
                    number += 1
                    yield "row", _row(number, fields=fields)
                continue
            number += 1
            yield self._convert(item, number)

    def _convert(self, item: Any, number: int) -> tuple[_Kind, Any]:
        """Return a row with its kind; None: the reader knows what to say about this item."""
        if isinstance(item, Mapping):
            problem = _bad_key(item)
            # Copies: a generator may fill the same dicts and lists again while these wait.
            fields = {} if problem else {name: _copied(value) for name, value in item.items()}
            return "row", _row(number, fields=fields, problem=problem)
        if hasattr(item, "page_content"):  # LangChain
            return "page_content", self._foreign(item, "page_content", number)
        if hasattr(item, "node_id") or hasattr(item, "id_"):  # LlamaIndex
            return "text", self._foreign(item, "text", number)
        return None, item

    def _foreign(self, item: Any, text: str, number: int) -> RawRow:
        metadata = getattr(item, "metadata", None)
        metadata = {} if metadata is None else metadata
        if not isinstance(metadata, Mapping):
            problem = f"has the metadata {shown(metadata)}, which must be a mapping"
            return _row(number, problem=problem)
        copies = {key: _copied(value) for key, value in metadata.items()}
        own_id = _own_id(item)
        if own_id is None and self._options.id_field == _OWN_ID:
            own_id = copies.get(_OWN_ID)
        # As everywhere, id and text are not metadata unless they are asked for.
        is_asked = self._options.metadata_fields is not None
        used = () if is_asked else (self._options.id_field, *(self._options.text_fields or ()))
        return _row(
            number,
            fields={**copies, _OWN_ID: own_id, text: getattr(item, text, None)},
            metadata={key: value for key, value in copies.items() if key not in used},
            problem=_bad_key(metadata),
        )

    def _choose(self, kind: str, sample: Sequence[RawRow]) -> Fields:
        options = self._options
        if options.id_prefix is not None:
            raise ConfigError(
                f"id_prefix = {options.id_prefix!r} puts the name of a file before its ids, and "
                "this source is no file; leave it out"
            )
        if kind == "row":
            fields, guess = choose_fields(sample, options, _NAME, is_table=is_table(self._source))
            if fields.id is None:
                raise SourceError(
                    f"{_NAME}: no field has the name of an id, and its rows have no name that "
                    "lasts; add a field 'id', or name one with source_options="
                    "embedlib.SourceOptions(id_field=...)"
                )
            if guess:
                self._tell(f"{_NAME}: {guess}")
            return fields
        id_field = options.id_field or _OWN_ID
        if all(row.fields.get(id_field) is None for row in sample):
            raise SourceError(
                f"{_NAME}: its documents have no {id_field!r} that lasts until the next run; set "
                "it, or name the metadata that has it with source_options="
                "embedlib.SourceOptions(id_field=...)"
            )
        return Fields(
            id=id_field, text=options.text_fields or (kind,), metadata=options.metadata_fields
        )


def _own_id(item: Any) -> Any:
    """Return the id of a document; None: it has none, or one that its library made up."""
    if not hasattr(item, "id_") and not hasattr(item, "node_id"):
        return getattr(item, "id", None)
    # LlamaIndex makes a random id for each object that gets none: another one in every run.
    known = getattr(type(item), "model_fields", {})
    if "id_" in known and "id_" not in item.model_fields_set:
        return None
    return getattr(item, "node_id", None) or getattr(item, "id_", None)


def _bad_key(fields: Mapping[Any, Any]) -> str | None:
    for key in fields:
        if not isinstance(key, str):
            return f"has the key {shown(key)}, but the names of fields must be strings"
    return None


def _copied(value: Any) -> Any:
    """Return a copy of the dicts and lists of a value, at any depth."""
    try:
        return _copy(value)
    except RecursionError:  # a bad row, as who reads it will tell
        return value


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _row(number: int, **read: Any) -> RawRow:
    return RawRow(number=number, place=f"row {number} of {_NAME}", **read)
