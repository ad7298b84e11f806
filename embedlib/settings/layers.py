"""All settings of a command: the environment's, above the project's, above the user's."""

from __future__ import annotations

from pathlib import Path

from embedlib.settings.environment import read_environment
from embedlib.settings.files import (
    find_project_file,
    read_project_file,
    read_user_file,
    user_file,
)
from embedlib.settings.names import Setting


def read_settings() -> dict[str, Setting]:
    """Return what holds for a command that is started in the current folder, by name.

    Raises:
        ConfigError: a variable or a file has a wrong value; the message names it.
    """
    project = project_file()
    return {
        **read_user_file(user_file()),
        **(read_project_file(project) if project is not None else {}),
        **read_environment(),
    }


def project_file() -> Path | None:
    """Return the project's file of the current folder.

    Raises:
        ConfigError: a folder has two, or one cannot be read.
    """
    try:
        folder = Path.cwd()
    except FileNotFoundError:  # the current folder was deleted
        return None
    return find_project_file(folder)
