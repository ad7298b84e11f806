"""Options of other libraries that users bring along: what they write here instead."""

from __future__ import annotations

import logging
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
        "embedding_dtype": "pass precision= to encode",
        "gpu_memory_utilization": "pass gpu_memory_fraction=",
        "keep_in_fp32_modules": "pass precision='float32'",
        "max_model_len": "pass max_seq_tokens=",
        "max_num_batched_tokens": "pass max_batch_tokens=",
        "max_num_seqs": "batches are made by token budget; leave it out, or pass max_batch_tokens=",
        "model_kwargs": "pass precision= for a dtype, else leave it out; there is no torch",
        "modules": "give a model folder or a hub name",
        "normalize_embeddings": "pass it to encode",
        "num_labels": "the model's files say how many there are; leave it out",
        "parallel": "pass threads=, or several devices",
        "processor_kwargs": "pass max_seq_tokens= for model_max_length, else leave it out",
        "providers": "pass device=",
        "query_instruction_for_retrieval": "pass prompts={'query': ...}",
        "runner": "the model's files say what it makes; leave it out",
        "tensor_parallel_size": "a model lies on one GPU; pass device= with several for a copy on "
        "each",
        "tokenizer_kwargs": "pass max_seq_tokens= for model_max_length, else leave it out",
        "torch_dtype": "pass precision=",
        "use_auth_token": "pass token=",
        "use_fp16": "pass precision=",
    }
)
"""Options of CrossEncoder, SentenceTransformer, FlagEmbedding, fastembed, vLLM and Infinity, and
what to do instead."""


def asks_nothing(name: str, value: object) -> bool:
    """Whether an option of another library has no effect there either."""
    if name == "backend" and isinstance(value, str) and value == "torch":
        logging.getLogger(__name__).warning(
            "backend='torch' is ignored: embedlib has engines of its own; leave it out, or pass "
            "engine="
        )
        return True
    is_empty = value is None or (isinstance(value, Mapping) and not value)
    return name in FOREIGN_OPTIONS and is_empty
