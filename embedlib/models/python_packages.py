"""Models shipped inside installed Python packages: `package:NAME`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path

from embedlib.errors import ModelNotFoundError, visible_line
from embedlib.packages.installing import installer

PACKAGE_PREFIX = "package:"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
"""Source: PyPA, names and normalization."""


def find_in_package(name: str) -> Path:
    """Return the model folder inside an installed package, without importing the package."""
    package, _, inside = name.partition("/")
    told = visible_line(f"{PACKAGE_PREFIX}{name:.300}")
    roots = _package_roots(package)
    if not roots:
        # A command that others may paste has no more in it than the name of a package.
        # Its files alone are read; what it requires is mostly torch.
        line = f"{installer()} --no-deps {package}"
        install = f"install it ({line}) or " if _NAME.fullmatch(package) else ""
        raise ModelNotFoundError(
            f"no model {told}: no package named {package!r:.100} is "
            f"installed in this Python; {install}check the spelling"
        )
    if inside:
        for root in roots:
            if _is_model_folder(root / inside):
                return root / inside
        raise ModelNotFoundError(
            f"no model {told}: {inside!r} inside the package is not a folder with "
            f"config.json and weights; {PACKAGE_PREFIX}{package} searches the whole package"
        )
    found = [(root, folder) for root in roots for folder in _model_folders(root)]
    if not found:
        raise ModelNotFoundError(
            f"no model {told}: the package is installed, but none of its folders "
            "holds modules.json, or config.json beside safetensors weights"
        )
    if len(found) > 1:
        names = ", ".join(
            f"{PACKAGE_PREFIX}{package}/{folder.relative_to(root).as_posix()}"
            for root, folder in found
        )
        raise ModelNotFoundError(f"{told} holds {len(found)} models; name one of them: {names}")
    return found[0][1]


def _package_roots(name: str) -> list[Path]:
    """Return the folders of an import package, by its import name or its distribution name."""
    roots = _import_roots(name.replace("-", "_"))
    if roots or not name:  # for an empty name, Python 3.10 returns an arbitrary distribution
        return roots
    # A distribution's name may differ from the names of its import packages.
    try:
        files = importlib.metadata.distribution(name).files or []
    except importlib.metadata.PackageNotFoundError:
        return []
    packages = sorted({file.parts[0] for file in files})
    return [root for package in packages for root in _import_roots(package)]


def _import_roots(package: str) -> list[Path]:
    if not package.isidentifier():
        return []
    try:
        # For a name without dots this only searches; it does not run the package's code.
        spec = importlib.util.find_spec(package)
    except ValueError:  # of __main__
        return []
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [Path(location) for location in spec.submodule_search_locations]


def _is_model_folder(folder: Path) -> bool:
    if (folder / "modules.json").is_file():
        return True
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def _model_folders(root: Path) -> list[Path]:
    """Return the outermost model folders below `root`.

    The folder of a Dense module inside a model looks like a model folder too.
    """
    found: list[Path] = []
    for folder in sorted({file.parent for file in root.rglob("*.json")}):
        is_inner = any(folder.is_relative_to(outer) for outer in found)
        if _is_model_folder(folder) and not is_inner:
            found.append(folder)
    return found
