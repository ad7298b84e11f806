"""Public names of a package that are imported from their modules on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

_NONE: Final[Mapping[str, str]] = {}


def importer(
    package: str, modules: Mapping[str, Sequence[str]], foreign: Mapping[str, str] = _NONE
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package; `help` and tab completion need both.

    Args:
        package: its name.
        modules: the names by module; a module's dot in front stands for the package.
        foreign: names of other libraries, and what to use instead. An import of one raises
            ImportError, since `from package import name` leaves out the words of an AttributeError;
            whatever else asks (`hasattr`, pickle, mock) expects the latter.
    """
    places = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> Any:
        if name in places:
            return getattr(import_module(places[name], package), name)
        hint = f"; {foreign[name]}" if name in foreign else ""
        # Source: CPython's Lib/importlib/_bootstrap.py, which asks for each name behind `import`.
        if hint and sys._getframe(1).f_code.co_name == "_handle_fromlist":
            raise ImportError(f"cannot import name {name!r} from {package!r}{hint}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    return find, listed
