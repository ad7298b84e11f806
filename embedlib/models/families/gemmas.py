"""The Gemma families, of which some are encoders: scaled embeddings, and norms less one.

Source: defaults, traits and tensor names are those of the classes in transformers 5.5,
`models/<family>/{configuration,modeling}_<family>.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from embedlib.models.families.decoders import (
    DECODER_HEAD,
    DECODER_IGNORED,
    DECODER_PREFIXES,
    LLAMA,
    ROPE_THETA,
)
from embedlib.models.families.row import Alternation, Family, Key, Projection
from embedlib.models.families.tensor_names import EMBEDDING_GEMMA2_TENSORS, GEMMA_TENSORS

GEMMA3_TEXT: Final = Family(
    model_type="gemma3_text",
    norm="rms_norm",
    norm_eps=Key("rms_norm_eps", 1e-6),
    norm_placement="sandwich",
    scales_embeddings=True,
    is_gated=True,
    activation=Key("hidden_activation", "gelu_pytorch_tanh"),
    positions="rotary",
    rope_theta=Key("rope_theta", 1_000_000.0),
    window_rope_theta=Key("rope_local_base_freq", 10_000.0),
    num_kv_heads=Key("num_key_value_heads", 4),
    head_dim=Key("head_dim", 256),
    is_bidirectional=Key("use_bidirectional_attention", False),
    windows="alternating",
    window=Key("sliding_window", 4096),
    alternation=Alternation(every=Key("sliding_window_pattern", 6), full="last", halves=True),
    query_scalar=Key("query_pre_attn_scalar", 256),
    has_qk_norm=True,
    has_qkv_bias=Key("attention_bias", False),
    has_output_bias=Key("attention_bias", False),
    has_mlp_bias=False,
    fixed={
        # The masks honor it too, but with a window twice as wide; no known model has both.
        "is_causal": (True, None),
        "attn_logit_softcapping": (None,),
        "mlp_bias": (False, None),
        # The class writes this key, but reads it without the leading underscore.
        "_sliding_window_pattern": (6, None),
    },
    harmless=frozenset({"final_logit_softcapping"}),
    tokenizer_class="GemmaTokenizer",
    prefixes=DECODER_PREFIXES,
    tensors=GEMMA_TENSORS,
    stores_norms_less_one=True,
    ignored_tensors=DECODER_IGNORED,
    sequence_head=replace(DECODER_HEAD, skipped_token=Key("pad_token_id", 0)),
)

GEMMA2: Final = replace(
    GEMMA3_TEXT,
    model_type="gemma2",
    rope_theta=ROPE_THETA,
    window_rope_theta=None,
    is_causal=Key("is_causal", True),
    is_bidirectional=None,
    alternation=Alternation(every=2, full="last", halves=False),
    attention_cap=Key("attn_logit_softcapping", 50.0),
    has_qk_norm=False,
    # The class reads hidden_activation and sliding_window; files also have their old names.
    fixed={
        "hidden_act": ("gelu_pytorch_tanh", None),
        "sliding_window_size": (4096, None),
        "mlp_bias": (False, None),
    },
)

GEMMA: Final = replace(
    LLAMA,
    model_type="gemma",
    tokenizer_class="GemmaTokenizer",
    scales_embeddings=True,
    stores_norms_less_one=True,
    activation=Key("hidden_act", "gelu_pytorch_tanh"),
    gelu_is_tanh=True,
    num_kv_heads=Key("num_key_value_heads", 16),
    head_dim=Key("head_dim", 256),
    # With use_bidirectional_attention the class attends both ways, but in a batch with padding it
    # masks what comes later: a vector would depend on the texts beside it.
    is_causal=True,
    has_mlp_bias=False,
    fixed={
        **LLAMA.fixed,
        "is_causal": (True, None),
        "mlp_bias": (False, None),
        # The class reads hidden_act; files have both.
        "hidden_activation": ("gelu_pytorch_tanh", None),
    },
    sequence_head=replace(DECODER_HEAD, skipped_token=Key("pad_token_id", 0)),
    ties_embeddings=True,
)

# The half of EmbeddingGemma 2 that computes texts; see NESTED in table.py.
# Source: transformers 5.23, models/embedding_gemma2.
EMBEDDING_GEMMA2: Final = replace(
    GEMMA3_TEXT,
    model_type="embedding_gemma2_text",
    rope_kinds=("default",),
    num_kv_heads=Key("num_key_value_heads", 2),
    is_bidirectional=None,
    window=Key("sliding_window", 512),
    alternation=Alternation(every=6, full="last", halves=False),
    wide_heads=Key("per_layer_config"),
    layer_input_size=Key("hidden_size_per_layer_input", 512),
    # Scores are not divided.
    query_scalar=1.0,
    has_v_norm=True,
    has_qkv_bias=False,
    has_output_bias=False,
    # What the class makes of files without them is not read here.
    implied={"model_type": ("layer_types", "per_layer_config")},
    fixed={
        "attention_bias": (False, None),
        "is_causal": (False, None),
        "rope_theta": (None,),
        "rope_local_base_freq": (None,),
        "rope_scaling": (None,),
    },
    harmless=frozenset(),
    prefixes=("", "language_model.", "model.language_model.", "model.", "0.auto_model."),
    tensors=EMBEDDING_GEMMA2_TENSORS,
    stores_norms_less_one=False,
    ignored_tensors=(
        "*embedding_projection.weight", "*rotary_emb.*", "*vision_tower.*", "*embed_vision.*",
        "*audio_tower.*", "*embed_audio.*",
    ),
    projection=Projection(tensor="embedding_projection", features=Key("embedding_dim", 768)),
    sequence_head=None,
)  # fmt: skip
