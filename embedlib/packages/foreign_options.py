"""Classes and options of other libraries that users bring along: what they write here instead."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

FOREIGN_CLASSES: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            *("SentenceTransformer", "SparseEncoder", "MultiVectorEncoder", "TextEmbedding"),
            *("SparseTextEmbedding", "LateInteractionTextEmbedding", "StaticModel", "ColBERT"),
            *("FlagModel", "FlagAutoModel", "FlagLLMModel", "BGEM3FlagModel"),
        ),
        "use Embedder",
    ),
    **dict.fromkeys(
        ("CrossEncoder", "TextCrossEncoder", "FlagReranker", "FlagLLMReranker"), "use Reranker"
    ),
    **dict.fromkeys(
        ("LLM", "AsyncEmbeddingEngine", "AsyncEngineArray", "SyncEngineArray", "EngineArgs"),
        "use Embedder, Reranker or Classifier, with the model as the first argument",
    ),
    "pipeline": "use Classifier, or Embedder",
    **dict.fromkeys(
        ("InputExample", "losses"),
        "models are not trained here: train with sentence-transformers and load its folder",
    ),
    "SimilarityFunction": "pass the name, similarity_fn_name='cosine'",
    "util": "use sentence_transformers.util, whose functions take an Embedder and its vectors, "
    "or embedder.similarity",
}
"""Names that programs import from the same libraries as the options, and from sentence-transformers
itself: what to import instead."""

_IN_FILES = "the model's files say it; leave it out"
_LENGTH = "pass max_seq_tokens="
_FIRST = "pass the model as the first argument"

FOREIGN_OPTIONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("model", "model_name", "model_id", "specific_model_path"), _FIRST),
    **dict.fromkeys(("config_kwargs", "config_args", "classifier_dropout"), _IN_FILES),
    **dict.fromkeys(("pooling", "pooling_mode", "pooling_method"), _IN_FILES),
    **dict.fromkeys(("pooler_config", "override_pooler_config", "query_length"), _IN_FILES),
    **dict.fromkeys(("tokenizer_mode", "tokenizer_revision", "load_format"), _IN_FILES),
    **dict.fromkeys(("runner", "convert", "hf_overrides", "tokenizer"), _IN_FILES),
    **dict.fromkeys(("max_length", "max_seq_length", "max_model_len"), _LENGTH),
    **dict.fromkeys(("query_max_length", "passage_max_length", "document_length"), _LENGTH),
    **dict.fromkeys(
        ("processor_kwargs", "tokenizer_kwargs", "tokenizer_args"),
        "pass max_seq_tokens= for model_max_length, else leave it out",
    ),
    **dict.fromkeys(
        ("model_kwargs", "automodel_args"),
        "pass precision= for a dtype, else leave it out; there is no torch",
    ),
    **dict.fromkeys(
        ("dtype", "torch_dtype", "use_fp16", "use_bf16", "quantization", "quantize"),
        "pass precision=, such as 'bf16' or 'float32', or leave it out",
    ),
    **dict.fromkeys(
        ("providers", "cuda", "devices", "device_id", "device_ids", "device_map"),
        "pass device=, such as 'cuda' or 'cuda:0,cuda:1'",
    ),
    **dict.fromkeys(
        ("normalize_embeddings", "normalize", "show_progress_bar", "top_k"),
        "pass it to the method that computes",
    ),
    **dict.fromkeys(
        ("batch_size", "embed_batch_size", "max_num_seqs"),
        "batches are made by token budget; leave it out, or pass max_batch_tokens=",
    ),
    **dict.fromkeys(
        ("compile", "bettertransformer", "enforce_eager", "attn_implementation"),
        "the engine sees to it; leave it out",
    ),
    **dict.fromkeys(
        ("dimensions", "dimensionality", "matryoshka_dim", "output_dim"), "pass truncate_dim="
    ),
    **dict.fromkeys(("model_warmup", "lazy_load"), "the constructor loads; leave it out"),
    **dict.fromkeys(
        (
            *("enable_prefix_caching", "enable_chunked_prefill", "disable_log_stats", "seed"),
            *("swap_space", "lengths_via_tokenize", "vector_disk_cache_path", "framework"),
            *("kv_cache_dtype", "served_model_name", "padding"),
        ),
        "leave it out",
    ),
    "activation_fn": "pass it to rank or predict",
    "backend": "leave it out: a CPU takes OpenVINO by itself; engine= names an engine",
    "cache_dir": "pass cache_folder=",
    "default_activation_function": "pass activation_fn= to rank or predict",
    "download_dir": "pass cache_folder=",
    "embedding_dtype": "pass precision= to encode",
    "encode_kwargs": "pass them to encode",
    "examples_for_task": "pass examples=",
    "function_to_apply": "pass raw_scores=True to predict for none, else leave it out",
    "gpu_memory_utilization": "pass gpu_memory_fraction=",
    "keep_in_fp32_modules": "pass precision='float32'",
    "max_num_batched_tokens": "pass max_batch_tokens=",
    "model_card_data": "there is no model card; leave it out",
    "modules": "give a model folder or a hub name",
    "num_labels": "the model's files say how many there are; leave it out",
    **dict.fromkeys(
        ("parallel", "num_workers", "max_workers"), "pass threads=, or several devices"
    ),
    **dict.fromkeys(
        ("query_instruction_for_retrieval", "query_instruction"), "pass prompts={'query': ...}"
    ),
    "text_instruction": "pass prompts={'document': ...}",
    "return_all_scores": "predict returns all scores unless top_k= says otherwise",
    "tensor_parallel_size": "a model lies on one GPU; pass device= with several for a copy on each",
    "task": "the model's files say what it makes; the task of texts is an option of encode",
    "truncation": "pass on_truncate=, or leave it out",
    "use_auth_token": "pass token=",
}
"""Options of sentence-transformers, FlagEmbedding, PyLate, fastembed, model2vec, vLLM, Infinity,
LlamaIndex and of transformers' pipelines, and what to do instead."""

FOREIGN_SEARCH_OPTIONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("k", "limit", "n_results", "max_num_results", "similarity_top_k"), "top_k"),
    **dict.fromkeys(("filter", "filters", "query_filter"), "where"),
    **dict.fromkeys(("score_threshold", "similarity_cutoff"), "min_score"),
    **dict.fromkeys(("candidates", "fetch_k"), "num_candidates"),
}
"""Options of searches of LangChain, LlamaIndex, Chroma, Qdrant's client and OpenAI's API, and of
the command, by what they are called in Python here."""


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
