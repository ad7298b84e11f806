"""Resolves the files and folders that the user named to the list of files to read."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import PurePath

from embedlib.errors import SourceError
from embedlib.indexing.sinks.file_export import ROWS_SUFFIX
from embedlib.indexing.sinks.file_sink import FOLDER_SUFFIX
from embedlib.indexing.sinks.protocol import Tell
from embedlib.indexing.sinks.urls import without_password
from embedlib.indexing.sources.file_bytes import STDIN, is_denied
from embedlib.indexing.sources.file_formats import (
    CONVERT_JSON,
    FORMATS,
    TEXTS,
    place_of,
    suffix_of,
)
from embedlib.indexing.sources.file_ids import file_name, forms_of
from embedlib.indexing.sources.protocol import InputFormat, SourceOptions
from embedlib.indexing.sources.storage import is_folder, is_storage, list_folder, normal_path

_ANY_FOLDERS = re.compile(r"(?<![^/])\*\*/")
"""In a pattern: any number of folders, also none."""
_MAX_LISTED_SUFFIXES = 5
"""How many kinds of skipped files a message lists; the others are counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFile:
    """One file to read. A load holds all of them, and there may be millions: names are not kept.

    Attributes:
        forms: what its input may be called in ids, the same object for all files of a folder. The
            first is for a new destination. Empty: its path is its name, as in object storage.
        given: the input that the user named: the file itself or a folder it is in.
        path: to open it.
        input_format: never "auto".
        is_named: the user named the file itself, not a folder that contains it.
        problem: set for a folder in a folder that may not be read, of which this stands for all
            files: why. None: it is a file.
    """

    forms: tuple[str, ...]
    given: str
    path: str
    input_format: InputFormat
    is_named: bool
    problem: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What it may be called in ids, normalized, with `/`: one name for each form."""
        if not self.forms:
            return (self.path,)
        return tuple(file_name(form, _inner(self.path, self.given)) for form in self.forms)

    @property
    def name(self) -> str:
        """The id of its document, or the beginning of the ids of its rows."""
        return self.names[0]

    @property
    def is_stream(self) -> bool:
        """Whether it can be read only once: standard input or a pipe, which no folder gives."""
        return self.is_named and (self.path == STDIN or _is_special(self.path))


class NoFilesError(SourceError):
    """A folder has no file to read."""


def find_files(inputs: Sequence[str], options: SourceOptions, tell: Tell) -> list[InputFile]:
    """Return the files of all inputs, each once, those of a folder sorted.

    Raises:
        SourceError: an input does not exist, its format is unknown, or a folder contains no
            file to read.
    """
    if not inputs:
        raise SourceError("no input was given; name files or folders, or - for standard input")
    files: dict[str, InputFile] = {}
    for path in map(normal_path, inputs):
        in_storage = is_storage(path)
        if path != STDIN and not in_storage and not os.path.exists(path):
            raise SourceError(f"cannot read {without_password(place_of(path))}: {_why_not(path)}")
        if in_storage and is_folder(path):
            found = _files_of_storage(path.rstrip("/"), options, tell)
        elif os.path.isdir(path):
            found = _files_of_folder(path, options, tell)
        else:
            found = [_named_file(path, options)]
        for file in found:
            files.setdefault(file.name, file)
    return list(files.values())


def is_read(path: str | os.PathLike[str], folder: str, options: SourceOptions) -> bool:
    """Return whether a file is read that is put into a folder."""
    inner = PurePath(os.path.relpath(os.path.realpath(path), os.path.realpath(folder))).as_posix()
    return not _is_hidden(inner) and _is_wanted(inner, options)


def _named_file(path: str, options: SourceOptions) -> InputFile:
    input_format = options.input_format
    if input_format == "auto":
        input_format = FORMATS.get(suffix_of(path), "auto")
    if input_format == "auto":
        raise SourceError(f"{place_of(path)}: {_describe_unknown(path)}")
    if path == STDIN and input_format == "parquet":
        raise SourceError("Parquet cannot be read from standard input; name a file")
    return InputFile(
        forms=() if is_storage(path) else forms_of(path, options.id_root),
        given=path,
        path=path,
        input_format=input_format,
        is_named=True,
    )


def _why_not(path: str) -> str:
    """Say why an input that is no file cannot be read."""
    if is_denied(path):
        return "Permission denied"
    if path.lower().startswith(("http://", "https://")):
        return "pages are not fetched; download it first"
    hint = "- is standard input, and in Python a text is embedlib.Document(id=..., text=...)"
    if "://" in path or path.startswith("sqlite:"):
        hint = "a database URL needs --sql (open_sql_source)"
    elif "*" in path:
        hint = "a pattern is given as glob (--glob, SourceOptions(glob=...)), beside its folder"
    return f"no such file or folder; {hint}"


def _describe_unknown(path: str) -> str:
    if path == STDIN:
        return (
            "it has no name that shows its format; choose one with input_format (--input-format), "
            "such as lines"
        )
    if suffix_of(path) == ".json":
        return (
            f"{CONVERT_JSON}; then name the file .jsonl, or add input_format='jsonl' "
            "(--input-format jsonl)"
        )
    if suffix_of(path) in (".db", ".sqlite", ".sqlite3"):
        return f"a database needs a query; write sqlite:{path}, and add --sql (open_sql_source)"
    return (
        f"its name does not show its format; known are {', '.join(FORMATS)}; choose one with "
        "input_format (--input-format)"
    )


def _files_of_folder(folder: str, options: SourceOptions, tell: Tell) -> list[InputFile]:
    name = f"{file_name(folder)}/"
    forms = forms_of(folder, options.id_root)
    files: list[InputFile] = []
    skipped: Counter[str] = Counter()
    links: list[str] = []
    broken: list[str] = []
    denied: list[PermissionError] = []
    for path in _walk(folder, links, denied):
        if _is_wanted(_inner(path, folder), options):
            files.append(_inner_file(path, folder, forms, options))
        elif not os.path.exists(path):
            broken.append(path)
        else:
            skipped[suffix_of(path) or PurePath(path).name] += 1
    for error in denied:
        file = _inner_file(error.filename, folder, forms, options)
        files.append(replace(file, problem=f"the folder cannot be read: {error.strerror}"))
    _tell_choice(name, files, skipped, options, tell)
    if links:
        tell(
            f"{name}: links to folders are not followed: {describe_some(links)}; name them as "
            "inputs to read them"
        )
    if broken:
        tell(f"{name}: links that lead nowhere were skipped: {describe_some(broken)}")
    return files


def _files_of_storage(url: str, options: SourceOptions, tell: Tell) -> list[InputFile]:
    """Return the files below a URL; the URL of a file is its name."""
    files: list[InputFile] = []
    skipped: Counter[str] = Counter()
    inner_names = list_folder(f"{url}/")
    own_folder = f"{FOLDER_SUFFIX}/"
    exports = {inner.partition(own_folder)[0] for inner in inner_names if own_folder in inner}
    for inner in inner_names:
        path = f"{url}/{inner}"
        is_own = own_folder in inner or inner.removesuffix(ROWS_SUFFIX) in exports
        if is_own or _is_hidden(inner):
            continue
        if _is_wanted(inner, options):
            files.append(_inner_file(path, url, (), options))
        else:
            skipped[suffix_of(path) or PurePath(path).name] += 1
    _tell_choice(f"{url}/", files, skipped, options, tell)
    return files


def _inner_file(
    path: str, folder: str, forms: tuple[str, ...], options: SourceOptions
) -> InputFile:
    input_format = options.input_format
    if input_format == "auto":
        # A file that --glob selects and whose suffix is unknown is text, such as source code.
        input_format = FORMATS.get(suffix_of(path), "text")
    return InputFile(
        forms=forms, given=folder, path=path, input_format=input_format, is_named=False
    )


def _tell_choice(
    name: str,
    files: Sequence[InputFile],
    skipped: Counter[str],
    options: SourceOptions,
    tell: Tell,
) -> None:
    """Tell which files of a folder were skipped.

    Raises:
        NoFilesError: all were, or there are none.
    """
    notice = _describe_skipped(skipped)
    if not files:
        wanted = "text or Markdown file"
        if options.glob:
            wanted = f"file that fits {', '.join(options.glob)}"
        elif options.input_format != "auto":
            wanted = f"{options.input_format} file"
        raise NoFilesError(f"{name}: has no {wanted}{f'; {notice}' if notice else ''}")
    if notice and not options.glob:
        tell(f"{name}: {notice}")


def _walk(folder: str, links: list[str], denied: list[PermissionError]) -> Iterator[str]:
    """Yield all files below a folder in the order of their paths.

    Leaves out hidden and special files, and files that embedlib wrote: a load into a file below
    its own source would otherwise read its own output.

    Args:
        folder: where to look.
        links: gets links to folders, which are not followed.
        denied: gets an error for each folder that may not be read.

    Raises:
        SourceError: a folder cannot be read for another reason, or `folder` itself may not.
    """

    def refuse(error: OSError) -> None:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return  # it was removed meanwhile, and a file may have its name
        if isinstance(error, PermissionError) and error.filename != folder:
            denied.append(error)
            return
        raise SourceError(f"cannot read the folder {error.filename!r}: {error.strerror}") from error

    for parent, folders, files in os.walk(folder, onerror=refuse):
        own = {name for name in folders if name.endswith(FOLDER_SUFFIX)}
        exports = {name.removesuffix(FOLDER_SUFFIX) for name in own}
        folders[:] = sorted(name for name in {*folders} - own if not name.startswith("."))
        # os.walk lists links to folders but does not follow them, so it always ends.
        links += [path for name in folders if os.path.islink(path := os.path.join(parent, name))]
        for name in sorted(files):
            path = os.path.join(parent, name)
            is_export = name.removesuffix(ROWS_SUFFIX) in exports
            # A dangling link is kept and becomes a bad row. A pipe is skipped: it would block.
            if not _is_hidden(name) and not is_export and not _is_special(path):
                yield path


def _inner(path: str, given: str) -> str:
    """Return the path of a file in the folder that was named; "": the file itself was."""
    return path.removeprefix(given).lstrip("/")


def _is_special(path: str) -> bool:
    """Whether a path leads to something that is no file; of a file this is one look at it."""
    return not os.path.isfile(path) and os.path.exists(path)


def _is_wanted(inner: str, options: SourceOptions) -> bool:
    """Whether a file is read, by its path in its folder."""
    if options.glob:
        name = PurePath(inner).name
        return any(_fits(inner if "/" in pattern else name, pattern) for pattern in options.glob)
    found = FORMATS.get(suffix_of(inner))
    if options.input_format in ("auto", "text", "lines"):
        return found in TEXTS
    return found == options.input_format


def _fits(path: str, pattern: str) -> bool:
    """Whether a path fits a pattern, in which `**/` may be no folder at all."""
    return fnmatchcase(path, pattern) or any(
        _fits(path, pattern[: found.start()] + pattern[found.end() :])
        for found in _ANY_FOLDERS.finditer(pattern)
    )


def _is_hidden(inner: str) -> bool:
    """Whether a path in a folder is hidden, or what Word writes beside a file that it has open."""
    *_, name = parts = inner.split("/")
    return name.startswith("~$") or any(part.startswith(".") for part in parts)


def describe_some(paths: Sequence[str]) -> str:
    """Return the first path and the number of the others."""
    more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
    return f"{paths[0]!r}{more}"


def _describe_skipped(skipped: Counter[str]) -> str:
    if not skipped:
        return ""
    suffixes = [suffix for suffix, _ in skipped.most_common()]
    more = len(suffixes) - _MAX_LISTED_SUFFIXES
    kinds = ", ".join(suffixes[:_MAX_LISTED_SUFFIXES]) + (
        f" and {more} more kinds" if more > 0 else ""
    )
    num_files = skipped.total()
    were = "file of another kind was" if num_files == 1 else "files of other kinds were"
    return f"{num_files} {were} skipped: {kinds}; name them with glob (--glob)"
