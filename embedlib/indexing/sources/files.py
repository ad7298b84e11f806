"""The source that reads files, folders and standard input."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from types import NotImplementedType

from embedlib.checks import is_unicode
from embedlib.errors import SourceError
from embedlib.indexing.rows import BadRow, Document
from embedlib.indexing.sinks.protocol import Tell
from embedlib.indexing.sources.file_bytes import BrokenFileError, check_readable
from embedlib.indexing.sources.file_documents import check_package, first_ids, read_file
from embedlib.indexing.sources.file_formats import (
    TABLES,
    WHOLE_FILE,
    count_documents,
    place_of,
    read_rows,
)
from embedlib.indexing.sources.input_files import InputFile, describe_some, find_files
from embedlib.indexing.sources.protocol import SourceOptions
from embedlib.indexing.sources.row_fields import (
    SAMPLE_ROWS,
    Fields,
    RawRow,
    choose_fields,
)

_SAMPLE_FILES = 128
"""About how many files are looked up in the destination to see what it calls them."""


def open_source(inputs: Sequence[str], options: SourceOptions, tell: Tell) -> FileSource:
    """Return the documents of files and folders as a source; "-" is standard input.

    Reads the first rows of every file that can be read twice, so that a wrong field is refused
    before any work.

    Args:
        inputs: paths.
        options: how they are read.
        tell: called with a line for every guess and for skipped files.

    Raises:
        SourceError: an input does not exist or cannot be read, its format is unknown, or its
            fields cannot be guessed.
    """
    return FileSource((), options, tell).of(find_files(inputs, options, tell))


def _look_into(file: InputFile, options: SourceOptions) -> tuple[Fields, str] | None:
    """Return the fields of a file's rows and what was guessed; None: it has no rows."""
    try:
        if file.input_format in WHOLE_FILE:
            check_package(file.input_format)
            # One of a folder may be a bad row, and there may be millions: it is opened once.
            if file.is_named:
                check_readable(file.path)
            return None
        sample, error = _take_sample(read_rows(file.path, file.input_format))
        if error is not None and not sample:
            raise error
    except BrokenFileError as error:
        if file.is_named:
            raise _cannot_read(file, error) from error
        return None  # it becomes a bad row when it is read
    return _choose(file, sample, options) if sample else None


def _take_sample(rows: Iterator[RawRow]) -> tuple[list[RawRow], BrokenFileError | None]:
    """Return the first rows, and the error that ended them early."""
    sample: list[RawRow] = []
    try:
        for row in islice(rows, SAMPLE_ROWS):
            sample.append(row)  # with list(...) an error would lose the rows before it
    except BrokenFileError as error:
        return sample, error
    return sample, None


def _choose(
    file: InputFile, sample: Sequence[RawRow], options: SourceOptions
) -> tuple[Fields, str]:
    if file.input_format == "lines":
        fields = Fields(id=None, text=("text",), metadata=())
        return fields, "every line is a document, with its number as id"
    return choose_fields(sample, options, file.name, is_table=file.input_format in TABLES)


def _cannot_read(file: InputFile, error: BrokenFileError) -> SourceError:
    return SourceError(f"cannot read {place_of(file.path)}: {error}")


