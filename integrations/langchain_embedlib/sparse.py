"""EmbedlibSparse: an Embedder of a sparse model behind langchain-qdrant's SparseEmbeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from embedlib import Embedder
from embedlib.errors import ConfigError
from langchain_embedlib.embeddings import check_is_list
from langchain_embedlib.holder import ModelHolder

try:
    from langchain_qdrant.sparse_embeddings import SparseEmbeddings, SparseVector
except ImportError as error:
    raise ImportError(
        f"langchain-qdrant is not installed; pip install langchain-qdrant ({error})"
    ) from error

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of typing from Python 3.11 on

    from langchain_embedlib.fields import SparseFields


class EmbedlibSparse(ModelHolder, SparseEmbeddings):
    """Sparse embeddings for `QdrantVectorStore`, in the place of its `FastEmbedSparse`.

    Documents are embedded on the bulk lane, queries with priority. Any number of threads and tasks
    may use one object.

        sparse = EmbedlibSparse(model="naver/splade-v3")
        sparse = EmbedlibSparse(embedder=embedder)  # shared with the rest of the program
    """

    max_active_dims: int | None = Field(default=None, ge=1, strict=True)
    """How many weights of a text are kept, the greatest; None: as the model's files say."""
    show_progress: bool = False
    """Whether `embed_documents` shows a progress bar."""

    _held_kind: ClassVar[type[Any]] = Embedder
    _held_name: ClassVar[str] = "embedder"
    _their_fields: ClassVar[Mapping[str, str]] = {
        **ModelHolder._their_fields,
        "cache_dir": "pass cache_folder=...",
        **dict.fromkeys(("batch_size", "parallel", "providers"), "leave it out"),
    }

    def __init__(self, *, embedder: Embedder | None = None, **fields: Unpack[SparseFields]) -> None:
        """Load the model, or use a given Embedder, which the caller closes.

        Args:
            embedder: instead of `model`.
            **fields: the fields of this class; `model` is another name of `model_name`.

        Raises:
            ConfigError: an option is unknown or out of range, or the model makes no sparse vectors.
            pydantic.ValidationError: a field has the wrong type.
            EmbedlibError: the model cannot be loaded, see `Embedder`.
        """
        self._check_fields(fields, (), "model_kwargs")
        super().__init__(**dict[str, Any](fields))
        self._check_model(embedder)
        self._hold(embedder)
        try:
            self._check_makes_sparse_vectors()
        except BaseException:
            self.close()
            raise

    def _check_makes_sparse_vectors(self) -> None:
        try:
            self.embed_documents([])  # computes nothing
        except ConfigError as error:
            raise ConfigError(
                "EmbedlibSparse needs a model that makes sparse vectors, a SPLADE model or bge-m3; "
                f"take another one ({error})"
            ) from error

    @property
    def embedder(self) -> Embedder:
        """The Embedder that embeds the texts."""
        embedder: Embedder = self._held
        return embedder

    @property
    def _options(self) -> dict[str, Any]:
        return {"output_value": "sparse", "max_active_dims": self.max_active_dims}

    def embed_documents(self, texts: list[str]) -> list[SparseVector]:
        """Return the sparse vectors of documents, in their order.

        Args:
            texts: what to embed.

        Raises:
            EmbedlibError: see `Embedder.encode`.
        """
        check_is_list(texts)
        found = self.embedder.encode_document(
            texts, show_progress_bar=self.show_progress, **self._options
        )
        return [_sparse(weights) for weights in found]

    def embed_query(self, text: str) -> SparseVector:
        """Return the sparse vector of a query.

        Args:
            text: what to embed.

        Raises:
            EmbedlibError: see `Embedder.encode`.
        """
        # In a list, so that anything but a str is refused.
        found = self.embedder.encode_query([text], show_progress_bar=False, **self._options)
        return _sparse(found[0])

    async def aembed_documents(self, texts: list[str]) -> list[SparseVector]:
        """Return what `embed_documents` returns without blocking the event loop."""
        check_is_list(texts)
        found = await self.embedder.aencode_document(texts, **self._options)
        return [_sparse(weights) for weights in found]

    async def aembed_query(self, text: str) -> SparseVector:
        """Return what `embed_query` returns without blocking the event loop."""
        return _sparse((await self.embedder.aencode_query([text], **self._options))[0])


def _sparse(weights: Mapping[int, float]) -> SparseVector:
    return SparseVector(indices=list(weights), values=list(weights.values()))
