"""The request that creates a server's collection."""

from __future__ import annotations

from typing import Any

from embedlib_qdrant.collection import MARK_KEY
from embedlib_qdrant.points import DISTANCES, SPARSE_NAME, Mark


def creation_arguments(models: Any, mark: Mark) -> dict[str, Any]:
    """Return the arguments of `create_collection` for a collection without a graph.

    Args:
        models: the module `qdrant_client.models`.
        mark: what the collection is for, stored in its metadata.
    """
    options = mark.options
    vectors = models.VectorParams(
        size=mark.dim,
        distance=models.Distance(DISTANCES[mark.similarity]),
        on_disk=options.on_disk,
        multivector_config=multivector_config(models, mark),
    )
    return {
        "sparse_vectors_config": sparse_config(models, mark),
        "vectors_config": {options.vector: vectors} if options.vector else vectors,
        "hnsw_config": models.HnswConfigDiff(
            m=0, ef_construct=options.ef_construct, on_disk=options.on_disk
        ),
        "quantization_config": _quantization(models, options.quantization),
        "shard_number": options.shards,
        "replication_factor": options.replicas,
        "write_consistency_factor": options.write_consistency,
        "metadata": {MARK_KEY: mark.to_json()},
    }


def multivector_config(models: Any, mark: Mark) -> Any:
    """Return how points with a vector per token are compared; None: they have one."""
    if mark.multi_vector is None:
        return None
    return models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)


def sparse_config(models: Any, mark: Mark) -> Any:
    """Return the parameters of the sparse vector; None: there is none.

    Its index is exact, and the server builds it while rows arrive.
    """
    if mark.sparse is None:
        return None
    index = models.SparseIndexParams(on_disk=mark.options.on_disk)
    return {SPARSE_NAME: models.SparseVectorParams(index=index)}


def _quantization(models: Any, name: str) -> Any:
    # always_ram: a search reads these small copies first.
    if name == "scalar":
        return models.ScalarQuantization(
            scalar=models.ScalarQuantizationConfig(
                type=models.ScalarType.INT8, quantile=0.99, always_ram=True
            )
        )
    if name == "binary":
        return models.BinaryQuantization(binary=models.BinaryQuantizationConfig(always_ram=True))
    return None
