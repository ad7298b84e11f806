"""Whether a server's collection is being loaded, and what the server has built of it.

While a new collection is loaded, the server builds nothing: its graph is off (m = 0), and so is the
optimizer (indexing_threshold = 0), which would copy every segment once without a graph and once
more with it. The end of the load switches both on in one request. What the threshold was is kept in
the collection's metadata, for the run that ends a load which was killed.
"""

from __future__ import annotations

from typing import Any

LOAD_KEY = "embedlib_load"
"""Of the collection's metadata; there while the collection is loaded."""
_THRESHOLD = "indexing_threshold"


def pausing_changes(models: Any, info: Any) -> dict[str, Any]:
    """Return the arguments of `update_collection` that switch the optimizer off; empty: it is off.

    Args:
        models: the module `qdrant_client.models`.
        info: the client's `CollectionInfo`.
    """
    threshold = info.config.optimizer_config.indexing_threshold
    if info.config.hnsw_config.m != 0 or not threshold:
        return {}
    return {
        "optimizers_config": models.OptimizersConfigDiff(indexing_threshold=0),
        "metadata": {LOAD_KEY: {_THRESHOLD: threshold}},
    }


def building_changes(models: Any, info: Any, m: int) -> dict[str, Any]:
    """Return the arguments of `update_collection` that switch both on; empty: they are on."""
    changes: dict[str, Any] = {}
    if info.config.hnsw_config.m == 0:  # else somebody may have chosen another number since
        changes["hnsw_config"] = models.HnswConfigDiff(m=m)
    before = (info.config.metadata or {}).get(LOAD_KEY)
    if before is not None:
        changes["metadata"] = {LOAD_KEY: None}
        if info.config.optimizer_config.indexing_threshold == 0:  # nobody has set it since
            changes["optimizers_config"] = models.OptimizersConfigDiff(**before)
    return changes


def describe_index(info: Any, num_rows: int) -> str:
    """Return the state of the index in words."""
    # Sparse vectors are always indexed, and counted as the others are.
    num_sparse = num_rows if info.config.params.sparse_vectors else 0
    num_indexed = max(0, (info.indexed_vectors_count or 0) - num_sparse)
    if info.config.hnsw_config.m == 0:
        return "none yet, exact scan: the load was not finished"
    state = "" if info.status.value == "green" else f", {info.status.value}"
    if not num_indexed and not state:
        threshold = info.config.optimizer_config.indexing_threshold
        return (
            "none needed, exact scan: the server builds one when a segment has more than "
            f"{threshold:,} kB of vectors"
            if threshold
            else "none, exact scan: the server's indexing_threshold is 0"
        )
    return f"hnsw, {num_indexed} of {num_rows} points{state}"
