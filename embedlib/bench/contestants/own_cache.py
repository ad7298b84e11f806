"""What is measured of a user's model is kept in the user's cache, and what that holds is taken."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from embedlib.config import Config
from embedlib.errors import ConfigError
from embedlib.settings.layers import read_settings

MEASURED: Final = ("compiled", "fidelity")
"""Folders of a cache: weights in a lower precision, and how near to float32 they are. The others
hold what makes a start quicker, and how `embedlib tune` found a model to be fastest."""


def share_measurements(model: Path, cache_dir: Path) -> None:
    """Let the later starts of a contestant find what the user's cache holds, and the other way.

    Args:
        model: a folder. One that was written for this run, beside `cache_dir`, is not the user's.
        cache_dir: the contestant's own cache; what it has measured so far is dropped.
    """
    if model.parent == cache_dir.parent:
        return
    try:
        setting = read_settings().get("engine_cache_dir")
        own = Config(engine_cache_dir=setting.value if setting else None).engine_cache_path
        for name in MEASURED:
            (own / name).mkdir(parents=True, exist_ok=True)
    except (ConfigError, OSError):
        return  # this user has no cache: what is measured is for this run
    if all(os.access(own / name, os.W_OK) for name in MEASURED):
        for name in MEASURED:
            shutil.rmtree(cache_dir / name, ignore_errors=True)
            (cache_dir / name).symlink_to((own / name).resolve())
