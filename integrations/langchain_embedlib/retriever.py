"""EmbedlibRetriever: a Search behind LangChain's retriever interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import Field
from typing_extensions import Self

from embedlib import Search
from embedlib.errors import ConfigError, nearest
from embedlib.indexing import SearchResults
from embedlib.packages.foreign_options import FOREIGN_SEARCH_OPTIONS

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of typing from Python 3.11 on

    from langchain_embedlib.fields import RetrieverFields


class EmbedlibRetriever(BaseRetriever):
    """Returns the rows of a destination that answer a question, whatever kind of destination it is.

    Each document has its score as `relevance_score` in the metadata, and its row's id.

        with Search("edge:my-docs") as search:
            retriever = EmbedlibRetriever(search=search, where='lang = "en"')
    """

    search: Search
    """What is asked; the caller closes it."""
    top_k: int = Field(default=10, ge=1)
    """How many documents, at most; `k` is another name of it. A call may have another number."""
    where: str | None = None
    """A filter on the metadata; the argument `where` of a call is another one."""
    min_score: float | None = None
    """Leave out rows with a lower score."""

    def __init__(self, *, search: Search, **fields: Unpack[RetrieverFields]) -> None:
        """Ask a Search, which the caller closes.

        Args:
            search: what is asked.
            **fields: the fields of this class.

        Raises:
            ConfigError: there is no such field, one is given by two names, or `search` is none.
            pydantic.ValidationError: a field has the wrong type or value.
        """
        given = _with_top_k(dict[str, Any](fields))
        known = (*type(self).model_fields, "k")
        for name in given:
            if name not in known:
                # The base class would ignore it: a misspelled `where` would filter nothing.
                here = FOREIGN_SEARCH_OPTIONS.get(name)
                hint = f"pass {here}=" if here in known else nearest(name, known)
                raise ConfigError(f"{type(self).__name__} has no field {name!r}; {hint}")
        if not isinstance(search, Search):
            raise ConfigError(
                f"search is a {type(search).__name__}; it must be an embedlib.Search: "
                "Search(destination)"
            )
        super().__init__(**{**given, "search": search})

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return a copy that asks the same Search."""
        memo = {} if memo is None else memo
        memo[id(self.search)] = self.search  # a thread and a connection are not copied
        return super().__deepcopy__(memo)

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
        return {**own, **_with_top_k(given)}


def _with_top_k(given: dict[str, Any]) -> dict[str, Any]:
    """Return arguments with `top_k` in the place of `k`, as LangChain's vector stores call it."""
    if "k" not in given:
        return given
    if "top_k" in given:
        raise ConfigError("k and top_k are the same number; pass one of them")
    return {"top_k" if name == "k" else name: value for name, value in given.items()}


def _documents(found: SearchResults) -> list[Document]:
    return [
        Document(
            id=str(hit.id),
            page_content=hit.text,
            metadata={**hit.metadata, "relevance_score": hit.score},
        )
        for hit in found
    ]
