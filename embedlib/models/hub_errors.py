"""Explains the errors of the hub's client: what went wrong, and what to do."""

from __future__ import annotations

import errno
import os
from http import HTTPStatus
from pathlib import Path

from embedlib.config import Config
from embedlib.errors import typed_line
from embedlib.models.python_packages import PACKAGE_PREFIX


def explain(error: Exception, config: Config) -> tuple[str, str]:
    """Return what went wrong on the hub, and the remedy."""
    from huggingface_hub import constants, errors

    revision, token, cache_folder = config.revision, config.token, config.cache_folder
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return (
            f"no space left on the disk of {cache_folder or constants.HF_HUB_CACHE}",
            "make room there and try again, which goes on with the download, or pass cache_folder=",
        )
    # Subclasses first: GatedRepoError is a RepositoryNotFoundError, and most are HfHubHTTPError.
    if isinstance(error, errors.GatedRepoError):
        return (
            "access is restricted",
            "request access on the model's page, then pass token= or run `hf auth login`",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            "does not exist, or is private",
            "check the spelling; for a private model pass token=; for a model shipped as a Python "
            f"package use {PACKAGE_PREFIX}NAME",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"has no revision {revision!r}", "give an existing branch, tag or commit"
    if isinstance(error, errors.HFValidationError):
        return "not a valid repository name", "write it as OWNER/NAME"
    if isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled)):
        # IncompleteSnapshotError of huggingface_hub 2 has the folder.
        state = "only in part" if hasattr(error, "snapshot_path") else "not"
        place = (
            f"{state} in the cache" if revision is None else f"{revision!r} {state} in the cache"
        )
        if isinstance(error.__cause__, Exception) and not constants.HF_HUB_OFFLINE:
            return (
                f"{place}, and the hub cannot be reached: {_without_token(error.__cause__, token)}",
                "check the connection, or carry the model here (embedlib pack) and pass its path"
                + _other_cache(cache_folder),
            )
        return (
            f"{place}, and offline mode is on (local_files_only or HF_HUB_OFFLINE)",
            "load it once online, check cache_folder, or carry the model here (embedlib pack) and "
            "pass its path" + _other_cache(cache_folder),
        )
    if _is_refused_token(error):
        return (
            f"the hub does not take the token: {_without_token(error, token)}",
            "give a valid one (token=, HF_TOKEN or `hf auth login`); token=False sends none, which "
            "is enough for a public model",
        )
    return (
        f"could not be downloaded: {_without_token(error, token)}",
        "try again, or carry the model here (embedlib pack) and pass its path",
    )


def _other_cache(cache_folder: str | Path | None) -> str:
    """Return, for the end of a remedy, how to read the cache that sentence-transformers was told.

    Source: sentence-transformers 6.2, `base/model.py`; what is in there has the hub's layout.
    """
    folder = os.environ.get("SENTENCE_TRANSFORMERS_HOME")
    if not folder or cache_folder is not None:
        return ""
    return (
        f"; SENTENCE_TRANSFORMERS_HOME is not read: pass cache_folder={folder!r}, or set "
        "EMBEDLIB_CACHE_FOLDER"
    )


def _is_refused_token(error: Exception) -> bool:
    # Without a token, too, the hub answers 401 for a repository that it does not show: the client
    # makes a RepositoryNotFoundError of that.
    response = getattr(error, "response", None)
    return getattr(response, "status_code", None) == HTTPStatus.UNAUTHORIZED


def _without_token(error: BaseException, token: str | bool | None) -> str:
    """Return the error's class and first line, with the token masked."""
    line = typed_line(error)
    return line.replace(token, "***") if isinstance(token, str) and token else line


def expected_errors() -> tuple[type[Exception], ...]:
    """Return the errors of the hub's client that `explain` explains completely."""
    from huggingface_hub import errors

    return (
        errors.RepositoryNotFoundError,
        errors.RevisionNotFoundError,
        errors.HFValidationError,
        errors.LocalEntryNotFoundError,
        errors.OfflineModeIsEnabled,
    )
