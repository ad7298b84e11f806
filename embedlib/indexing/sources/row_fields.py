"""Converts rows to documents: which field is the id, which the text, which are metadata."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from embedlib.errors import SourceError
from embedlib.indexing.rows import BadRow, Document
from embedlib.indexing.sources.json_values import BadValueError, check_text, json_value
from embedlib.indexing.sources.protocol import SourceOptions

ID_NAMES = ("id", "_id", "uuid", "doc_id", "document_id", "key")
"""Names of id fields, the most likely first; case does not matter."""

TEXT_NAMES = (
    *("text", "content", "body", "document", "page_content"),
    *("passage", "chunk", "abstract", "description"),
)
"""Names of text fields, in the same way."""

SAMPLE_ROWS = 100
"""How many rows are read to guess the fields."""

SEPARATORS = "csv files separate fields by commas and tsv files by tabs: convert the file"


@dataclass(frozen=True, kw_only=True, slots=True)
class RawRow:
    """A row as it was read from a file or database.

    Attributes:
        number: position in its input, from 1; None: unknown, it may be several rows.
        place: where it was read, for messages.
        fields: its values by name.
        metadata: what may be stored, where that is apart from the fields; None: the fields are.
        problem: why it could not be read; None: it was read.
    """

    number: int | None
    place: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] | None = None
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class Fields:
    """Which fields of a row are id, text and metadata.

    Attributes:
        id: field with the id; None: the id is made of the input's name and the row's number.
        text: fields that are embedded, with a blank line between them.
        metadata: fields that are stored; None: all others.
        has_prefix: whether the input's name is put in front of the id.
    """

    id: str | None
    text: tuple[str, ...]
    metadata: tuple[str, ...] | None
    has_prefix: bool = False

    @property
    def has_own_ids(self) -> bool:
        """Whether the ids of rows do not contain the input's name."""
        return self.id is not None and not self.has_prefix

    @property
    def names(self) -> list[str] | None:
        """All fields that are used; None: every field of a row."""
        if self.metadata is None:
            return None
        return [name for name in (self.id, *self.text, *self.metadata) if name is not None]

    def to_document(self, row: RawRow, input_name: str) -> Document | BadRow:
        """Convert a row of this input to a document, or to a bad row."""
        document_id = None if self.id or row.number is None else f"{input_name}#{row.number}"
        try:
            if row.problem is not None:
                raise BadValueError(row.problem)
            if self.id:
                document_id = _read_id(row.fields, self.id)
                if self.has_prefix:
                    document_id = f"{input_name}#{document_id}"
            return Document(
                id=str(document_id),
                text=_read_text(row.fields, self.text),
                metadata=self._read_metadata(row),
                place=row.place,
            )
        except BadValueError as error:
            return BadRow(place=row.place, reason=str(error), id=document_id)

    def _read_metadata(self, row: RawRow) -> dict[str, Any]:
        fields = row.fields if row.metadata is None else row.metadata
        used: tuple[str | None, ...] = ()
        if self.metadata is None and row.metadata is None:
            used = (self.id, *self.text)
        names: Iterable[str] = self.metadata if self.metadata is not None else fields
        return {
            _read_name(name): _read_value(fields[name], name)
            for name in names
            if name in fields and name not in used
        }


def choose_fields(
    sample: Sequence[RawRow], options: SourceOptions, name: str, *, is_table: bool
) -> tuple[Fields, str]:
    """Choose the fields; also return a line about guesses for the user, "" if there are none.

    Args:
        sample: the first rows.
        options: fields that the user named.
        name: of the input, for messages.
        is_table: whether every row has the same fields.

    Raises:
        SourceError: a named field does not exist, or there is no single best guess.
    """
    kinds = _field_kinds(sample)
    if not kinds:
        raise SourceError(
            f"{name}: none of the first {len(sample)} rows can be read; the first: "
            f"{sample[0].place}: {sample[0].problem or 'it has no fields'}"
        )
    texts = options.text_fields
    named = [options.id_field, *(texts or ())]
    named += (options.metadata_fields or ()) if is_table else ()
    for wanted in named:
        if wanted is not None and wanted not in kinds:
            hint = f"; {SEPARATORS}" if is_undivided(kinds) else ""
            raise SourceError(f"{name}: there is no field {wanted!r}; {_list(kinds)}{hint}")
    chosen_id = options.id_field or _find(
        ID_NAMES,
        [key for key in kinds if key not in (texts or ())],
        name,
        "id_field (--id-field)",
    )
    text = texts or (_guess_text(kinds, chosen_id, name),)
    fields = Fields(
        id=chosen_id,
        text=text,
        metadata=options.metadata_fields,
        has_prefix=options.id_prefix == "file",
    )
    return fields, _describe_guesses(fields, options)


