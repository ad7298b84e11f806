"""Names that other libraries have, and what takes their place here. See docs/migrating.md."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

FOREIGN_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "activation_fn": "pass it to rank or predict",
        "backend": "pass engine=",
        "batch_size": "batches are made by token budget; leave it out, or pass max_batch_tokens=",
        "cache_dir": "pass cache_folder=",
        "config_kwargs": "the model's files say it; leave it out",
        "default_activation_function": "pass activation_fn= to rank or predict",
        "dtype": "pass precision=",
        "max_length": "pass max_seq_tokens=",
        "max_seq_length": "pass max_seq_tokens=",
        "model_card_data": "there is no model card; leave it out",
        "model_kwargs": "pass precision= for a dtype, else leave it out; there is no torch",
        "modules": "give a model folder or a hub name",
        "normalize_embeddings": "pass it to encode",
        "num_labels": "the model's files say how many there are; leave it out",
        "parallel": "pass threads=, or several devices",
        "processor_kwargs": "pass max_seq_tokens= for model_max_length, else leave it out",
        "providers": "pass device=",
        "query_instruction_for_retrieval": "pass prompts={'query': ...}",
        "tokenizer_kwargs": "pass max_seq_tokens= for model_max_length, else leave it out",
        "torch_dtype": "pass precision=",
        "use_auth_token": "pass token=",
        "use_fp16": "pass precision=",
    }
)
"""Of CrossEncoder, SentenceTransformer, FlagEmbedding and fastembed, and what takes their place."""

FOREIGN_NAMES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("tokenize", "preprocess"), "use tokenizer.encode_batch(texts)"),
        **dict.fromkeys(
            ("encode_multi_process", "start_multi_process_pool", "stop_multi_process_pool"),
            "encode uses all cores by itself; pass device= with several devices to the constructor",
        ),
        **dict.fromkeys(
            ("save", "save_pretrained", "save_to_hub", "push_to_hub"),
            "model folders are read and not written; copy the folder",
        ),
        **dict.fromkeys(("to", "cpu", "cuda"), "pass device= to the constructor"),
        **dict.fromkeys(("half", "float", "bfloat16"), "pass precision= to the constructor"),
        **dict.fromkeys(("train", "eval", "fit"), "models are not trained here; leave it out"),
        "device": "see config.device; what is returned is in the CPU's memory",
        "max_length": "use max_seq_length",
        "model_card_data": "there is no model card",
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
"""Of sentence-transformers, fastembed and FlagEmbedding, and what takes their place."""
