"""The types in public signatures, for annotations of your own code.

    from embedlib.types import LabelScores

    def show(labels: LabelScores) -> None: ...

Importing this module loads nothing else: each name is imported from its module on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embedlib.batching.policy import BatchingPolicy
    from embedlib.batching.stats import Stats
    from embedlib.classifier import LabelScore, LabelScores
    from embedlib.config import (
        AnySimilarity,
        LateSimilarity,
        OnTruncate,
        PrecisionName,
        Ranges,
        Similarity,
        VectorPrecision,
    )
    from embedlib.engines.kind import DeviceType
    from embedlib.engines.profile import Profile, ProfileKey
    from embedlib.indexing.filters.expression import FieldPath, Matches, Scalar
    from embedlib.indexing.hybrid import Hybrid
    from embedlib.indexing.options import Shard
    from embedlib.indexing.retrieval import Questions
    from embedlib.indexing.signatures import LoadOptions
    from embedlib.indexing.sources.files import FileSource
    from embedlib.indexing.sources.items import LangChainDocument, LlamaIndexNode, SourceItem
    from embedlib.indexing.sources.tables import ArrowTable
    from embedlib.indexing.templates import Prefix
    from embedlib.memory import Memory
    from embedlib.models.known_models import KnownModel, Truncation
    from embedlib.models.prompts import Examples, Role
    from embedlib.models.reading.head_modules import AnswerRows, VocabularyRows
    from embedlib.models.spec import Encoder, Head, LateInteraction, ModelSpec, Module, Pooling
    from embedlib.models.weights.load import Weights
    from embedlib.reranker import Ranking
    from embedlib.session.async_types import AsyncEncode, SubmitBatch
    from embedlib.session.model_card import ModelCardData
    from embedlib.session.result_types import Encode
    from embedlib.session.score_types import AsyncPredict, PairScore, Predict, RankedDocument
    from embedlib.session.scoring import Activation, Scores
    from embedlib.session.signatures import ConfigOptions
    from embedlib.vectors.arrays import (
        AnyVectors,
        ArrayOrTensor,
        DenseVectors,
        SupportsArray,
        TensorLike,
        Vectors,
    )
    from embedlib.vectors.sparse import Comparable
    from embedlib.vectors.tokens import Span

_MODULES = {
    "batching.policy": ("BatchingPolicy",),
    "batching.stats": ("Stats",),
    "classifier": (
        "LabelScore",
        "LabelScores",
    ),
    "config": (
        "AnySimilarity",
        "LateSimilarity",
        "OnTruncate",
        "PrecisionName",
        "Ranges",
        "Similarity",
        "VectorPrecision",
    ),
    "engines.kind": ("DeviceType",),
    "engines.profile": (
        "Profile",
        "ProfileKey",
    ),
    "indexing.filters.expression": (
        "FieldPath",
        "Matches",
        "Scalar",
    ),
    "indexing.hybrid": ("Hybrid",),
    "indexing.options": ("Shard",),
    "indexing.retrieval": ("Questions",),
    "indexing.signatures": ("LoadOptions",),
    "indexing.sources.files": ("FileSource",),
    "indexing.sources.items": ("LangChainDocument", "LlamaIndexNode", "SourceItem"),
    "indexing.sources.tables": ("ArrowTable",),
    "indexing.templates": ("Prefix",),
    "memory": ("Memory",),
    "models.known_models": (
        "KnownModel",
        "Truncation",
    ),
    "models.prompts": (
        "Examples",
        "Role",
    ),
    "models.reading.head_modules": ("AnswerRows", "VocabularyRows"),
    "models.spec": (
        "Encoder",
        "Head",
        "LateInteraction",
        "ModelSpec",
        "Module",
        "Pooling",
    ),
    "models.weights.load": ("Weights",),
    "reranker": ("Ranking",),
    "session.async_types": (
        "AsyncEncode",
        "SubmitBatch",
    ),
    "session.model_card": ("ModelCardData",),
    "session.result_types": ("Encode",),
    "session.score_types": (
        "AsyncPredict",
        "PairScore",
        "Predict",
        "RankedDocument",
    ),
    "session.scoring": (
        "Activation",
        "Scores",
    ),
    "session.signatures": ("ConfigOptions",),
    "vectors.arrays": (
        "AnyVectors",
        "ArrayOrTensor",
        "DenseVectors",
        "SupportsArray",
        "TensorLike",
        "Vectors",
    ),
    "vectors.sparse": ("Comparable",),
    "vectors.tokens": ("Span",),
}
_LAZY = {name: f"embedlib.{module}" for module, names in _MODULES.items() for name in names}

__all__ = [
    "Activation",
    "AnswerRows",
    "AnySimilarity",
    "AnyVectors",
    "ArrayOrTensor",
    "ArrowTable",
    "AsyncEncode",
    "AsyncPredict",
    "BatchingPolicy",
    "Comparable",
    "ConfigOptions",
    "DenseVectors",
    "DeviceType",
    "Encode",
    "Encoder",
    "Examples",
    "FieldPath",
    "FileSource",
    "Head",
    "Hybrid",
    "KnownModel",
    "LabelScore",
    "LabelScores",
    "LangChainDocument",
    "LateInteraction",
    "LateSimilarity",
    "LlamaIndexNode",
    "LoadOptions",
    "Matches",
    "Memory",
    "ModelCardData",
    "ModelSpec",
    "Module",
    "OnTruncate",
    "PairScore",
    "Pooling",
    "PrecisionName",
    "Predict",
    "Prefix",
    "Profile",
    "ProfileKey",
    "Questions",
    "Ranges",
    "RankedDocument",
    "Ranking",
    "Role",
    "Scalar",
    "Scores",
    "Shard",
    "Similarity",
    "SourceItem",
    "Span",
    "Stats",
    "SubmitBatch",
    "SupportsArray",
    "TensorLike",
    "Truncation",
    "VectorPrecision",
    "Vectors",
    "VocabularyRows",
    "Weights",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
