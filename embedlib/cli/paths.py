"""The type of options and arguments that are paths."""

from __future__ import annotations

import os
from difflib import get_close_matches
from typing import Any

import click


class FilePath(click.Path):
    """A path in which `~` is the home folder.

    A shell expands it only at the beginning of a word, so not in `--output=~/x.npy`, in a variable
    or in quotes. A shell's completion offers files for it.
    """

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Return the path; fails as click's own type does, and says what is there."""
        if not value:  # of a variable of the shell that is not set
            self.fail("'' is no path; write one, or . for the current folder", param, ctx)
        path = os.path.expanduser(value)
        try:
            return super().convert(path, param, ctx)
        except click.BadParameter as error:
            if not os.path.lexists(path):
                way = _what_is_there(path)
            elif not self.dir_okay and os.path.isdir(path):
                way = "give a file"
            elif not self.file_okay and not os.path.isdir(path):
                way = "give a folder"
            else:
                raise
            self.fail(f"{error.message.removesuffix('.')}; {way}", param, ctx)


def _what_is_there(path: str) -> str:
    """Return what may have been meant by a path that does not exist."""
    folder, name = os.path.split(os.path.abspath(path))
    try:
        near = get_close_matches(name, os.listdir(folder), n=1)
    except OSError as error:
        return f"its folder {folder!r} cannot be read: {error.strerror}"
    if near:
        return f"did you mean {os.path.join(os.path.dirname(path), near[0])!r}?"
    return f"{folder} has nothing of a similar name"
