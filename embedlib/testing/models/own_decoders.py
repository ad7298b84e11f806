"""Tiny decoders whose folders name a class of their own, or that only newer transformers has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from embedlib.testing.models.decoders import DECODER, QWEN3
from embedlib.testing.models.variant import (
    LAST,
    MEAN,
    NORMALIZE,
    Json,
    TinyModule,
    TinyVariant,
    pooling,
)

GTE_QWEN2: Final[Json] = DECODER | {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "auto_map": {
        "AutoModel": "modeling_qwen.Qwen2Model",
        "AutoModelForCausalLM": "modeling_qwen.Qwen2ForCausalLM",
    },
    "is_causal": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": 2,
}
GRITLM: Final[Json] = DECODER | {
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "auto_map": {
        "AutoModel": "modeling_gritlm7b.MistralModel",
        "AutoModelForCausalLM": "modeling_gritlm7b.MistralForCausalLM",
    },
    # The class has no window where it attends both ways.
    "sliding_window": 4,
    "tie_word_embeddings": False,
}
VOYAGE: Final[Json] = QWEN3 | {
    "architectures": ["Qwen3ForCausalLM"],
    "auto_map": {"AutoModel": "modeling_qwen3_bidirectional.Qwen3BidirectionalModel"},
    "num_labels": 40,
    "use_bidirectional_attention": True,
}
PPLX: Final[Json] = QWEN3 | {
    "model_type": "bidirectional_pplx_qwen3",
    "architectures": ["PPLXQwen3Model"],
    "auto_map": {
        "AutoConfig": "configuration.PPLXQwen3Config",
        "AutoModel": "modeling.PPLXQwen3Model",
    },
    "use_bidirectional_attention": True,
}
BIDIRLM: Final[Json] = {
    key: value for key, value in QWEN3.items() if key not in ("use_sliding_window",)
} | {
    "model_type": "bidirlm",
    "architectures": ["BidirLMModel"],
    "auto_map": {
        "AutoConfig": "configuration_bidirlm.BidirLMConfig",
        "AutoModel": "modeling_bidirlm.BidirLMModel",
    },
    "clf_pooling": "late",
    "mask_token": "<|mask|>",
    "mask_token_id": 1,
}
EMBEDDING_GEMMA2: Final[Json] = {
    "model_type": "embedding_gemma2_text",
    "architectures": ["EmbeddingGemma2TextModel"],
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "sliding_window": 3,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "per_layer_config": {
        "1": {"head_dim": 12, "num_key_value_heads": 1},
        "3": {"head_dim": 12, "num_key_value_heads": 1},
    },
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
        "full_attention": {"rope_type": "default", "rope_theta": 2000.0},
    },
    "hidden_size_per_layer_input": 12,
    "embedding_dim": 40,
}
LFM2: Final[Json] = {
    "model_type": "lfm2",
    "architectures": ["Lfm2BidirectionalModel"],
    "auto_map": {"AutoModel": "modeling_lfm2_bidirectional.Lfm2BidirectionalModel"},
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_heads": 4,
    "num_key_value_heads": 2,
    "block_ff_dim": 68,
    "block_auto_adjust_ff_dim": True,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 3,
    "max_position_embeddings": 64,
    "norm_eps": 1e-5,
    "rope_theta": 1000.0,
    "conv_L_cache": 3,
    "conv_bias": True,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
    "tie_embedding": True,
}
QUANTIZER: Final = TinyModule(type="st_quantize.FlexibleQuantizer", path="")

OWN_DECODERS: Final[Mapping[str, TinyVariant]] = {
    # Like gte-Qwen2, whose own tokenizer adds the end.
    "qwen2-both-ways": TinyVariant(
        tokenizer="end",
        config=GTE_QWEN2,
        modules=(LAST, NORMALIZE),
        tokenizer_config={"add_eos_token": True},
        reference_config={key: GTE_QWEN2[key] for key in GTE_QWEN2 if key != "auto_map"},
    ),
    # Like GritLM: no modules.json, and a chat template for its other half.
    "mistral-gritlm": TinyVariant(
        tokenizer="mistral",
        config=GRITLM,
        tokenizer_config={"tokenizer_class": "LlamaTokenizer", "chat_template": "{{ 1 }}"},
        general={
            "prompts": {
                "query": "<|user|>\nGiven a question, find its answer\n<|embed|>\n",
                "document": "<|embed|>\n",
            }
        },
        reference_config=DECODER | {"model_type": "mistral", "is_causal": False},
        has_own_reference=True,
    ),
    # Like voyage-4-nano: a matrix behind the transformer.
    "qwen3-voyage": TinyVariant(
        tokenizer="end",
        config=VOYAGE,
        modules=(pooling("mean_tokens", dim=40), NORMALIZE),
        prefix="model.",
        reference_config=QWEN3 | {"is_causal": False},
        has_own_reference=True,
    ),
    # Like pplx-embed-v1: whole numbers.
    "pplx": TinyVariant(
        tokenizer="end",
        config=PPLX,
        modules=(MEAN, QUANTIZER),
        reference_config=QWEN3 | {"is_causal": False},
        has_own_reference=True,
    ),
    # Like BidirLM-0.6B.
    "bidirlm": TinyVariant(
        tokenizer="end",
        config=BIDIRLM,
        modules=(MEAN,),
        reference_config=QWEN3 | {"is_causal": False},
    ),
    # The half of EmbeddingGemma 2 that computes texts.
    "embedding_gemma2_text": TinyVariant(
        tokenizer="gemma",
        config=EMBEDDING_GEMMA2,
        modules=(pooling("mean_tokens", dim=40), replace(NORMALIZE, path="2_Normalize")),
        tokenizer_config={"tokenizer_class": "GemmaTokenizer", "model_max_length": 64},
        general={"prompts": {"query": "task: search result | query: "}},
    ),
    # Like LFM2.5-Embedding.
    "lfm2": TinyVariant(
        tokenizer="begin",
        config=LFM2,
        modules=(pooling("cls_token"),),
        general={"prompts": {"query": "query: ", "document": "document: "}},
        reference_config={
            key: value for key, value in LFM2.items() if key not in ("auto_map", "num_heads")
        }
        | {"is_causal": False},
        has_own_reference=True,
    ),
}
