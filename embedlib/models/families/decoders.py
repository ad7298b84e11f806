"""Families derived from Llama: decoders. Some models' files make them attend in both directions.

Source: defaults, traits and tensor names are those of the classes in transformers 5.5,
`models/<family>/{configuration,modeling}_<family>.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from embedlib.models.families.row import Alternation, Family, HeadLayer, Key, SequenceHead
from embedlib.models.families.tensor_names import DECODER_TENSORS, GEMMA_TENSORS

DECODER_PREFIXES: Final = ("", "model.", "0.auto_model.", "auto_model.")
DECODER_IGNORED: Final = ("lm_head.weight", "score.weight", "*rotary_emb.inv_freq")
DECODER_HEAD: Final = SequenceHead(
    pooling="last_token",
    skipped_token=Key("pad_token_id"),
    layers=(HeadLayer(tensors="score", has_bias=False),),
)

ROPE_THETA: Final = Key("rope_theta", 10_000.0)

LLAMA: Final = Family(
    model_type="llama",
    norm="rms_norm",
    norm_eps=Key("rms_norm_eps", 1e-6),
    norm_placement="pre",
    is_gated=True,
    activation=Key("hidden_act", "silu"),
    positions="rotary",
    rope_theta=ROPE_THETA,
    num_kv_heads=Key("num_key_value_heads"),
    head_dim=Key("head_dim"),
    is_causal=Key("is_causal", True),
    has_qkv_bias=Key("attention_bias", False),
    has_output_bias=Key("attention_bias", False),
    has_mlp_bias=Key("mlp_bias", False),
    fixed={"layer_types": (None,), "sliding_window": (None,), "use_sliding_window": (False, None)},
    prefixes=DECODER_PREFIXES,
    tensors=DECODER_TENSORS,
    ignored_tensors=DECODER_IGNORED,
    sequence_head=DECODER_HEAD,
    lm_head="lm_head.weight",
)

MISTRAL: Final = replace(
    LLAMA,
    model_type="mistral",
    tokenizer_class="TokenizersBackend",
    num_kv_heads=Key("num_key_value_heads", 8),
    windows="all_layers",
    window=Key("sliding_window", 4096),
    has_qkv_bias=False,
    has_output_bias=False,
    has_mlp_bias=False,
    # The class ignores layer_types, and its linear layers have no bias.
    fixed={"layer_types": (None,), "attention_bias": (False, None), "mlp_bias": (False, None)},
)

QWEN2: Final = replace(
    LLAMA,
    model_type="qwen2",
    tokenizer_class="Qwen2Tokenizer",
    num_kv_heads=Key("num_key_value_heads", 32),
    windows="by_layer_type",
    window=Key("sliding_window", 4096),
    has_qkv_bias=True,
    has_output_bias=False,
    has_mlp_bias=False,
    # The class always has the biases of q, k and v, and never another one.
    fixed={"attention_bias": (True, None), "qkv_bias": (True, None), "mlp_bias": (False, None)},
)

QWEN3: Final = replace(
    LLAMA,
    model_type="qwen3",
    tokenizer_class="Qwen2Tokenizer",
    num_kv_heads=Key("num_key_value_heads", 32),
    head_dim=Key("head_dim", 128),
    windows="by_layer_type",
    window=Key("sliding_window", 4096),
    has_qk_norm=True,
    has_mlp_bias=False,
    fixed={"mlp_bias": (False, None)},
)

MINISTRAL3: Final = replace(
    MISTRAL,
    model_type="ministral3",
    norm_eps=Key("rms_norm_eps", 1e-5),
    head_dim=Key("head_dim", 128),
    # The class scales queries with the numbers of this kind, so files always have it.
    rope_kinds=("yarn",),
    ends_at_original_length=True,
    window=Key("sliding_window"),
    sequence_head=replace(DECODER_HEAD, skipped_token=Key("pad_token_id", 11)),
)

# Source: huggingface.co/nvidia/llama-nemotron-embed-1b-v2, llama_bidirectional_model.py: a Llama
# whose attention goes both ways; its configuration adds only what its own pooling reads.
LLAMA_BIDIREC: Final = replace(
    LLAMA,
    model_type="llama_bidirec",
    is_causal=None,
    fixed={**LLAMA.fixed, "is_causal": (False, None), "pooling": ("avg", None)},
    own_code={
        "AutoModel": ("llama_bidirectional_model.LlamaBidirectionalModel",),
        "AutoModelForSequenceClassification": (
            "llama_bidirectional_model.LlamaBidirectionalForSequenceClassification",
        ),
    },
    sequence_head=SequenceHead(
        pooling="mean", layers=(HeadLayer(tensors="score", has_bias=False),)
    ),
    lm_head=None,
)

EUROBERT: Final = replace(
    LLAMA,
    model_type="eurobert",
    tokenizer_class=None,
    norm_eps=Key("rms_norm_eps", 1e-5),
    is_causal=None,
    fixed={**LLAMA.fixed, "is_causal": (False, None)},
    own_code={
        "AutoModel": ("modeling_eurobert.EuroBertModel",),
        "AutoModelForSequenceClassification": (
            "modeling_eurobert.EuroBertForSequenceClassification",
        ),
    },
    harmless=frozenset({"clf_pooling"}),
    ignored_tensors=(*DECODER_IGNORED, "dense.*", "classifier.*"),
    sequence_head=SequenceHead(
        # "late", which the class takes by default, has no pooled vector: it averages the scores.
        pooling=Key("classifier_pooling", "late"),
        layers=(
            HeadLayer(tensors="dense", activation="gelu"),
            HeadLayer(tensors="classifier"),
        ),
    ),
    lm_head=None,
)

ULTRABERT: Final = replace(
    EUROBERT,
    model_type="ultrabert",
    norm_eps=Key("rms_norm_eps", 1e-6),
    windows="alternating",
    window=Key("sliding_window", 128),
    alternation=Alternation(every=3, full="last", halves=False),
    rope_theta=Key("rope_theta", 2_560_000.0),
    window_rope_theta=Key("rope_theta", 10_000.0),
    rope_kinds=("default",),
    # Older files have lists of these two, one number per layer.
    fixed={"is_causal": (False, None), "attention_windows": (None,), "rope_theta": (None,)},
    own_code={},
    harmless=frozenset({"prediction_head_size"}),
    sequence_head=None,
)

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
    is_causal=None,
    is_bidirectional=Key("use_bidirectional_attention"),
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
