"""Provenance of a measurement: the commit of embedlib, and the time."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path


def now() -> str:
    """Return the current time in UTC, as ISO 8601."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def checkout_commit() -> str | None:
    """Return the commit of the checkout that embedlib runs from; None where it was installed."""
    folder = Path(__file__).parent
    try:
        # An installed embedlib may lie inside another project's repository, which does not track
        # this file.
        _git(folder, "ls-files", "--error-unmatch", Path(__file__).name)
        return _git(folder, "describe", "--always", "--dirty", "--abbrev=12", "--match=")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()
