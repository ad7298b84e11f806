"""Old import path: sinks written for earlier versions import `FileLock` from here."""

from __future__ import annotations

from embedlib.indexing.sinks.file_lock import FileLock

__all__ = ["FileLock"]
