"""Folders that are loaded again whenever something changes in them.

The first pass reads everything, so it finds what changed while nobody watched. It begins after the
system has started to report changes, so none falls between. A later pass is an ordinary load of the
files that changed. If rows of missing documents are to be deleted, every pass reads everything:
which documents are gone only the whole source says.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePath
from typing import Final

from embedlib.errors import ConfigError, SourceError, first_line
from embedlib.indexing.extras import import_extra
from embedlib.indexing.options import IndexOptions
from embedlib.indexing.sinks.protocol import Tell
from embedlib.indexing.sources.files import FileSource, open_source
from embedlib.indexing.sources.input_files import NoFilesError
from embedlib.indexing.sources.protocol import SourceOptions

_MANY: Final = 1000
"""With more changed paths at once everything is read: the system may have lost some of them."""
_NO_NAME: Final = "\ufffd"
"""Stands for bytes that are not UTF-8: which file it was is then unknown."""
_TIMEOUT_MS: Final = 200
"""How often the iterator of changes returns without any; the first time it has started."""


def check_watch(inputs: Sequence[str], options: IndexOptions) -> None:
    """Refuse what cannot be watched, and options of a single load.

    Raises:
        ConfigError: names the first.
    """
    for path in inputs or ("-",):
        if not os.path.isdir(path):
            raise ConfigError(f"watch needs folders, and {path!r} is none; name its folder")
    for name, value in (
        ("recreate", options.recreate),
        ("replace", options.replace),
        ("dry_run", options.dry_run),
        ("limit", options.limit is not None),
    ):
        if value:
            raise ConfigError(f"watch and {name} exclude one another; run once with {name} first")


def folder_changes(folders: Sequence[str]) -> Iterator[frozenset[str]]:
    """Yield the absolute paths that changed below some folders; none, if nothing did for a while.

    Raises:
        SourceError: the package is missing, or the system cannot watch the folders.
    """
    watchfiles = import_extra("watchfiles", "watch", SourceError)
    try:
        for changes in watchfiles.watch(
            *map(os.path.realpath, folders),
            watch_filter=None,  # which files are read is decided by their names, not here
            rust_timeout=_TIMEOUT_MS,
            yield_on_timeout=True,
        ):
            yield frozenset(path for _, path in changes)
    except (OSError, RuntimeError) as error:
        raise SourceError(
            f"cannot watch {', '.join(map(repr, folders))}: {first_line(error)}; on Linux a user "
            "may watch fs.inotify.max_user_watches folders, which sysctl raises"
        ) from error


def changed_sources(
    folders: Sequence[str],
    options: SourceOptions,
    tell: Tell,
    changes: Iterator[Collection[str]],
    *,
    reads_all: bool,
) -> Iterator[FileSource]:
    """Yield the source of each pass: all files first, then those that have changed.

    While a folder has no file to read there is no pass; the next one reads all files.

    Args:
        folders: to read.
        options: how files are read.
        tell: called with a line for every guess, and for skipped files, once for each line.
        changes: sets of absolute paths, as `folder_changes` yields them.
        reads_all: whether every pass reads all files, because rows of missing ones are deleted.

    Raises:
        SourceError: the fields of a file cannot be guessed.
    """
    told = set[str]()

    def tell_once(line: str) -> None:
        if line not in told:
            told.add(line)
            tell(line)

    def look() -> FileSource | None:
        try:
            return open_source(folders, options, tell_once)
        except NoFilesError as error:
            tell_once(f"{error}; waiting until there is one")
            return None

    next(changes, None)  # from now on none is lost
    source = look()
    known = set(source.input_paths) if source else set[str]()
    has_missed = source is None
    if source is not None:
        yield source
    for paths in changes:
        if not paths:
            continue
        source = look()
        if source is None:
            has_missed = True
            continue
        files = source.input_paths
        changed = [file for file in files if _is_among(file, paths)]
        is_vague = has_missed or len(paths) > _MANY or any(_NO_NAME in path for path in paths)
        is_needed = is_vague or bool(changed) or (reads_all and known != set(files))
        known, has_missed = set(files), False
        if not is_needed:
            continue
        if not reads_all and not is_vague:
            source.narrow(changed)
        yield source


def _is_among(file: str, paths: Collection[str]) -> bool:
    """Whether a file or a folder that it is in has changed: one that appears comes with files."""
    folder, name = os.path.split(file)
    path = PurePath(os.path.realpath(folder), name)
    return any(os.fspath(place) in paths for place in (path, *path.parents))
