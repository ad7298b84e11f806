"""The types in public signatures, for annotations of your own code.

    from embedlib.types import LabelScores

    def show(labels: LabelScores) -> None: ...

Importing this module loads nothing else: each name is imported from its module on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedlib.packages.lazy import importer

if TYPE_CHECKING:
    from embedlib.batching.policy import BatchingPolicy
    from embedlib.batching.stats import Stats
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
    from embedlib.indexing.chunks.templates import Prefix
    from embedlib.indexing.filters.expression import FieldPath, Matches, Scalar
    from embedlib.indexing.options import Shard
    from embedlib.indexing.searches.hybrid import Hybrid
    from embedlib.indexing.searches.retrieval import Questions
    from embedlib.indexing.signatures import LoadOptions
    from embedlib.indexing.sources.files import FileSource
    from embedlib.indexing.sources.items import LangChainDocument, LlamaIndexNode, SourceItem
    from embedlib.indexing.sources.tables import ArrowTable
    from embedlib.models.known_models import KnownModel, Truncation
    from embedlib.models.prompts import Examples, Role
    from embedlib.models.reading.head_modules import AnswerRows, VocabularyRows
    from embedlib.models.spec import Encoder, Head, LateInteraction, ModelSpec, Module, Pooling
    from embedlib.models.weights.load import Weights
    from embedlib.reranker import Ranking
    from embedlib.session.async_types import AsyncEncode, SubmitBatch
    from embedlib.session.label_scores import LabelScore, LabelScores
    from embedlib.session.model_card import ModelCardData
    from embedlib.session.result_types import Encode
    from embedlib.session.score_types import AsyncPredict, PairScore, Predict, RankedDocument
    from embedlib.session.scoring import Activation, Scores
    from embedlib.session.signatures import ConfigOptions
    from embedlib.system.memory import Memory
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
    "embedlib.batching.policy": ("BatchingPolicy",),
    "embedlib.batching.stats": ("Stats",),
    "embedlib.config": (
        "AnySimilarity",
        "LateSimilarity",
        "OnTruncate",
        "PrecisionName",
        "Ranges",
        "Similarity",
        "VectorPrecision",
    ),
    "embedlib.engines.kind": ("DeviceType",),
    "embedlib.engines.profile": ("Profile", "ProfileKey"),
    "embedlib.indexing.filters.expression": ("FieldPath", "Matches", "Scalar"),
    "embedlib.indexing.searches.hybrid": ("Hybrid",),
    "embedlib.indexing.options": ("Shard",),
    "embedlib.indexing.searches.retrieval": ("Questions",),
    "embedlib.indexing.signatures": ("LoadOptions",),
    "embedlib.indexing.sources.files": ("FileSource",),
    "embedlib.indexing.sources.items": ("LangChainDocument", "LlamaIndexNode", "SourceItem"),
    "embedlib.indexing.sources.tables": ("ArrowTable",),
    "embedlib.indexing.chunks.templates": ("Prefix",),
    "embedlib.system.memory": ("Memory",),
    "embedlib.models.known_models": ("KnownModel", "Truncation"),
    "embedlib.models.prompts": ("Examples", "Role"),
    "embedlib.models.reading.head_modules": ("AnswerRows", "VocabularyRows"),
    "embedlib.models.spec": (
        "Encoder",
        "Head",
        "LateInteraction",
        "ModelSpec",
        "Module",
        "Pooling",
    ),
    "embedlib.models.weights.load": ("Weights",),
    "embedlib.reranker": ("Ranking",),
    "embedlib.session.async_types": ("AsyncEncode", "SubmitBatch"),
    "embedlib.session.label_scores": ("LabelScore", "LabelScores"),
    "embedlib.session.model_card": ("ModelCardData",),
    "embedlib.session.result_types": ("Encode",),
    "embedlib.session.score_types": ("AsyncPredict", "PairScore", "Predict", "RankedDocument"),
    "embedlib.session.scoring": ("Activation", "Scores"),
    "embedlib.session.signatures": ("ConfigOptions",),
    "embedlib.vectors.arrays": (
        "AnyVectors",
        "ArrayOrTensor",
        "DenseVectors",
        "SupportsArray",
        "TensorLike",
        "Vectors",
    ),
    "embedlib.vectors.sparse": ("Comparable",),
    "embedlib.vectors.tokens": ("Span",),
}
__getattr__, __dir__ = importer(__name__, _MODULES)

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
