"""The fields of the classes by name and type, for editors and type checkers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict


class ModelFields(TypedDict, total=False):
    """Those that say which model is loaded."""

    model: str | Path | None
    """A folder, a hub name or `package:NAME`."""
    model_name: str | Path | None
    """The same."""
    cache_folder: str | Path | None
    """Where hub models are stored; None: the hub's own cache."""
    model_kwargs: dict[str, Any]
    """Options of the model, fields of `embedlib.Config`."""


class EmbeddingsFields(ModelFields, total=False):
    """The fields of `EmbedlibEmbeddings`."""

    encode_kwargs: dict[str, Any]
    """Arguments of `Embedder.encode` for documents, such as `normalize_embeddings` or `prompt`."""
    query_encode_kwargs: dict[str, Any]
    """The same for queries; if empty, `encode_kwargs` apply to queries too."""
    multi_process: bool
    """Must be False: one Embedder uses the whole machine."""
    show_progress: bool
    """Whether `embed_documents` shows a progress bar."""


class SparseFields(ModelFields, total=False):
    """The fields of `EmbedlibSparse`."""

    max_active_dims: int | None
    """How many weights of a text are kept, the greatest; None: as the model's files say."""
    show_progress: bool
    """Whether `embed_documents` shows a progress bar."""


class RerankFields(ModelFields, total=False):
    """The fields of `EmbedlibRerank`."""

    top_n: int | None
    """How many documents are returned; None: all."""
    rank_kwargs: dict[str, Any]
    """Arguments of `Reranker.rank`, such as `instruction` or `raw_scores`."""


class RetrieverFields(TypedDict, total=False):
    """The fields of `EmbedlibRetriever`; the last three are those of every retriever."""

    top_k: int
    """How many documents, at most."""
    k: int
    """The same."""
    where: str | None
    """A filter on the metadata."""
    min_score: float | None
    """Leave out rows with a lower score."""
    name: str | None
    tags: list[str] | None
    metadata: dict[str, Any] | None
