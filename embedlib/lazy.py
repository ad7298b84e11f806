"""Public names of a package that are imported from their modules on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def importer(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package.

    Args:
        package: its name.
        modules: the names by module; a module's dot in front stands for the package.
    """
    places = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> Any:
        if name in places:
            return getattr(import_module(places[name], package), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
