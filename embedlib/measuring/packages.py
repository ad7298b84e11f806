"""Which Python packages are installed, and in which versions; imports none of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable


def missing_of(modules: Iterable[str]) -> list[str]:
    """Return the modules that are not installed."""
    return [module for module in modules if not _is_installed(module)]


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a parent package
        return False


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of distributions; those that are not installed are left out."""
    # A late import: the list of commands imports this module, and must be quick.
    import importlib.metadata

    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
