"""LangChain's Embeddings interface over embedlib, with the fields of HuggingFaceEmbeddings.

from langchain_embedlib import EmbedlibEmbeddings

embeddings = EmbedlibEmbeddings(model="sentence-transformers/all-MiniLM-L6-v2")
"""

from __future__ import annotations

try:
    import langchain_core  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"langchain-core is not installed; pip install 'embedlib[langchain]' ({error})"
    ) from error

from langchain_embedlib.embeddings import EmbedlibEmbeddings

__all__ = ["EmbedlibEmbeddings"]
