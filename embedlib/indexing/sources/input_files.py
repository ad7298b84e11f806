"""From what the user named, files and folders, to the list of files that are read."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePath

from embedlib.errors import SourceError
from embedlib.indexing.sinks.file_sink import FOLDER_SUFFIX, ROWS_SUFFIX
from embedlib.indexing.sinks.urls import without_password
from embedlib.indexing.sources.file_formats import FORMATS, STDIN, WHOLE_FILE, place_of, suffix_of
from embedlib.indexing.sources.protocol import InputFormat, SourceOptions, Tell

_TOLD_SUFFIXES = 5
"""Kinds of skipped files that are named; the rest is counted."""


@dataclass(frozen=True, kw_only=True)
class InputFile:
    """One file to read.

    Attributes:
        name: its path as the user wrote it, normalised, with `/`; the id of its document.
        path: to open it.
        input_format: never "auto".
        is_named: the user named it, and not a folder that it is in.
    """

    name: str
    path: str
    input_format: InputFormat
    is_named: bool

    @property
    def is_stream(self) -> bool:
        """Whether it can be read only once: standard input or a pipe."""
        return self.path == STDIN or (os.path.exists(self.path) and not os.path.isfile(self.path))


def find_files(inputs: Sequence[str], options: SourceOptions, tell: Tell) -> list[InputFile]:
    """Return the files of all inputs, each once, those of a folder sorted.

    Raises:
        SourceError: an input does not exist, its format is not known, or a folder has nothing to
            read.
    """
    if not inputs:
        raise SourceError(
            "there is nothing to read; name files or folders, or - for standard input"
        )
    files: dict[str, InputFile] = {}
    for path in inputs:
        if path != STDIN and not os.path.exists(path):
            is_url = "://" in path or path.startswith("sqlite:")
            hint = "with --sql a URL is read" if is_url else "- is standard input"
            place = without_password(place_of(path))
            raise SourceError(f"cannot read {place}: no such file or folder; {hint}")
        if os.path.isdir(path):
            found = _files_of_folder(path, options, tell)
        else:
            found = [_named_file(path, options)]
        for file in found:
            files.setdefault(file.name, file)
    return list(files.values())


def check_not_input(output: str | os.PathLike[str], inputs: Iterable[str], option: str) -> None:
    """Refuse an output that is one of the inputs, whatever the two are called.

    Args:
        output: a file name; it need not exist.
        inputs: files that will be read; "-" is standard input, which may come from a file too.
        option: what names the output, for the message.

    Raises:
        SourceError: writing would destroy an input.
    """
    # A terminal can be both; only a file would be lost.
    if not os.path.isfile(output):
        return
    written = os.stat(output)
    for path in inputs:
        read = _stat(path)
        if read is not None and os.path.samestat(read, written):
            raise SourceError(
                f"{option} {os.fspath(output)!r} is also an input, which writing would destroy; "
                "name another file"
            )


def _named_file(path: str, options: SourceOptions) -> InputFile:
    input_format = options.input_format
    if input_format == "auto":
        input_format = FORMATS.get(suffix_of(path), "auto")
    if input_format == "auto":
        raise SourceError(f"{place_of(path)}: {_describe_unknown(path)}")
    if path == STDIN and input_format == "parquet":
        raise SourceError("Parquet cannot be read from standard input; name a file")
    return InputFile(name=_name_of(path), path=path, input_format=input_format, is_named=True)


def _describe_unknown(path: str) -> str:
    if path == STDIN:
        return "it has no name to tell its format; say it with --input-format, such as lines"
    if suffix_of(path) == ".json":
        return (
            "JSON is read with an object on each line; jq -c '.[]' makes that of an array: name "
            "the file .jsonl, or add --input-format jsonl"
        )
    return (
        f"its name does not tell its format; known are {', '.join(FORMATS)}; choose one with "
        "--input-format"
    )


def _files_of_folder(folder: str, options: SourceOptions, tell: Tell) -> list[InputFile]:
    name = f"{_name_of(folder)}/"
    files: list[InputFile] = []
    skipped: Counter[str] = Counter()
    links: list[str] = []
    for path in _walk(folder, links):
        if _is_wanted(path, folder, options):
            files.append(
                InputFile(
                    name=_name_of(path),
                    path=path,
                    input_format=_format_in_folder(path, options),
                    is_named=False,
                )
            )
        else:
            skipped[suffix_of(path) or PurePath(path).name] += 1
    told = _describe_skipped(skipped)
    if not files:
        wanted = (
            f"file that fits {', '.join(options.glob)}" if options.glob else "text or Markdown file"
        )
        if not options.glob and options.input_format != "auto":
            wanted = f"{options.input_format} file"
        raise SourceError(f"{name}: has no {wanted}{f'; {told}' if told else ''}")
    if told and not options.glob:
        tell(f"{name}: {told}")
    if links:
        tell(
            f"{name}: {len(links)} linked folders were not followed, such as {links[0]!r}; name "
            "them as inputs"
        )
    return files


def _walk(folder: str, links: list[str]) -> Iterator[str]:
    """Yield all files below a folder in the order of their paths.

    But for hidden and special ones, and what embedlib wrote: a load into a file below its own
    source would read more at every run.
    """

    def refuse(error: OSError) -> None:
        raise SourceError(f"cannot read the folder {error.filename!r}: {error.strerror}") from error

    for parent, folders, files in os.walk(folder, onerror=refuse):
        own = {name for name in folders if name.endswith(FOLDER_SUFFIX)}
        exports = {name.removesuffix(FOLDER_SUFFIX) for name in own}
        folders[:] = sorted(name for name in {*folders} - own if not name.startswith("."))
        # os.walk lists links to folders and does not enter them, so no loop is endless.
        links += [path for name in folders if os.path.islink(path := os.path.join(parent, name))]
        for name in sorted(files):
            path = os.path.join(parent, name)
            # A dangling link stays: it is a bad row. A pipe goes: it would block for ever.
            is_special = os.path.exists(path) and not os.path.isfile(path)
            is_export = name.removesuffix(ROWS_SUFFIX) in exports
            if not name.startswith(".") and not is_special and not is_export:
                yield path


def _is_wanted(path: str, folder: str, options: SourceOptions) -> bool:
    if options.glob:
        inner = PurePath(os.path.relpath(path, folder)).as_posix()
        return any(
            fnmatchcase(inner if "/" in pattern else PurePath(inner).name, pattern)
            for pattern in options.glob
        )
    found = FORMATS.get(suffix_of(path))
    if options.input_format in ("auto", "text", "lines"):
        return found in WHOLE_FILE
    return found == options.input_format


def _format_in_folder(path: str, options: SourceOptions) -> InputFormat:
    if options.input_format != "auto":
        return options.input_format
    # What the user asked for by --glob and has no known name is text, such as source code.
    return FORMATS.get(suffix_of(path), "text")


def _name_of(path: str) -> str:
    return path if path == STDIN else PurePath(os.path.normpath(path)).as_posix()


def _describe_skipped(skipped: Counter[str]) -> str:
    if not skipped:
        return ""
    suffixes = [suffix for suffix, _ in skipped.most_common()]
    more = len(suffixes) - _TOLD_SUFFIXES
    kinds = ", ".join(suffixes[:_TOLD_SUFFIXES]) + (f" and {more} more kinds" if more > 0 else "")
    num_files = skipped.total()
    were = "file of another kind was" if num_files == 1 else "files of other kinds were"
    return f"{num_files} {were} skipped: {kinds}; name them with --glob"


def _stat(path: str) -> os.stat_result | None:
    """What an input is; None: it is no file now."""
    try:
        if path != STDIN:
            return os.stat(path)
        return None if sys.stdin is None else os.fstat(sys.stdin.fileno())  # None: it is closed
    except OSError:
        return None
