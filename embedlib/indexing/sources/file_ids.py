"""The names of files in the ids of their documents: the same however a path was written.

A file below the current folder is named by its path from there, every other one by its absolute
path. Earlier versions took the path as it was written, so a destination may know a file by another
name; `FileSource.keep_ids` finds out, and the name stays.
"""

from __future__ import annotations

import os
from pathlib import PurePath

from embedlib.errors import SourceError
from embedlib.indexing.sources.file_bytes import STDIN


def forms_of(path: str, id_root: str | os.PathLike[str] | None) -> tuple[str, ...]:
    """Return what an input may be called in ids: first its name in a new destination, then others.

    Args:
        path: of a file or folder, as the user wrote it.
        id_root: folder from which paths are counted; the input then has one name.

    Raises:
        SourceError: the input is not in `id_root`.
    """
    if path == STDIN:
        return (STDIN,)
    if os.pardir in path:
        real = os.path.realpath(path)
        if real != os.path.realpath(os.path.abspath(path)):
            path = real  # it leads back out of a link: `..` is not the folder that the link is in
    absolute = os.path.abspath(path)
    if id_root is not None:
        inner = _path_below(absolute, os.fspath(id_root))
        if inner is None:
            raise SourceError(f"{path!r} is not in the folder id_root = {os.fspath(id_root)!r}")
        return (inner,)
    try:
        below, relative = _path_below(absolute, os.curdir), os.path.relpath(absolute)
    except FileNotFoundError:  # the current folder was removed
        below = relative = None
    known = (below or absolute, absolute, os.path.normpath(path), relative or absolute)
    return tuple(dict.fromkeys(known))


def file_name(*parts: str) -> str:
    """Return a path in the form that ids have: normalized, with `/`."""
    return PurePath(os.path.normpath(os.path.join(*parts))).as_posix()


def _path_below(absolute: str, folder: str) -> str | None:
    """Return a path relative to a folder that it is in, also by a link; None: it is not in it."""
    for parent in (absolute, *map(str, PurePath(absolute).parents)):
        # The current folder is often known by a path that contains links, such as $PWD.
        if os.path.exists(parent) and os.path.samefile(parent, folder):
            return os.path.relpath(absolute, parent)
    return None
