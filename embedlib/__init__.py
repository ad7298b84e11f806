"""Text embeddings in your own process, at the speed of the chip, into your vector database.

from embedlib import Embedder

with Embedder("sentence-transformers/all-MiniLM-L6-v2") as embedder:
    vectors = embedder.encode(["a text", "another"])  # float32[2, 384]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embedlib import errors
from embedlib.config import Config

if TYPE_CHECKING:
    from embedlib.embedder import Embedder

__version__ = "0.1.0.dev0"

__all__ = ["Config", "Embedder", "__version__", "errors"]


def __getattr__(name: str) -> Any:
    """Import `Embedder` on first use; it brings numpy and the tokenizers with it."""
    if name == "Embedder":
        from embedlib.embedder import Embedder

        return Embedder
    raise AttributeError(f"module 'embedlib' has no attribute {name!r}")
