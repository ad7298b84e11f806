"""The version of the package, apart from its root so that every module may import it."""

from __future__ import annotations

__version__ = "0.1.0.dev0"
