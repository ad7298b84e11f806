"""The table of model families, keyed by the `model_type` of config.json.

A row says how the keys of config.json become an `Encoder`, which traits the family fixes, which
keys change nothing, and what its tensors are called. A new family is a new row; `config_file.py`
and `weights.py` read the rows and know no family by name.

Source: defaults, traits and tensor names are those of the classes in transformers 5.5,
`models/<family>/{configuration,modeling}_<family>.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal

from embedlib.models.spec import Activation


@dataclass(frozen=True)
class Key:
    """A trait that config.json decides."""

    name: str
    default: Any = None
    """What transformers takes where the key is missing."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One row of the table."""

    model_type: str
    # Traits: a constant, or the key that holds them.
    norm: Literal["layer_norm", "rms_norm"]
    norm_eps: Key
    norm_placement: Literal["pre", "post"]
    is_gated: bool
    activation: Key
    positions: Literal["learned", "learned_after_padding", "rotary"]
    """learned_after_padding: rows of the table start behind the row of the padding id."""
    num_token_types: Key | None = None
    num_kv_heads: Key | None = None
    """None: as many as query heads."""
    head_dim: Key | None = None
    """None, or a key that is null: hidden size / query heads."""
    is_causal: Key | None = None
    """None: every token sees every token."""
    windows: Literal["none", "all_layers", "by_layer_type"] = "none"
    has_qk_norm: bool = False
    has_qkv_bias: bool | Key = True
    has_output_bias: bool | Key = True
    has_mlp_bias: bool | Key = True
    fixed: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Keys that would change the vectors, with the only values implemented."""
    # Files
    tokenizer_class: str | None = None
    """The class transformers takes where tokenizer_config.json names none."""
    prefixes: tuple[str, ...]
    """What may stand before every tensor name, by the class or library that wrote the file."""
    tensors: Mapping[str, str]
    """Role to tensor name, `{i}` is the layer; a name without leaf stands for all its leaves."""
    ignored_tensors: tuple[str, ...]
    """Patterns of stored tensors that an embedding does not use."""


HARMLESS_KEYS: Final = frozenset(
    {
        # identity and bookkeeping
        "model_type", "architectures", "_name_or_path", "name_or_path", "_commit_hash",
        "transformers_version", "torch_dtype", "dtype", "auto_map", "tokenizer_class", "language",
        "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
        "pooler_size_per_head", "pooler_type", "output_past", "gradient_checkpointing",
        "attn_implementation", "_attn_implementation", "_attn_implementation_autoset",
        "_attn_implementation_internal", "_flash_attn_2_enabled", "use_flash_attn", "is_matryoshka",
        "matryoshka_dimensions", "sentence_transformers", "unsloth_version", "unsloth_fixed",
        # training
        "attention_probs_dropout_prob", "hidden_dropout_prob", "attention_dropout",
        "hidden_dropout", "embd_pdrop", "resid_pdrop", "initializer_range", "initializer_factor",
        "use_cache", "tie_word_embeddings", "tie_encoder_decoder", "pretraining_tp", "torchscript",
        "chunk_size_feed_forward", "output_attentions", "output_hidden_states", "return_dict",
        "use_return_dict", "use_bfloat16", "cross_attention_hidden_size", "is_composition",
        # special tokens: texts are tokenized by tokenizer.json, and padding is told by lengths
        "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id",
        "mask_token_id", "unk_token_id", "decoder_start_token_id", "prefix",
        # heads
        "add_pooling_layer", "id2label", "label2id", "num_labels", "problem_type",
        "finetuning_task", "task_specific_params", "classifier_dropout", "classifier_bias",
        "classifier_pooling", "summary_activation",
        # generation
        "temperature", "top_k", "top_p", "typical_p", "do_sample", "early_stopping", "num_beams",
        "num_beam_groups", "diversity_penalty", "max_length", "min_length", "length_penalty",
        "repetition_penalty", "encoder_no_repeat_ngram_size", "no_repeat_ngram_size",
        "bad_words_ids", "num_return_sequences", "output_scores", "return_dict_in_generate",
        "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
        "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens",
    }
)  # fmt: skip
"""Keys of any config.json that change no vector."""

SHAPE_KEYS: Final = frozenset(
    {
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "intermediate_size", "max_position_embeddings",
    }
)  # fmt: skip
"""Keys that every family must give."""

ROPE_KEYS: Final = frozenset(
    {"rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings"}
)
WINDOW_KEYS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "none": frozenset(),
        "all_layers": frozenset({"sliding_window"}),
        "by_layer_type": frozenset(
            {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"}
        ),
    }
)
"""By `Family.windows`."""

FIXED_KEYS: Final[Mapping[str, tuple[object, ...]]] = MappingProxyType(
    {
        "is_encoder_decoder": (False, None),
        "add_cross_attention": (False, None),
        "is_decoder": (False, None),
        "pruned_heads": ({}, None),
        "quantization_config": (None,),
        "partial_rotary_factor": (1.0, None),
        # No class of these families in transformers 5 reads it, though the name promises otherwise.
        # `is_causal: false` is what they read, see `is_causal` in the rows.
        "use_bidirectional_attention": (False, None),
    }
)
"""For every family: keys that would change the vectors, with the only values implemented."""

ACTIVATIONS_BY_NAME: Final[Mapping[str, Activation]] = MappingProxyType(
    {
        "gelu": "gelu",
        "gelu_python": "gelu",
        "gelu_new": "gelu_tanh",
        "gelu_fast": "gelu_tanh",
        "gelu_accurate": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "gelu_python_tanh": "gelu_tanh",
        "relu": "relu",
        "silu": "silu",
        "swish": "silu",
        "tanh": "tanh",
        "sigmoid": "sigmoid",
        "linear": "identity",
    }
)
"""`hidden_act` to activation. Source: `ACT2CLS` in transformers, activations.py."""

ENCODER_TENSORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "tokens": "embeddings.word_embeddings.weight",
        "positions": "embeddings.position_embeddings.weight",
        "token_types": "embeddings.token_type_embeddings.weight",
        "embedding_norm": "embeddings.LayerNorm",
        "layers.{i}.q": "encoder.layer.{i}.attention.self.query",
        "layers.{i}.k": "encoder.layer.{i}.attention.self.key",
        "layers.{i}.v": "encoder.layer.{i}.attention.self.value",
        "layers.{i}.o": "encoder.layer.{i}.attention.output.dense",
        "layers.{i}.attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
        "layers.{i}.up": "encoder.layer.{i}.intermediate.dense",
        "layers.{i}.down": "encoder.layer.{i}.output.dense",
        "layers.{i}.mlp_norm": "encoder.layer.{i}.output.LayerNorm",
    }
)
DECODER_TENSORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "tokens": "embed_tokens.weight",
        "layers.{i}.q": "layers.{i}.self_attn.q_proj",
        "layers.{i}.k": "layers.{i}.self_attn.k_proj",
        "layers.{i}.v": "layers.{i}.self_attn.v_proj",
        "layers.{i}.o": "layers.{i}.self_attn.o_proj",
        "layers.{i}.q_norm": "layers.{i}.self_attn.q_norm",
        "layers.{i}.k_norm": "layers.{i}.self_attn.k_norm",
        "layers.{i}.attention_norm": "layers.{i}.input_layernorm",
        "layers.{i}.gate": "layers.{i}.mlp.gate_proj",
        "layers.{i}.up": "layers.{i}.mlp.up_proj",
        "layers.{i}.down": "layers.{i}.mlp.down_proj",
        "layers.{i}.mlp_norm": "layers.{i}.post_attention_layernorm",
        "final_norm": "norm",
    }
)

BERT: Final = Family(
    model_type="bert",
    norm="layer_norm",
    norm_eps=Key("layer_norm_eps", 1e-12),
    norm_placement="post",
    is_gated=False,
    activation=Key("hidden_act", "gelu"),
    positions="learned",
    num_token_types=Key("type_vocab_size", 2),
    # BERT's class ignores is_causal; a file that sets it expects something else.
    fixed={"position_embedding_type": ("absolute",), "is_causal": (False, None)},
    tokenizer_class="BertTokenizer",
    prefixes=("", "bert.", "0.auto_model.", "auto_model."),
    tensors=ENCODER_TENSORS,
    ignored_tensors=(
        "*embeddings.position_ids", "*embeddings.token_type_ids", "*pooler.*", "cls.*",
        "classifier.*", "qa_outputs.*",
    ),
)  # fmt: skip

ROBERTA: Final = replace(
    BERT,
    model_type="roberta",
    positions="learned_after_padding",
    tokenizer_class="RobertaTokenizer",
    prefixes=("", "roberta.", "0.auto_model.", "auto_model."),
    ignored_tensors=(
        "*embeddings.position_ids", "*embeddings.token_type_ids", "*pooler.*", "lm_head.*",
        "classifier.*", "qa_outputs.*",
    ),
)  # fmt: skip

XLM_ROBERTA: Final = replace(
    ROBERTA, model_type="xlm-roberta", tokenizer_class="XLMRobertaTokenizer"
)

DECODER_PREFIXES: Final = ("", "model.", "0.auto_model.", "auto_model.")
DECODER_IGNORED: Final = ("lm_head.weight", "score.weight", "*rotary_emb.inv_freq")

MISTRAL: Final = Family(
    model_type="mistral",
    norm="rms_norm",
    norm_eps=Key("rms_norm_eps", 1e-6),
    norm_placement="pre",
    is_gated=True,
    activation=Key("hidden_act", "silu"),
    positions="rotary",
    num_kv_heads=Key("num_key_value_heads", 8),
    head_dim=Key("head_dim"),
    is_causal=Key("is_causal", True),
    windows="all_layers",
    has_qkv_bias=False,
    has_output_bias=False,
    has_mlp_bias=False,
    # The class has neither: it ignores layer_types, and its linear layers carry no bias.
    fixed={"layer_types": (None,), "attention_bias": (False, None), "mlp_bias": (False, None)},
    prefixes=DECODER_PREFIXES,
    tensors=DECODER_TENSORS,
    ignored_tensors=DECODER_IGNORED,
)

LLAMA: Final = Family(
    model_type="llama",
    norm="rms_norm",
    norm_eps=Key("rms_norm_eps", 1e-6),
    norm_placement="pre",
    is_gated=True,
    activation=Key("hidden_act", "silu"),
    positions="rotary",
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
)

QWEN2: Final = Family(
    model_type="qwen2",
    norm="rms_norm",
    norm_eps=Key("rms_norm_eps", 1e-6),
    norm_placement="pre",
    is_gated=True,
    activation=Key("hidden_act", "silu"),
    positions="rotary",
    num_kv_heads=Key("num_key_value_heads", 32),
    head_dim=Key("head_dim"),
    is_causal=Key("is_causal", True),
    windows="by_layer_type",
    has_qkv_bias=True,
    has_output_bias=False,
    has_mlp_bias=False,
    # The class always has the three biases and never the others.
    fixed={"attention_bias": (True, None), "qkv_bias": (True, None), "mlp_bias": (False, None)},
    prefixes=DECODER_PREFIXES,
    tensors=DECODER_TENSORS,
    ignored_tensors=DECODER_IGNORED,
)

QWEN3: Final = Family(
    model_type="qwen3",
    norm="rms_norm",
    norm_eps=Key("rms_norm_eps", 1e-6),
    norm_placement="pre",
    is_gated=True,
    activation=Key("hidden_act", "silu"),
    positions="rotary",
    num_kv_heads=Key("num_key_value_heads", 32),
    head_dim=Key("head_dim", 128),
    is_causal=Key("is_causal", True),
    windows="by_layer_type",
    has_qk_norm=True,
    has_qkv_bias=Key("attention_bias", False),
    has_output_bias=Key("attention_bias", False),
    has_mlp_bias=False,
    fixed={"mlp_bias": (False, None)},
    prefixes=DECODER_PREFIXES,
    tensors=DECODER_TENSORS,
    ignored_tensors=DECODER_IGNORED,
)

FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {row.model_type: row for row in (BERT, ROBERTA, XLM_ROBERTA, MISTRAL, LLAMA, QWEN2, QWEN3)}
)
"""Every family there is."""
