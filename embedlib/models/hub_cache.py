"""What the hub's cache tells of files that a model's snapshot lacks.

The cache is filled file by file, by several libraries. `AutoModel.from_pretrained` caches the
transformer and none of the files that say how its vectors are pooled, so a file that is not there
may exist. Only traces that an answer of the hub left say that it does not.

    models--OWNER--NAME/snapshots/COMMIT/        the files
    models--OWNER--NAME/.no_exist/COMMIT/FILE    the hub was asked for FILE, and had none
    models--OWNER--NAME/trees/COMMIT.json        all files of the repository; huggingface_hub 2
"""

from __future__ import annotations

import json
import os
from pathlib import Path, PurePath
from typing import Final

MODULES: Final = "modules.json"
"""Says how vectors are pooled. Who asks for it asks for the other files of sentence-transformers as
well, so where it is, one that is missing is taken not to exist."""


def is_snapshot(folder: Path) -> bool:
    """Return whether a folder is one of the hub's cache, named after a commit."""
    return folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--")


def may_have(snapshot: Path, file: str) -> bool:
    """Return whether the repository may have a file that its snapshot lacks."""
    if os.path.lexists(snapshot / file):
        return False
    # A download of the whole repository brings it, and no library asks for it alone.
    if (snapshot / ".gitattributes").exists():
        return False
    repository, commit = snapshot.parent.parent, snapshot.name
    if (repository / ".no_exist" / commit / file).exists():
        return False
    listed = _listed(snapshot)
    return listed is None or file in listed


def _listed(snapshot: Path) -> set[str] | None:
    """Return the files of a snapshot's commit, as the cache lists them; None: it does not."""
    try:
        path = snapshot.parent.parent / "trees" / f"{snapshot.name}.json"
        return set(json.loads(path.read_bytes())["files"])
    except (OSError, ValueError, LookupError, TypeError):  # there is none, or of another format
        return None


def pickle_of(snapshot: Path) -> str | None:
    """Return a pickle of weights that a snapshot has, or its repository is known to have."""
    there = {path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*.bin")}
    known = there.union(_listed(snapshot) or ())
    return min((name for name in known if PurePath(name).match("pytorch_model*.bin")), default=None)


def lists_files(repository: Path, commit: str) -> bool:
    """Return whether a repository's folder in the cache has the list of a commit's files."""
    return os.path.isfile(repository / "trees" / f"{commit}.json")


def how_to_convert(repo: str) -> str:
    """Return what to do with a repository whose pickles are not downloaded."""
    return (
        f"run embedlib convert {repo} once, which downloads them and makes safetensors of them "
        "without running them"
    )


def snapshots(repository: Path) -> list[Path]:
    """Return the snapshots of a repository's folder in the cache, the newest first."""
    found = [path for path in (repository / "snapshots").glob("*") if path.is_dir()]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def hub_name(repository: Path) -> str:
    """Return the hub name of a repository's folder in the cache: models--OWNER--NAME."""
    return repository.name.removeprefix("models--").replace("--", "/")
