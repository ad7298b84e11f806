"""Reads a folder of Stanford's ColBERT.

`artifact.metadata` lies beside config.json, and the projection is among the transformer's weights.
Source: colbert/infra/config/settings.py of Stanford's ColBERT.
"""

from __future__ import annotations

from typing import Final

from embedlib.models.reading.json_files import JsonObject
from embedlib.models.reading.late_fields import (
    PUNCTUATION,
    QUERY_TOKENS,
    LateFiles,
    checked,
    expansion_token,
    length_limit,
)
from embedlib.models.reading.parts import Parts
from embedlib.models.spec import Dense, LateInteraction, Normalize, QueryExpansion

STANFORD_CLASS: Final = "HF_ColBERT"
STANFORD_NAME: Final = "artifact.metadata"
STANFORD_TENSOR: Final = "linear"
"""The stem of the projection's tensor in model.safetensors."""
STANFORD_DIM: Final = 128

STANFORD_KEYS: Final = frozenset(
    {
        "query_token_id", "doc_token_id", "query_maxlen", "doc_maxlen", "mask_punctuation",
        "attend_to_mask_tokens", "dim", "similarity", "interaction", "relu",
        # Of training, indexing and searching.
        "query_token", "doc_token", "overwrite", "root", "experiment", "index_root", "name", "rank",
        "nranks", "amp", "gpus", "avoid_fork_if_possible", "checkpoint", "triples", "collection",
        "queries", "index_name", "bsize", "accumsteps", "lr", "maxsteps", "save_every", "resume",
        "warmup", "warmup_bert", "nway", "use_ib_negatives", "reranker", "distillation_alpha",
        "ignore_scores", "model_name", "index_path", "index_bsize", "nbits", "kmeans_niters",
        "ncells", "centroid_score_threshold", "ndocs", "load_index_with_mmap", "meta", "version",
        "num_partitions_max", "pool_factor", "clustering_mode", "protected_tokens",
    }
)  # fmt: skip


def is_stanford(config: JsonObject) -> bool:
    """Return whether config.json, without a modules.json beside it, is that of Stanford's class."""
    return config.values.get("architectures") == [STANFORD_CLASS]


def read_stanford(parts: Parts) -> LateFiles:
    """Read a folder of Stanford's ColBERT, whose prompts start with a marker.

    Raises:
        ModelUnsupportedError: a key is unknown, or its value is not implemented.
    """
    folder, encoder = parts.folder, parts.encoder
    metadata = JsonObject.load(folder / STANFORD_NAME, folder)  # may be empty
    metadata.check_keys(STANFORD_KEYS)
    metadata.check_fixed("similarity", ("cosine", None))
    metadata.check_fixed("interaction", ("colbert", None))
    metadata.check_fixed("relu", (False, None))
    metadata.check_fixed("pool_factor", (1, None))  # more: an index averages tokens that are alike
    prompts = {
        "query": (metadata.text("query_token_id") or "[unused0]") + " ",
        "document": (metadata.text("doc_token_id") or "[unused1]") + " ",
    }
    query = metadata.optional_integer("query_maxlen", None, minimum=1) or QUERY_TOKENS
    late = LateInteraction(
        query_tokens=query,
        document_tokens=length_limit(parts, metadata, "doc_maxlen"),
        expansion=QueryExpansion(
            min_tokens=query,
            token=expansion_token(parts, metadata),
            is_attended=metadata.boolean("attend_to_mask_tokens", False),
        ),
        # A key that is null is set, and to nothing: only one that is missing has the default.
        skipped_words=PUNCTUATION
        if metadata.boolean("mask_punctuation", "mask_punctuation" not in metadata.values)
        else (),
        markers=tuple(prompts.values()),
    )
    projection = Dense(
        in_features=encoder.hidden_size,
        out_features=metadata.integer("dim", STANFORD_DIM),
        has_bias=False,
        activation="identity",
    )
    return LateFiles(
        late=checked(late, encoder, parts.config),
        prompts=prompts,
        modules=(projection, Normalize()),
        module_dirs=(folder, folder),
        tensors={0: STANFORD_TENSOR},
    )
