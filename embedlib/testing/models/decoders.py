"""Tiny models of families that are causal unless config.json says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from embedlib.testing.models.variant import (
    LAST,
    MEAN,
    NORMALIZE,
    SIZES,
    Json,
    TinyVariant,
    projection,
)

DECODER: Final[Json] = SIZES | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
QWEN3: Final[Json] = DECODER | {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "head_dim": 12,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "attention_bias": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": 2,
}
MINISTRAL3: Final[Json] = DECODER | {
    "model_type": "ministral3",
    "architectures": ["Ministral3Model"],
    "head_dim": 8,
    "max_position_embeddings": 256,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 48,
        "max_position_embeddings": 256,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}
del MINISTRAL3["rope_theta"]
GEMMA: Final[Json] = DECODER | {
    "model_type": "gemma",
    "architectures": ["GemmaModel"],
    "head_dim": 10,
    # The class reads it as gelu_pytorch_tanh.
    "hidden_act": "gelu",
    "rms_norm_eps": 1e-6,
}
EUROBERT: Final[Json] = DECODER | {
    "model_type": "eurobert",
    "architectures": ["EuroBertModel"],
    "rope_theta": 300.0,
    "tie_word_embeddings": False,
    "pad_token_id": 1,
    "mask_token_id": 1,
    "pretraining_tp": 1,
    "classifier_pooling": "late",
}
ULTRABERT: Final[Json] = {
    "model_type": "ultrabert",
    "architectures": ["UltrabertModel"],
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "sliding_window": 4,
    "prediction_head_size": 16,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 40.0},
        "full_attention": {"rope_type": "default", "rope_theta": 900.0},
    },
}
GEMMA2: Final[Json] = SIZES | {
    "architectures": ["Gemma2Model"],
    "model_type": "gemma2",
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 64,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "query_pre_attn_scalar": 7,
    "sliding_window": 5,
    # Smaller than the scores, so that the cap has an effect.
    "attn_logit_softcapping": 0.7,
    "final_logit_softcapping": 30.0,
    "cache_implementation": "hybrid",
}
GEMMA3: Final[Json] = SIZES | {
    "architectures": ["Gemma3TextModel"],
    "model_type": "gemma3_text",
    "num_hidden_layers": 3,
    "num_key_value_heads": 1,
    "head_dim": 12,
    "max_position_embeddings": 64,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 20,
    "sliding_window": 9,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}


def _llama(scaling: Json) -> TinyVariant:
    """Return a Llama with one kind of scaled rotary embedding, in the older format."""
    config = DECODER | {"rope_scaling": scaling}
    return TinyVariant(tokenizer="begin", config=config, modules=(LAST,), prefix="model.")


DECODERS: Final[Mapping[str, TinyVariant]] = {
    "mistral": TinyVariant(
        tokenizer="mistral",
        config=DECODER
        | {
            "model_type": "mistral",
            "architectures": ["MistralModel"],
            "sliding_window": 6,
        },
        modules=(LAST, NORMALIZE),
        tokenizer_config={"tokenizer_class": "LlamaTokenizer", "model_max_length": 10**30},
        settings={"max_seq_length": 56, "do_lower_case": False},
        general={"prompts": {"search": "Instruct: search\nQuery: "}},
        dtype="BF16",
        num_shards=3,
    ),
    "mistral-bidirectional": TinyVariant(
        tokenizer="mistral",
        config=DECODER | {"model_type": "mistral", "sliding_window": 5, "is_causal": False},
        modules=(MEAN,),
        tokenizer_config={"tokenizer_class": "LlamaTokenizer"},
    ),
    "llama": TinyVariant(
        tokenizer="begin",
        config={key: value for key, value in DECODER.items() if key != "rope_theta"}
        | {
            "attention_bias": True,
            "mlp_bias": True,
            "head_dim": 8,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
        modules=(LAST,),
        prefix="model.",
    ),
    "llama-bare": TinyVariant(tokenizer="begin", config=DECODER, prefix="model."),
    "llama-linear": _llama({"type": "linear", "factor": 4.0}),
    "llama-dynamic": _llama({"rope_type": "dynamic", "factor": 2.0}),
    "llama-llama3": _llama(
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    ),
    "llama-yarn": _llama(
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    ),
    "qwen2": TinyVariant(
        tokenizer="end",
        config=DECODER
        | {
            "model_type": "qwen2",
            "architectures": ["Qwen2Model"],
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "sliding_window": 4,
            "max_window_layers": 1,
        },
        modules=(LAST,),
        dtype="F16",
    ),
    "qwen3": TinyVariant(
        tokenizer="end",
        config=QWEN3,
        modules=(LAST, NORMALIZE),
        settings={"max_seq_length": 50, "do_lower_case": False},
        general={
            "prompts": {"query": "Instruct: search\nQuery:", "document": ""},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    ),
    "qwen3-bidirectional": TinyVariant(
        tokenizer="end", config=QWEN3 | {"is_causal": False}, modules=(MEAN,), prefix="model."
    ),
    "llama-bidirectional": TinyVariant(
        tokenizer="begin", config=DECODER | {"is_causal": False}, prefix="model."
    ),
    "qwen2-bidirectional": TinyVariant(
        tokenizer="end",
        config=DECODER
        | {
            "model_type": "qwen2",
            "architectures": ["Qwen2Model"],
            "is_causal": False,
            "use_sliding_window": True,
            "sliding_window": 3,
            "layer_types": ["full_attention", "sliding_attention"],
        },
        modules=(MEAN, NORMALIZE),
    ),
    "gemma2": TinyVariant(
        tokenizer="gemma",
        config=GEMMA2,
        modules=(LAST, NORMALIZE),
        tokenizer_config={"tokenizer_class": "GemmaTokenizer", "model_max_length": 10**30},
        settings={"max_seq_length": 50, "do_lower_case": False},
        general={"prompts": {"web": "<instruct>search\n<query>"}},
        dtype="BF16",
        num_shards=2,
    ),
    "gemma2-bidirectional": TinyVariant(
        tokenizer="gemma",
        config=GEMMA2 | {"is_causal": False, "attn_logit_softcapping": None},
        modules=(MEAN,),
        tokenizer_config={"tokenizer_class": "GemmaTokenizer"},
        prefix="model.",
    ),
    # Like EmbeddingGemma: bidirectional, with a window on either side.
    "gemma3_text": TinyVariant(
        tokenizer="gemma",
        config=GEMMA3
        | {
            "use_bidirectional_attention": True,
            "layer_types": ["sliding_attention"] * 2 + ["full_attention"],
            "_sliding_window_pattern": 6,
            "rope_theta": 2000.0,
            "rope_local_base_freq": 30.0,
        },
        modules=(
            MEAN,
            projection("2_Dense", 32, 56),
            projection("3_Dense", 56, 32),
            replace(NORMALIZE, path="4_Normalize"),
        ),
        tokenizer_config={"tokenizer_class": "GemmaTokenizer", "model_max_length": 2048},
        settings={"max_seq_length": 60, "do_lower_case": False},
        general={
            "prompts": {
                "query": "task: search result | query: ",
                "document": "title: none | text: ",
            },
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    ),
    "gemma3_text-causal": TinyVariant(
        tokenizer="gemma",
        config=GEMMA3
        | {
            "architectures": ["Gemma3ForCausalLM"],
            "attention_bias": True,
            "sliding_window_pattern": 2,
            "rope_theta": 3000.0,
            "rope_local_base_freq": 50.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        tokenizer_config={"tokenizer_class": "GemmaTokenizer"},
        prefix="model.",
    ),
    # Like Nemotron-3-Embed: both ways, and texts end at the original length.
    "ministral3": TinyVariant(
        tokenizer="begin",
        config=MINISTRAL3 | {"is_causal": False},
        modules=(MEAN, NORMALIZE),
        settings={"max_seq_length": 48},
    ),
    "llama_bidirec": TinyVariant(
        tokenizer="begin",
        config=DECODER
        | {
            "model_type": "llama_bidirec",
            "architectures": ["LlamaBidirectionalModel"],
            "auto_map": {"AutoModel": "llama_bidirectional_model.LlamaBidirectionalModel"},
            "pooling": "avg",
            "temperature": 1.0,
        },
        modules=(MEAN, NORMALIZE),
        # What transformers has in place of the model's own class.
        reference_config=DECODER | {"is_causal": False},
    ),
    "eurobert": TinyVariant(tokenizer="begin", config=EUROBERT, modules=(MEAN,), prefix="model."),
    "ultrabert": TinyVariant(tokenizer="begin", config=ULTRABERT, modules=(MEAN,)),
    "gemma": TinyVariant(
        tokenizer="gemma",
        config=GEMMA,
        modules=(LAST, NORMALIZE),
        tokenizer_config={"tokenizer_class": "GemmaTokenizer"},
    ),
}
