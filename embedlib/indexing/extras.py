"""Imports of optional packages, which an extra of embedlib installs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from embedlib.errors import EmbedlibError, SinkError
from embedlib.installing import install_line


def import_extra(module: str, extra: str, error: type[EmbedlibError] = SinkError) -> Any:
    """Import a module of an optional package.

    Args:
        module: name of the module.
        extra: the extra of embedlib that installs it.
        error: class of the exception.

    Raises:
        EmbedlibError: of class `error`: the package is not installed; the message has the command
            that installs it.
    """
    try:
        return import_module(module)
    except ImportError as cause:
        raise error(f"{module} is not installed; {install_line(extra)} ({cause})") from cause
