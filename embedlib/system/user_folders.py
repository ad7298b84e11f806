"""Folders that options name, and the user's cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from embedlib.errors import ConfigError, shown


def entered(cache: Path) -> Path:
    """Return the folder of a cache, after a check that this user may look into it.

    Raises:
        ConfigError: it, or a folder above it, may not be entered: another user's home, mostly.
    """
    try:
        os.stat(os.path.join(cache, "."))  # a Path would drop the dot, which asks to enter it
    except PermissionError:
        raise ConfigError(
            f"the cache {str(cache)!r} is in a folder that this user may not enter; pass "
            "engine_cache_dir, or set EMBEDLIB_ENGINE_CACHE_DIR or HOME"
        ) from None
    except OSError:
        pass  # there is none yet, or it is no folder: who writes into it tells why that fails
    return cache


def user_folder(variable: str, below_home: str) -> Path:
    """Return a folder of the user's: what a variable says, or one below the home folder.

    Source: XDG Base Directory Specification 0.8, which ignores a path that is not absolute.

    Args:
        variable: `XDG_CACHE_HOME` or another one of that specification.
        below_home: where the folder is if the variable does not say it.

    Raises:
        RuntimeError: it does not, and the user has no home.
    """
    named = os.environ.get(variable, "")
    return Path(named) if os.path.isabs(named) else Path.home() / below_home


def user_cache() -> Path:
    """Return the folder of the user's caches.

    Raises:
        ConfigError: no variable names it, and the user has no home.
    """
    try:
        return user_folder("XDG_CACHE_HOME", ".cache")
    except RuntimeError:
        raise ConfigError(
            "no folder for the cache: this user has no home folder; pass engine_cache_dir, or set "
            "EMBEDLIB_ENGINE_CACHE_DIR or HOME"
        ) from None


def expanded(value: Any) -> str | Path:
    """Return a folder with the home folder in the place of `~`, as the type that it has."""
    try:
        folder = Path(value).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"the folder {shown(os.fspath(value))}: there is no such home folder; write ./~ for a "
            "name that begins with ~"
        ) from None
    return os.path.expanduser(value) if isinstance(value, str) else folder


def absolute(folder: str | Path) -> str | Path:
    """Return a folder, as the type that it has, by its absolute path."""
    try:
        path = Path(folder).absolute()
    except FileNotFoundError:
        raise ConfigError(
            f"the folder {shown(os.fspath(folder))}: the current folder was deleted; give an "
            "absolute path"
        ) from None
    return str(path) if isinstance(folder, str) else path


def working_directory() -> str:
    """Return where relative paths begin, for messages."""
    try:
        return repr(os.getcwd())
    except FileNotFoundError:
        return "it was deleted"