def _describe_guesses(fields: Fields, options: SourceOptions) -> str:
    guesses, flags = [], []
    if options.text_field is None:
        guesses.append(f"text is the field {fields.text[0]!r}")
        flags.append("text_field (--text-field)")
    if options.id_field is None:
        guesses.append(
            f"id is the field {fields.id!r}"
            if fields.id
            else "no field has the name of an id, so rows are identified by their number"
        )
        flags.append("id_field (--id-field)")
    return f"{', '.join(guesses)}; set with {' and '.join(flags)}" if guesses else ""


def _field_kinds(sample: Iterable[RawRow]) -> dict[str, bool | None]:
    """Return per field whether any value is a string; None: it has no values."""
    kinds: dict[str, bool | None] = {}
    for row in sample:
        for key, value in row.fields.items():
            known = kinds.setdefault(key, None)
            if value is not None:
                kinds[key] = isinstance(value, str) or bool(known)
    return kinds


def _guess_text(kinds: Mapping[str, bool | None], chosen_id: str | None, name: str) -> str:
    possible = [key for key, is_text in kinds.items() if is_text is not False and key != chosen_id]
    found = _find(TEXT_NAMES, possible, name, "text_field (--text-field)")
    if found is not None:
        return found
    strings = [key for key in possible if kinds[key]]
    if len(strings) != 1:
        raise SourceError(
            f"{name}: no field has the name of a text ({', '.join(TEXT_NAMES)}) and "
            f"{len(strings) or 'none'} of the others hold{'' if len(strings) > 1 else 's'} "
            f"strings; {_list(kinds)}; name one with text_field (--text-field)"
        )
    if is_undivided(kinds):
        raise SourceError(
            f"{name}: its only field is {strings[0]!r}; {SEPARATORS}, or name this field with "
            "text_field (--text-field)"
        )
    return strings[0]


def is_undivided(keys: Collection[str]) -> bool:
    """Whether the only field looks like several, as of a csv file with semicolons."""
    return len(keys) == 1 and any(mark in key for key in keys for mark in ";\t|")


def _find(names: Iterable[str], keys: Collection[str], name: str, flag: str) -> str | None:
    """Return the field with the first of these names."""
    for wanted in names:
        found = [key for key in keys if key.lower() == wanted]
        if len(found) > 1:
            raise SourceError(f"{name}: has the fields {_quote(found)}; choose one with {flag}")
        if found:
            return found[0]
    return None


def _list(keys: Iterable[str]) -> str:
    return f"the fields are {_quote(keys)}"


def _quote(keys: Iterable[str]) -> str:
    return ", ".join(map(repr, keys))


def _read_id(fields: Mapping[str, Any], name: str) -> str:
    value = _read_value(fields.get(name), name)
    if value is None or value == "":
        raise BadValueError(f"the field {name!r} has no id")
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise BadValueError(
            f"the id in the field {name!r} has the type {type(value).__name__}; a string or a "
            "number is needed"
        )
    return str(value)


def _read_text(fields: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the texts of these fields that have one, with a blank line between them."""
    texts, is_empty = [], False
    for name in names:
        text = _read_value(fields.get(name), name)
        if text is not None and not isinstance(text, str):
            raise BadValueError(
                f"the field {name!r} has the type {type(text).__name__}; a string is needed for a "
                "text"
            )
        if text and not text.isspace():
            texts.append(text)
        is_empty |= text is not None
    if not texts:
        of_fields = f"field{'s'[: len(names) - 1]} {_quote(names)}"
        if is_empty:
            raise BadValueError(f"the text in the {of_fields} is empty")
        raise BadValueError(f"the {of_fields} {'has' if len(names) == 1 else 'have'} no text")
    return "\n\n".join(texts)


def _read_name(name: str) -> str:
    try:
        check_text(name)
    except BadValueError as error:
        raise BadValueError(f"the name {name!r} of a field {error}") from error
    return name


def _read_value(value: Any, name: str) -> Any:
    try:
        return json_value(value)
    except BadValueError as error:
        raise BadValueError(f"the field {name!r} {error}") from error
    except RecursionError:
        raise BadValueError(f"the field {name!r} is nested too deeply") from None
