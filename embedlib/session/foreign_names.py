"""Attributes of other libraries, and what replaces each of them; see docs/migrating.md."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

FOREIGN_NAMES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("tokenize", "preprocess"), "use tokenizer.encode_batch(texts)"),
        **dict.fromkeys(
            ("encode_multi_process", "start_multi_process_pool", "stop_multi_process_pool"),
            "encode uses all cores already; pass device= with several devices to the constructor",
        ),
        **dict.fromkeys(
            ("save", "save_pretrained", "save_to_hub", "push_to_hub"),
            "model folders are read and not written; copy the folder",
        ),
        **dict.fromkeys(("to", "cpu", "cuda"), "pass device= to the constructor"),
        **dict.fromkeys(("half", "float", "bfloat16"), "pass precision= to the constructor"),
        **dict.fromkeys(("train", "fit"), "models are not trained here; leave it out"),
        "device": "see config.device; what is returned is in the CPU's memory",
        "max_length": "use max_seq_length",
        "embed_documents": "use encode_document, or EmbedlibEmbeddings of langchain_embedlib",
        "embed_query": "use encode_query, or EmbedlibEmbeddings of langchain_embedlib",
        "embed": "use encode, or encode_stream for an iterator",
        "query_embed": "use encode_query",
        "passage_embed": "use encode_document",
        "compute_score": "use predict, with raw_scores=True for the same numbers",
        "truncate_embeddings": "pass truncate_dim= to encode",
        **dict.fromkeys(
            ("activation_fn", "default_activation_function"),
            "pass activation_fn= to rank or predict",
        ),
    }
)
"""Of sentence-transformers, fastembed and FlagEmbedding: what to use instead."""
