"""Text embeddings in your own process, at the speed of the chip, into your vector database.

from embedlib import Embedder

with Embedder("sentence-transformers/all-MiniLM-L6-v2") as embedder:
    vectors = embedder.encode(["a text", "another"])  # float32[2, 384]
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from embedlib import errors
from embedlib.config import Config
from embedlib.version import __version__

if TYPE_CHECKING:
    from embedlib.batching.usage import Usage
    from embedlib.classifier import Classifier
    from embedlib.embedder import Embedder
    from embedlib.indexing.asynchronous import aindex
    from embedlib.indexing.pipeline import index
    from embedlib.indexing.replacing import drop_old
    from embedlib.indexing.retrieval import Search
    from embedlib.indexing.rows import Document
    from embedlib.indexing.searching import search
    from embedlib.indexing.sources.protocol import SourceOptions
    from embedlib.reranker import Reranker
    from embedlib.vectors.maxsim import maxsim

__all__ = [
    "Classifier",
    "Config",
    "Document",
    "Embedder",
    "Reranker",
    "Search",
    "SourceOptions",
    "Usage",
    "__version__",
    "aindex",
    "drop_old",
    "errors",
    "index",
    "maxsim",
    "search",
]

_LAZY = {
    "Classifier": "embedlib.classifier",
    "Document": "embedlib.indexing.rows",
    "Embedder": "embedlib.embedder",
    "Reranker": "embedlib.reranker",
    "Search": "embedlib.indexing.retrieval",
    "SourceOptions": "embedlib.indexing.sources.protocol",
    "Usage": "embedlib.batching.usage",
    "aindex": "embedlib.indexing.asynchronous",
    "drop_old": "embedlib.indexing.replacing",
    "index": "embedlib.indexing.pipeline",
    "maxsim": "embedlib.vectors.maxsim",
    "search": "embedlib.indexing.searching",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, because its module imports numpy and the tokenizers."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'embedlib' has no attribute {name!r}")
