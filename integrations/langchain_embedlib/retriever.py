"""EmbedlibRetriever: a Search behind LangChain's retriever interface."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import Field, SkipValidation

from embedlib import Search
from embedlib.errors import ConfigError
from embedlib.indexing import SearchResults


class EmbedlibRetriever(BaseRetriever):
    """Returns the rows of a destination that answer a question, whatever kind of destination it is.

    Each document has its score as `relevance_score` in the metadata, and its row's id.

        with Search("edge:my-docs") as search:
            retriever = EmbedlibRetriever(search=search, where='lang = "en"')
    """

    search: SkipValidation[Search]
    """What is asked; the caller closes it."""
    top_k: int = Field(default=10, ge=1)
    """How many documents, at most; the argument `top_k` of a call, or `k`, is another number."""
    where: str | None = None
    """A filter on the metadata; the argument `where` of a call is another one."""
    min_score: float | None = None
    """Leave out rows with a lower score."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **given: Any
    ) -> list[Document]:
        return _documents(self.search.search(query, **self._arguments(given)))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **given: Any
    ) -> list[Document]:
        return _documents(await self.search.asearch(query, **self._arguments(given)))

    def _arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        own = {"top_k": self.top_k, "where": self.where, "min_score": self.min_score}
        if "k" in given:  # as LangChain's vector stores call it
            if "top_k" in given:
                raise ConfigError("k and top_k are the same number; pass one of them")
            given["top_k"] = given.pop("k")
        return {**own, **given}


def _documents(found: SearchResults) -> list[Document]:
    return [
        Document(
            id=str(hit.id),
            page_content=hit.text,
            metadata={**hit.metadata, "relevance_score": hit.score},
        )
        for hit in found
    ]
