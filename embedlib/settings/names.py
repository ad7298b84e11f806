"""Which options are settings, and who may set each."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from embedlib.config import Config, check_option
from embedlib.errors import ConfigError, nearest, shown

PREFIX = "EMBEDLIB_"
MODEL = "model"
"""The setting that is no field of `Config`: the embedding model of commands given none."""

MACHINE_SETTINGS = (
    *("token", "cache_folder", "local_files_only"),
    *("engine", "device", "precision", "prepare", "prepare_seconds"),
    *("gpu_memory_fraction", "threads"),
    *("max_batch_tokens", "max_inflight_batches", "engine_cache_dir"),
)
"""Fields that say where models are and how this machine computes: in Python, too, the environment
sets them."""
TEXT_SETTINGS = ("truncate_dim", "max_seq_tokens", "on_truncate")
"""Fields that say what a vector is: a program says so itself, and only commands are set."""
SETTINGS = (MODEL, *MACHINE_SETTINGS, *TEXT_SETTINGS)

SECRETS = ("token",)
"""Never taken from a file, which is copied and committed, and never printed."""
NOT_OF_PROJECTS = ("cache_folder", "engine_cache_dir", "local_files_only")
"""A project's file comes with a download: it must not say which folders are read and written, nor
whether a connection may be opened."""

_OF_ONE_MODEL = ("revision", "template")


@dataclass(frozen=True)
class Setting:
    """A value that holds where nobody gives another."""

    name: str
    value: Any = field(repr=False)  # it may be a secret
    origin: str
    """The variable or the file that sets it."""
    said: str
    """What messages call it: the variable, or the file and the key."""


def check_setting(name: str, value: object, origin: str, said: str) -> Setting:
    """Check a value as the option itself is checked.

    Raises:
        ConfigError: it is out of range.
    """
    if name == MODEL:
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(
                f"{said} = {shown(value)}; it must be a folder, a hub name or package:NAME"
            )
        return Setting(name, value, origin, said)
    return Setting(name, check_option(name, value, said), origin, said)


def describe_unknown(name: str) -> str:
    """Return what to do about a key that is no setting."""
    if name in _OF_ONE_MODEL:
        return "it belongs to one model; give it with the model"
    if name in [item.name for item in fields(Config)]:
        return "it is an option of Python programs; pass it there"
    return nearest(name, SETTINGS)
