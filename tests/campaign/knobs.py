"""What random model folders share: values of config.json, the texts, and how close is equal."""

from __future__ import annotations

from typing import Any, Final

TOLERANCE: Final = 1e-4
"""Of the row's largest number: float32 in another order of adding."""
TEXTS: Final = (
    "hello world",
    "The quick brown fox jumps over the lazy dog.",
    "a",
    "ünïcödé 漢字 🙂 text",
    "words " * 40,
    "two\nlines\tand a tab",
    "[SEP] of <s> special </s> tokens",
)
KNOBS: Final[dict[str, tuple[Any, ...]]] = {
    "num_hidden_layers": (1, 2, 3),
    "intermediate_size": (16, 48, 64),
    "max_position_embeddings": (24, 48, 64, 100),
    "type_vocab_size": (1, 2, 3),
    "hidden_act": ("gelu", "relu", "silu", "gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_eps": (1e-12, 1e-5, 1e-3),
    "rms_norm_eps": (1e-6, 1e-5),
    "rope_theta": (100.0, 10000.0, 1e6),
    "sliding_window": (1, 2, 5, 4096, None),
    "local_attention": (2, 8, 128),
    "attention_bias": (False, True),
    "head_dim": (8, 12, 16),
    "attn_logit_softcapping": (None, 0.5, 50.0),
    "query_pre_attn_scalar": (4, 7, 256),
    "relative_attention_num_buckets": (8, 32),
    "relative_attention_max_distance": (10, 128),
    "feed_forward_proj": ("relu", "gated-gelu", "gelu"),
    "d_ff": (16, 64),
    "n_inner": (16, 48),
    "num_experts": (4, 6, 9),
    "moe_top_k": (1, 2, 3),
    "hidden_size_per_layer_input": (8, 12, 20),
    "num_attention_heads": (2, 3, 4, 6),
    "is_causal": (False, True),
    "attention_dropout": (0.0, 0.5),
    "use_cache": (False, True),
}
