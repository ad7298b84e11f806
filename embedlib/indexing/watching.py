"""Folders that are loaded again whenever something changes in them.

The first pass reads everything, so it finds what changed while nobody watched. It begins after the
system has started to report changes, so none falls between. A later pass is an ordinary load of the
files that changed: those that the system names, and those that are others by what it knows of them,
which a link leads to, too. If rows of missing documents are to be deleted, every pass reads
everything: which documents are gone only the whole source says.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import PurePath
from typing import Final, TypeAlias

from embedlib.errors import ConfigError, SourceError, first_line
from embedlib.indexing.options import IndexOptions
from embedlib.indexing.sinks.protocol import Tell
from embedlib.indexing.sources.files import FileSource
from embedlib.indexing.sources.input_files import InputFile, NoFilesError, find_files, is_read
from embedlib.indexing.sources.protocol import SourceOptions
from embedlib.packages.installing import import_extra

_MANY: Final = 1000
"""With more changed paths at once everything is read: the system may have lost some of them."""
_ANY: Final = frozenset(("/",))
"""What may have changed before the first pass, and while a folder was replaced."""
_NO_NAME: Final = "decode path"
"""What watchfiles says of a name that is not UTF-8."""
_TIMEOUT_MS: Final = 200
"""How often the iterator of changes returns without any; the first time it has started."""
_Stamp: TypeAlias = tuple[int, ...] | None
"""What the system knows of a file; another one: it has changed. None: there is no such file."""


def check_watch(inputs: Sequence[str], options: IndexOptions, how_read: SourceOptions) -> None:
    """Refuse what cannot be watched, and options of a single load.

    Raises:
        ConfigError: names the first.
    """
    for path in inputs or ("-",):
        if not os.path.isdir(path):
            raise ConfigError(f"watch needs folders, and {path!r} is none; name its folder")
        if options.errors_file is not None and is_read(options.errors_file, path, how_read):
            raise ConfigError(
                f"errors_file {str(options.errors_file)!r} lies in the folder {path!r}, which "
                "would read it; name another place"
            )
    for name in ("recreate", "replace", "dry_run", "limit"):
        if getattr(options, name):
            raise ConfigError(f"watch and {name} exclude one another; run once with {name} first")


def folder_changes(folders: Sequence[str]) -> Iterator[frozenset[str]]:
    """Yield the absolute paths that changed below some folders; none, if nothing did for a while.

    A folder that is replaced by another one, or that is a link and leads elsewhere now, is watched
    anew, and counts as changed. Folders in them that may not be read are left out: the system then
    watches each of the others by itself, and all of them anew with each new one.

    Raises:
        SourceError: the package is missing, or the system cannot watch the folders.
    """
    watchfiles = import_extra("watchfiles", "watch", SourceError)
    missed: frozenset[str] = frozenset()
    is_whole = True
    while True:
        watched = [_place(folder) for folder in folders]
        roots = [os.path.realpath(folder) for folder in folders]
        try:
            changes = watchfiles.watch(
                # `os.walk` leaves out what may not be read.
                *(roots if is_whole else (path for root in roots for path, *_ in os.walk(root))),
                recursive=is_whole,
                watch_filter=None,  # which files are read is decided by their names, not here
                rust_timeout=_TIMEOUT_MS,
                yield_on_timeout=True,
            )
            with closing(changes):
                for found in changes:
                    yield frozenset(path for _, path in found) | missed
                    missed = frozenset()
                    is_new = not is_whole and any(os.path.isdir(path) for _, path in found)
                    if is_new or [_place(folder) for folder in folders] != watched:
                        break
        except (OSError, RuntimeError, UnicodeEncodeError) as error:
            if is_whole and isinstance(error, PermissionError):
                is_whole = False  # it would leave out others, too, if it were told to go on
                continue
            if not isinstance(error, FileNotFoundError) or (is_whole and not missed):
                said = first_line(error)
                remedy = (
                    "on Linux a user may watch fs.inotify.max_user_watches folders, which sysctl "
                    "raises"
                )
                if isinstance(error, UnicodeEncodeError):
                    said = f"{_NO_NAME} {error.object!a}"
                if _NO_NAME in said:
                    remedy = "names in a folder that is watched must be UTF-8; rename it"
                raise SourceError(
                    f"cannot watch {', '.join(map(repr, folders))}: {said}; {remedy}"
                ) from error
        missed = _ANY
        while None in map(_place, folders):
            time.sleep(_TIMEOUT_MS / 1000)
            yield frozenset()


def _place(folder: str) -> tuple[int, int, str] | None:
    """Return what a folder is; None: there is none."""
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino, os.path.realpath(folder)


def changed_sources(
    folders: Sequence[str],
    options: SourceOptions,
    tell: Tell,
    changes: Iterator[Collection[str]],
    *,
    reads_all: bool,
) -> Iterator[FileSource]:
    """Yield the source of each pass: all files first, then those that have changed.

    While a folder has no file to read there is no pass; the next one reads all files. Files whose
    rows have ids of their own are read together, also if one is gone or emptied: of an id in two of
    them the first one counts.

    Args:
        folders: to read.
        options: how files are read.
        tell: called with a line for every guess, and for skipped files, once for each line.
        changes: sets of absolute paths, as `folder_changes` yields them.
        reads_all: whether every pass reads all files, because rows of missing ones are deleted.

    Raises:
        SourceError: the fields of a file cannot be guessed, in the first pass. Later such a file
            is a bad row until it changes again: somebody may be writing it.
    """
    told = set[str]()

    def tell_once(line: str) -> None:
        if line not in told:
            told.add(line)
            tell(line)

    source = FileSource((), options, tell_once)
    is_first = has_missed = True
    stamps: dict[str, _Stamp] = {}
    next(changes, None)  # from now on none is lost
    for paths in chain((_ANY,), changes):
        files = _find_any(folders, options, tell_once) if paths else None
        if files is None:
            has_missed |= bool(paths)
            continue
        before, stamps = stamps, {file.path: _stamp(file.path) for file in files}
        # A stamp may be the same if a file is written twice within milliseconds.
        changed = {path for path in stamps if stamps[path] != before.get(path)}
        changed |= _among(stamps, paths)
        own = source.with_own_ids
        if any(_is_empty(stamps.get(path)) for path in own):  # its ids may be another's now
            changed |= own & stamps.keys()
        is_vague = has_missed or len(paths) > _MANY
        if not (is_vague or changed or (reads_all and before.keys() != stamps.keys())):
            continue
        source = source.of(files, None if is_first else stamps.keys() - changed)
        is_first = has_missed = False
        if not (reads_all or is_vague):
            together = source.with_own_ids
            source.narrow(changed | together if together & changed else changed)
        yield source


def _find_any(folders: Sequence[str], options: SourceOptions, tell: Tell) -> list[InputFile] | None:
    """Return the files of folders; None: one has no file to read, or is gone."""
    try:
        for folder in folders:
            if not os.path.isdir(folder):
                raise NoFilesError(f"{folder}: the folder is gone")
        return find_files(folders, options, tell)
    except NoFilesError as error:
        tell(f"{error}; waiting until there is one")
        return None


def _stamp(path: str) -> _Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _is_empty(stamp: _Stamp) -> bool:
    """Return whether a file has no bytes, or is gone; one that is half written has some."""
    return stamp is None or stamp[2] == 0


def _among(files: Iterable[str], paths: Collection[str]) -> set[str]:
    """Return the files that changed, or that are in a folder which did: it comes with files."""
    folders: dict[str, tuple[str, bool]] = {}
    found = set()
    for file in files:
        folder, name = os.path.split(file)
        if folder not in folders:
            real = PurePath(os.path.realpath(folder))
            has_changed = any(os.fspath(place) in paths for place in (real, *real.parents))
            folders[folder] = os.fspath(real), has_changed
        place, has_changed = folders[folder]
        if has_changed or os.path.join(place, name) in paths:
            found.add(file)
    return found
