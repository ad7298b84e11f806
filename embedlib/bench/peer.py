"""What the peers' contestants share."""

from __future__ import annotations

import threading
from typing import Any

from embedlib.measuring.child import Memory, own_memory


class PeerContestant:
    """A peer that keeps no cache, counts nothing, and multiplies in float32 in this process."""

    def __init__(self) -> None:
        self._model: Any = None
        self._one_at_a_time = threading.Lock()
        """For libraries whose model must not be called from two threads at once."""

    def fill_cache(self, cache_dir: object) -> None:
        """Do nothing: it keeps no cache."""

    def stats(self) -> dict[str, float]:
        """Return nothing: it does not count."""
        return {}

    def precision(self) -> str:
        """Return float32."""
        return "float32"

    def memory(self) -> Memory:
        """Return the memory of this process."""
        return own_memory()
