"""Text embeddings in your own process, at the speed of the chip, into your vector database.

from embedlib import Embedder

with Embedder("sentence-transformers/all-MiniLM-L6-v2") as embedder:
    vectors = embedder.encode(["a text", "another"])  # float32[2, 384]
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if sys.platform == "win32":
    raise ImportError("embedlib does not run on Windows itself; install it in WSL (wsl --install)")

from embedlib import errors
from embedlib.config import Config
from embedlib.packages.foreign_options import FOREIGN_CLASSES
from embedlib.packages.lazy import importer
from embedlib.version import __version__

if TYPE_CHECKING:
    from embedlib.batching.usage import Usage
    from embedlib.classifier import Classifier
    from embedlib.embedder import Embedder
    from embedlib.indexing.asynchronous import aindex
    from embedlib.indexing.pipeline import index
    from embedlib.indexing.replacing import drop_old
    from embedlib.indexing.rows import Document
    from embedlib.indexing.searches.retrieval import Search
    from embedlib.indexing.searches.searching import search
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

# They import numpy and the tokenizers.
_MODULES = {
    ".batching.usage": ("Usage",),
    ".classifier": ("Classifier",),
    ".embedder": ("Embedder",),
    ".indexing.asynchronous": ("aindex",),
    ".indexing.pipeline": ("index",),
    ".indexing.replacing": ("drop_old",),
    ".indexing.searches.retrieval": ("Search",),
    ".indexing.rows": ("Document",),
    ".indexing.searches.searching": ("search",),
    ".indexing.sources.protocol": ("SourceOptions",),
    ".reranker": ("Reranker",),
    ".vectors.maxsim": ("maxsim",),
}
__getattr__, __dir__ = importer(__name__, _MODULES, FOREIGN_CLASSES)
