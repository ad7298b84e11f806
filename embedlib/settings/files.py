"""Settings from files: the project's `embedlib.toml` or `pyproject.toml`, and the user's own."""

from __future__ import annotations

import logging
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from embedlib.errors import ConfigError, shortened, shown
from embedlib.settings.environment import variable_of
from embedlib.settings.names import (
    MODEL,
    NOT_OF_PROJECTS,
    SECRETS,
    SETTINGS,
    Setting,
    check_setting,
    describe_unknown,
)
from embedlib.system.user_folders import user_folder

PROJECT_FILE = "embedlib.toml"
_PYPROJECT = "pyproject.toml"
_MAX_BYTES = 1 << 20
"""More than any such file has; it is read whole."""


def user_file() -> Path:
    """Return the place of the user's file, whether it exists or not."""
    try:
        folder = user_folder("XDG_CONFIG_HOME", ".config")
    except RuntimeError:  # there is no home folder; only messages show this path
        folder = Path("~/.config")
    return folder / "embedlib" / "config.toml"


def find_project_file(folder: Path) -> Path | None:
    """Return the nearest project's file, of the folder or of one above it in its git repository.

    Outside of a repository only the folder itself counts: what lies in a shared folder above, such
    as `/tmp`, is somebody else's. What another user may have put there, be it a file of settings or
    a `.git` that would make a repository of it, does not count either.

    Raises:
        ConfigError: a folder has two, or one cannot be read.
    """
    above = [folder, *folder.parents]
    root = next((place for place, path in enumerate(above) if _is_own(path / ".git")), 0)
    for path in above[: root + 1]:
        own, shared = path / PROJECT_FILE, path / _PYPROJECT
        found = [file for file in (own, shared) if _has_settings(file)]
        if len(found) > 1:
            raise ConfigError(
                f"{own} and [tool.embedlib] of {shared} are both there; keep one of them"
            )
        if found:
            return found[0]
    return None


def read_project_file(path: Path) -> dict[str, Setting]:
    """Return the settings of a project's file.

    Raises:
        ConfigError: it cannot be read, or has a key or value that it must not have.
    """
    return _checked(_table(path), path, is_project=True)


def read_user_file(path: Path) -> dict[str, Setting]:
    """Return the settings of the user's file; none if there is no such file.

    Raises:
        ConfigError: it cannot be read, or has a key or value that it must not have.
    """
    # Without a home folder the path would be one below the current folder, which is the project's.
    is_there = path.is_absolute() and os.path.isfile(path)
    return _checked(_read_toml(path), path, is_project=False) if is_there else {}


def _has_settings(path: Path) -> bool:
    # A folder that may not be searched has none; Path.is_file raises there before Python 3.14.
    if not os.path.isfile(path):
        return False
    if not _is_own(path):
        if path.name == PROJECT_FILE:
            logging.getLogger(__name__).warning(
                "%s is not read: another user owns it, in a folder that all may write", path
            )
        return False
    if path.name == PROJECT_FILE:
        return True
    # The files of other projects need not be understood.
    return b"embedlib" in _read(path) and bool(_table(path))


def _is_own(path: Path) -> bool:
    """Whether something is there, and no other user has put it into a folder that all may write."""
    try:
        found, folder = os.lstat(path), os.stat(path.parent)
    except OSError:
        return False
    return not folder.st_mode & stat.S_IWOTH or found.st_uid in (os.geteuid(), 0)


def _table(path: Path) -> dict[str, Any]:
    content = _read_toml(path)
    if path.name == PROJECT_FILE:
        return content
    tools = content.get("tool")
    table = tools.get("embedlib", {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: tool.embedlib = {shown(table)}; it must be a table")
    return table


def _checked(table: dict[str, Any], path: Path, *, is_project: bool) -> dict[str, Setting]:
    settings = {}
    for name, value in table.items():
        if name in SECRETS:
            raise ConfigError(
                f"{path}: {name} is a secret and not taken from a file; set {variable_of(name)}"
            )
        if name not in SETTINGS:
            raise ConfigError(f"{path}: unknown key {shown(name)}; {describe_unknown(name)}")
        if is_project and name in NOT_OF_PROJECTS:
            raise ConfigError(
                f"{path}: {name} is not taken from a project's file, which may be somebody else's; "
                f"set {variable_of(name)}, or write it into {user_file()}"
            )
        setting = check_setting(name, value, str(path), f"{path}: {name}")
        settings[name] = _from_its_folder(setting, path.parent)
    return settings


def _from_its_folder(setting: Setting, folder: Path) -> Setting:
    """Return a setting whose path does not depend on the current folder."""
    # Any other model is a hub name, package:NAME, or a path that says where it begins.
    is_path = setting.name in ("cache_folder", "engine_cache_dir") or (
        setting.name == MODEL and setting.value.startswith(".")
    )
    return replace(setting, value=os.path.normpath(folder / setting.value)) if is_path else setting


def _read_toml(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    content = _read(path)
    try:
        return tomllib.loads(content.decode("utf-8-sig"))  # as Windows saves it
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {shortened(str(error))}") from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"{path} has more than {_MAX_BYTES:,} bytes; it is no file of settings")
    return content
