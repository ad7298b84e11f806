"""Packages that an extra of embedlib brings."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from embedlib.errors import EmbedlibError, SinkError


def import_extra(module: str, extra: str, error: type[EmbedlibError] = SinkError) -> Any:
    """Import a module that an extra brings.

    Raises:
        EmbedlibError: an `error`: it is not installed; the message has the line that installs it.
    """
    try:
        return import_module(module)
    except ImportError as cause:
        raise error(
            f"{module} is not installed; pip install 'embedlib[{extra}]' ({cause})"
        ) from cause
