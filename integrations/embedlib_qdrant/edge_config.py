"""Configuration of a shard of Qdrant Edge, and of searches in it."""

from __future__ import annotations

from typing import Any

from embedlib.indexing import import_extra
from embedlib_qdrant.collection_options import OVERSAMPLING
from embedlib_qdrant.points import DISTANCES, SPARSE_NAME, Mark

_FULL_SCAN_KILOBYTES = 10_000
"""Source: `storage.hnsw_index.full_scan_threshold_kb` of Qdrant's config/config.yaml."""


def edge_config(mark: Mark) -> Any:
    """Return the `EdgeConfig` of a new shard."""
    edge = import_extra("qdrant_edge", "qdrant")
    options = mark.options
    memory = edge.Memory.Cold if options.on_disk else None
    multi = sparse = None
    if mark.multi_vector is not None:
        multi = edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim)
    if mark.sparse is not None:
        sparse = {SPARSE_NAME: edge.EdgeSparseVectorParams(memory=memory)}
    return edge.EdgeConfig(
        vectors=edge.EdgeVectorParams(
            size=mark.dim,
            distance=getattr(edge.Distance, DISTANCES[mark.similarity]),
            memory=memory,
            multivector_config=multi,
        ),
        sparse_vectors=sparse,
        hnsw_config=edge.HnswIndexConfig(
            m=options.m,
            ef_construct=options.ef_construct,
            full_scan_threshold=_FULL_SCAN_KILOBYTES,
            memory=memory,
        ),
        quantization_config=_quantization(edge, options.quantization),
    )


def has_graph(mark: Mark, num_rows: int) -> bool:
    """Whether the engine builds a graph of so many rows; of fewer, searches compare all vectors."""
    return mark.multi_vector is not None or 4 * mark.dim * num_rows >= _FULL_SCAN_KILOBYTES << 10


def search_params(mark: Mark) -> Any:
    """Return the `SearchParams` for a shard with this mark; None: the engine's defaults."""
    if mark.options.quantization == "none":
        return None
    edge = import_extra("qdrant_edge", "qdrant")
    again = edge.QuantizationSearchParams(rescore=True, oversampling=OVERSAMPLING)
    return edge.SearchParams(quantization=again)


def _quantization(edge: Any, name: str) -> Any:
    # Pinned in memory: a search reads these small copies first.
    if name == "scalar":
        return edge.ScalarQuantizationConfig(
            type=edge.ScalarType.Int8, quantile=0.99, memory=edge.Memory.Pinned
        )
    if name == "binary":
        return edge.BinaryQuantizationConfig(memory=edge.Memory.Pinned)
    return None
