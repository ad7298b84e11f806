"""LangChain's interfaces over embedlib: embeddings, a reranker, and a retriever.

from langchain_embedlib import EmbedlibEmbeddings, EmbedlibRerank

embeddings = EmbedlibEmbeddings(model="sentence-transformers/all-MiniLM-L6-v2")
compressor = EmbedlibRerank(model="BAAI/bge-reranker-v2-m3", top_n=5)
"""

from __future__ import annotations

try:
    import langchain_core  # noqa: F401
except ImportError as error:
    from embedlib.packages.installing import install_line

    raise ImportError(
        f"langchain-core is not installed; {install_line('langchain')} ({error})"
    ) from error

from langchain_embedlib.embeddings import EmbedlibEmbeddings
from langchain_embedlib.rerank import EmbedlibRerank
from langchain_embedlib.retriever import EmbedlibRetriever

__all__ = ["EmbedlibEmbeddings", "EmbedlibRerank", "EmbedlibRetriever"]