class FileSource:
    """The documents of several files, one file after the other."""

    def __init__(
        self,
        files: Sequence[InputFile],
        options: SourceOptions,
        tell: Tell,
    ) -> None:
        options.refuse_since("a file")
        self._files = files
        self._options = options
        self._tell = tell
        self._fields: dict[str, Fields] = {}
        """Of the files that have rows."""
        self._only: frozenset[str] | None = None

    def of(
        self, files: Sequence[InputFile], unchanged: Collection[str] | None = None
    ) -> FileSource:
        """Return the source of these files, of which the first rows are read.

        Args:
            files: that are read.
            unchanged: paths of those that are as this source has found them; None: it has found
                none. Otherwise the others may be half written: what is refused is a bad row.

        Raises:
            SourceError: a file cannot be read, or its fields cannot be guessed.
        """
        source = FileSource(files, self._options, self._tell)
        guesses: dict[str, list[str]] = {}
        for file in files:
            if unchanged is not None and file.path in unchanged:
                if file.path in self._fields:
                    source._fields[file.path] = self._fields[file.path]
                continue
            try:
                found = None if file.is_stream else _look_into(file, self._options)
            except SourceError:
                if unchanged is None:
                    raise
                continue  # it becomes a bad row when it is read
            if found is not None:
                source._fields[file.path], guess = found
                guesses.setdefault(guess, []).append(file.name)
        for guess, names in guesses.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            if guess:
                self._tell(f"{names[0]}{more}: {guess}")
        if all(file.input_format in (*WHOLE_FILE, "lines") for file in files):
            self._tell_unused_fields()
        return source

    def _tell_unused_fields(self) -> None:
        """Tell which options are not used, because no file has fields."""
        named = {
            "id_field (--id-field)": self._options.id_field,
            "text_field (--text-field)": self._options.text_field,
            "metadata_fields (--metadata-field)": self._options.metadata_fields,
        }
        unused = [option for option, value in named.items() if value is not None]
        if unused:
            self._tell(
                f"not used: {', '.join(unused)}; no file is a table or JSON Lines, so none has "
                "fields, and ids are made of paths"
            )

    @property
    def with_own_ids(self) -> frozenset[str]:
        """The files whose rows have ids of their own, which other files may have too."""
        return frozenset(path for path, fields in self._fields.items() if fields.has_own_ids)

    def narrow(self, paths: Iterable[str]) -> None:
        """Read only these of the files.

        The others still say what the destination calls files, see `keep_ids`.
        """
        self._only = frozenset(paths)

    @property
    def is_partial(self) -> bool:
        """Whether files are left out that may be stored."""
        return self._only is not None

    @property
    def input_paths(self) -> list[str]:
        """The files that are read."""
        return [file.path for file in self._files]

    def keep_ids(self, count_stored: Callable[[Sequence[str]], int]) -> None:
        """Call files what the destination calls them, if an earlier load wrote their paths so.

        Args:
            count_stored: returns how many of some documents the destination holds.
        """
        given: dict[str, list[InputFile]] = {}
        for file in self._files:
            given.setdefault(file.given, []).append(file)
        chosen = {path: self._choose_form(files, count_stored) for path, files in given.items()}
        self._files = [replace(file, forms=chosen[file.given]) for file in self._files]

    def _choose_form(
        self, files: Sequence[InputFile], count_stored: Callable[[Sequence[str]], int]
    ) -> tuple[str, ...]:
        """Return the form of one input in which most of its files are in the destination."""
        forms = files[0].forms
        if len(forms) < 2:
            return forms
        sample = files[:: max(1, len(files) // _SAMPLE_FILES)]
        ids = [self._sample_ids(file) for file in sample]
        counts = [
            count_stored([id_ for of_file in ids for id_ in of_file[form]])
            for form in range(len(forms))
        ]
        return (forms[counts.index(max(counts))],)

    def _sample_ids(self, file: InputFile) -> list[list[str]]:
        """Return ids of a few documents in each form, none if its name is not in them."""
        if not all(map(is_unicode, file.names)):
            return [[] for _ in file.names]
        if file.input_format in WHOLE_FILE:
            return [first_ids(name, file.input_format) for name in file.names]
        fields = self._fields.get(file.path)
        if fields is None or fields.has_own_ids:
            return [[] for _ in file.names]
        rows, _ = _take_sample(read_rows(file.path, file.input_format))
        documents = [[fields.to_document(row, name).id for row in rows] for name in file.names]
        return [[id_ for id_ in form if id_ is not None] for form in documents]

    def __length_hint__(self) -> int | NotImplementedType:
        counts = [count_documents(file.path, file.input_format) for file in self._read_files()]
        return NotImplemented if None in counts else sum(filter(None, counts))

    def __iter__(self) -> Iterator[Document | BadRow]:
        empty: list[str] = []
        for file in self._read_files():
            if file.problem is not None:
                yield BadRow(place=place_of(file.path), reason=file.problem)
                continue
            if self._has_bad_id(file):
                yield _bad_name(file)
                continue
            is_whole = file.input_format in WHOLE_FILE
            documents = iter(read_file(file)) if is_whole else self._read_rows(file)
            first = next(documents, None)
            if first is not None:
                yield first
                yield from documents
            elif not file.is_stream:
                empty.append(file.path)
        if empty:
            self._tell(f"empty files were skipped: {describe_some(empty)}")

    def _read_files(self) -> list[InputFile]:
        only = self._only
        return [file for file in self._files if only is None or file.path in only]

    def _has_bad_id(self, file: InputFile) -> bool:
        """Whether the name of a file would be in ids and cannot be."""
        fields = self._fields.get(file.path)
        has_own_ids = fields is not None and fields.has_own_ids
        return not has_own_ids and not is_unicode(file.name)

    def _read_rows(self, file: InputFile) -> Iterator[Document | BadRow]:
        name, last_place = file.name, ""
        try:
            fields = self._fields.get(file.path)
            rows = read_rows(file.path, file.input_format, fields.names if fields else None)
            if fields is None:
                sample, error = _take_sample(rows)
                rows = _resume(sample, error, rows)
                if sample:
                    fields = self._choose_late(file, sample)
            for row in rows:
                assert fields is not None, "a row was not in the sample"
                last_place = row.place
                yield fields.to_document(row, name)
        except BrokenFileError as error:
            if file.is_named and not last_place:
                raise _cannot_read(file, error) from error
            after = f", after {last_place}" if last_place else ""
            yield BadRow(place=f"the rest of {place_of(file.path)}{after}", reason=str(error))

    def _choose_late(self, file: InputFile, sample: Sequence[RawRow]) -> Fields:
        """Choose the fields of a file that can be read only once, or had no rows before.

        Raises:
            SourceError: they cannot be guessed.
            BrokenFileError: the same, of a file in a folder: somebody may be writing it.
        """
        try:
            fields, guess = _choose(file, sample, self._options)
        except SourceError as error:
            if file.is_named:
                raise
            raise BrokenFileError(str(error).removeprefix(f"{file.name}: ")) from error
        if guess:
            self._tell(f"{file.name}: {guess}")
        return fields


def _resume(
    sample: Sequence[RawRow], error: BrokenFileError | None, rows: Iterator[RawRow]
) -> Iterator[RawRow]:
    """Yield the sampled rows and the rest, with the error in its place."""
    yield from sample
    if error is not None:
        raise error
    yield from rows


def _bad_name(file: InputFile) -> BadRow:
    """Return the bad row of a file whose name cannot be an id; nothing can be stored under it."""
    return BadRow(
        place=place_of(file.path),
        reason="has a name that is not UTF-8, and the name is its id; rename it",
        id=os.fsencode(file.name).decode("utf-8", "backslashreplace"),
    )
