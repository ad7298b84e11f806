"""Bulk load: sources, chunking, sinks, and the pipeline between them.

This is the one import address for code around a bulk load: sinks, sources and embedders of your
own. Every name in `__all__` is imported from its module on first use, so that importing this
package loads nothing else. The names stay; the modules they come from may move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedlib.packages.lazy import importer

if TYPE_CHECKING:
    from embedlib.indexing.asynchronous import aindex
    from embedlib.indexing.embedders import (
        EmbeddingCounts,
        QueryEmbedder,
        SparseEmbedder,
        TextEmbedder,
    )
    from embedlib.indexing.filters.expression import (
        AllOf,
        AnyOf,
        Exists,
        Filter,
        Not,
        OneOf,
        Order,
        matcher,
    )
    from embedlib.indexing.filters.parser import parse_filter
    from embedlib.indexing.options import IndexOptions
    from embedlib.indexing.pipeline import index
    from embedlib.indexing.report import IndexProgress, IndexReport
    from embedlib.indexing.rows import (
        BadRow,
        Chunk,
        Document,
        Row,
        has_same_content,
        model_digest,
        row_digest,
        row_id,
    )
    from embedlib.indexing.searches.hits import SearchHit, SearchResults, SearchTimes
    from embedlib.indexing.searches.retrieval import RankingModel, Search
    from embedlib.indexing.searches.searching import search, stored_state
    from embedlib.indexing.sinks.abilities import (
        FilteringSink,
        PositionSink,
        SparseSink,
        TextSink,
    )
    from embedlib.indexing.sinks.checks import check_target, check_vectors, check_weights
    from embedlib.indexing.sinks.file_lock import FileLock, lock_folder
    from embedlib.indexing.sinks.opening import ENTRY_POINT_GROUP, open_sink
    from embedlib.indexing.sinks.protocol import (
        Description,
        Hit,
        OtherModelError,
        RowKey,
        Sink,
        SinkState,
        SparseModel,
        Target,
        Tell,
        UnreachableSinkError,
        UnstorableRowsError,
        tell_nobody,
    )
    from embedlib.indexing.sinks.replaceable import (
        ReplaceableSink,
        ReplacedError,
        StoredRow,
        models_of,
    )
    from embedlib.indexing.sinks.urls import SinkUrl, host_of, is_true, parse_url, without_password
    from embedlib.indexing.sources.files import open_source
    from embedlib.indexing.sources.protocol import (
        InputFormat,
        ResumableSource,
        Source,
        SourceOptions,
    )
    from embedlib.indexing.sources.sql import (
        POSTGRES_NO_ANSWER,
        open_sql_source,
        with_connect_timeout,
    )
    from embedlib.packages.installing import import_extra
    from embedlib.vectors.arrays import Vectors
    from embedlib.vectors.sparse import SparseVector

__all__ = [
    "ENTRY_POINT_GROUP",
    "POSTGRES_NO_ANSWER",
    "AllOf",
    "AnyOf",
    "BadRow",
    "Chunk",
    "Description",
    "Document",
    "EmbeddingCounts",
    "Exists",
    "FileLock",
    "Filter",
    "FilteringSink",
    "Hit",
    "IndexOptions",
    "IndexProgress",
    "IndexReport",
    "InputFormat",
    "Not",
    "OneOf",
    "Order",
    "OtherModelError",
    "PositionSink",
    "QueryEmbedder",
    "RankingModel",
    "ReplaceableSink",
    "ReplacedError",
    "ResumableSource",
    "Row",
    "RowKey",
    "Search",
    "SearchHit",
    "SearchResults",
    "SearchTimes",
    "Sink",
    "SinkState",
    "SinkUrl",
    "Source",
    "SourceOptions",
    "SparseEmbedder",
    "SparseModel",
    "SparseSink",
    "SparseVector",
    "StoredRow",
    "Target",
    "Tell",
    "TextEmbedder",
    "TextSink",
    "UnreachableSinkError",
    "UnstorableRowsError",
    "Vectors",
    "aindex",
    "check_target",
    "check_vectors",
    "check_weights",
    "has_same_content",
    "host_of",
    "import_extra",
    "index",
    "is_true",
    "lock_folder",
    "matcher",
    "model_digest",
    "models_of",
    "open_sink",
    "open_source",
    "open_sql_source",
    "parse_filter",
    "parse_url",
    "row_digest",
    "row_id",
    "search",
    "stored_state",
    "tell_nobody",
    "with_connect_timeout",
    "without_password",
]

_MODULES = {
    ".asynchronous": ("aindex",),
    ".embedders": ("EmbeddingCounts", "QueryEmbedder", "SparseEmbedder", "TextEmbedder"),
    ".filters.expression": (
        *("AllOf", "AnyOf", "Exists", "Filter", "Not", "OneOf", "Order", "matcher"),
    ),
    ".filters.parser": ("parse_filter",),
    ".searches.hits": ("SearchHit", "SearchResults", "SearchTimes"),
    ".options": ("IndexOptions",),
    ".pipeline": ("index",),
    ".report": ("IndexProgress", "IndexReport"),
    ".searches.retrieval": ("RankingModel", "Search"),
    ".rows": (
        *("BadRow", "Chunk", "Document", "Row"),
        *("has_same_content", "model_digest", "row_digest", "row_id"),
    ),
    ".searches.searching": ("search", "stored_state"),
    ".sinks.abilities": ("FilteringSink", "PositionSink", "SparseSink", "TextSink"),
    ".sinks.checks": ("check_target", "check_vectors", "check_weights"),
    ".sinks.file_lock": ("FileLock", "lock_folder"),
    ".sinks.protocol": (
        *("Description", "Hit", "OtherModelError", "RowKey", "Sink", "SinkState", "Target"),
        *("SparseModel", "Tell", "UnreachableSinkError", "UnstorableRowsError", "tell_nobody"),
    ),
    ".sinks.replaceable": ("ReplaceableSink", "ReplacedError", "StoredRow", "models_of"),
    ".sinks.opening": ("ENTRY_POINT_GROUP", "open_sink"),
    ".sinks.urls": ("SinkUrl", "host_of", "is_true", "parse_url", "without_password"),
    ".sources.files": ("open_source",),
    ".sources.protocol": ("InputFormat", "ResumableSource", "Source", "SourceOptions"),
    ".sources.sql": ("POSTGRES_NO_ANSWER", "open_sql_source", "with_connect_timeout"),
    "embedlib.packages.installing": ("import_extra",),
    "embedlib.vectors.arrays": ("Vectors",),
    "embedlib.vectors.sparse": ("SparseVector",),
}
__getattr__, __dir__ = importer(__name__, _MODULES)
