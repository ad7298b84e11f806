"""The type of options and arguments that are paths."""

from __future__ import annotations

import os
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
        """Return the path; fails as click's own type does."""
        return super().convert(os.path.expanduser(value), param, ctx)
