"""EmbedlibRerank: a Reranker behind LangChain's document compressor interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from pydantic import Field

from embedlib import Reranker
from embedlib.errors import ConfigError, InputError, nearest
from langchain_embedlib.holder import ModelHolder

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of typing from Python 3.11 on

    from langchain_embedlib.fields import RerankFields

RANK_ARGUMENTS = ("prompt_name", "prompt", "activation_fn", "instruction", "raw_scores")
"""Arguments of `Reranker.rank` that change the scores."""


class EmbedlibRerank(ModelHolder, BaseDocumentCompressor):
    """Sorts retrieved documents by relevance to the query, computed in this process.

    Each returned document has its score as `relevance_score` in the metadata, as with the rerankers
    of langchain-community. Any number of threads and tasks may use one object.

        compressor = EmbedlibRerank(model="BAAI/bge-reranker-v2-m3", top_n=5)
        compressor = EmbedlibRerank(reranker=reranker)  # shared with the rest of the program
    """

    top_n: int | None = Field(default=3, ge=1)
    """How many documents are returned; None: all."""
    rank_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of `Reranker.rank`, such as `instruction` or `raw_scores`."""

    _held_kind: ClassVar[type[Any]] = Reranker
    _held_name: ClassVar[str] = "reranker"

    def __init__(self, *, reranker: Reranker | None = None, **fields: Unpack[RerankFields]) -> None:
        """Load the model, or use a given Reranker, which the caller closes.

        Args:
            reranker: instead of `model`.
            **fields: the fields of this class; `model` is another name of `model_name`.

        Raises:
            ConfigError: an option is unknown, out of range or has no effect here.
            pydantic.ValidationError: a field has the wrong type.
            EmbedlibError: the model cannot be loaded, see `Reranker`.
        """
        self._check_fields(fields, RANK_ARGUMENTS, "rank_kwargs")
        super().__init__(**dict[str, Any](fields))
        for name in self.rank_kwargs:
            if name not in RANK_ARGUMENTS:
                hint = nearest(name, RANK_ARGUMENTS)
                raise ConfigError(f"rank_kwargs cannot hold {name!r}; {hint}")
        self._check_model(reranker)
        self._hold(reranker)
        try:
            # Without documents this computes nothing, but checks every argument.
            self.reranker.rank("", [], show_progress_bar=False, **self.rank_kwargs)
        except BaseException:
            self.close()
            raise

    @property
    def reranker(self) -> Reranker:
        """The Reranker that computes the scores."""
        reranker: Reranker = self._held
        return reranker

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        """Return the most relevant documents, best first.

        Args:
            documents: the retrieved documents; they are not changed.
            query: the question.
            callbacks: ignored.

        Raises:
            EmbedlibError: see `Reranker.rank`.
        """
        ranking = self.reranker.rank(
            query, _texts(documents), self.top_n, show_progress_bar=False, **self.rank_kwargs
        )
        return _ranked(documents, ranking)

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        """Return what `compress_documents` returns without blocking the event loop."""
        ranking = await self.reranker.arank(
            query, _texts(documents), self.top_n, **self.rank_kwargs
        )
        return _ranked(documents, ranking)


def _texts(documents: Sequence[Document]) -> list[str]:
    if not isinstance(documents, Sequence):
        raise InputError(f"documents = {documents!r:.60}; pass a list of Documents")
    for index, document in enumerate(documents):
        if not isinstance(document, Document):
            raise InputError(
                f"document {index} is {document!r:.60}, a {type(document).__name__}; it must be a "
                "langchain_core Document: Document(page_content=...)"
            )
    return [document.page_content for document in documents]


def _ranked(documents: Sequence[Document], ranking: Sequence[Mapping[str, Any]]) -> list[Document]:
    """Return copies with the score in their metadata, since the originals may be shared."""
    ranked = []
    for entry in ranking:
        document = documents[entry["corpus_id"]]
        metadata = {**document.metadata, "relevance_score": entry["score"]}
        ranked.append(document.model_copy(update={"metadata": metadata}))
    return ranked
