"""Keys of config.json that mean the same in every family.

Source: the classes of transformers 5.5, and the keys that 2.x to 4.x wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from embedlib.models.spec import Activation

HARMLESS_KEYS: Final = frozenset(
    {
        # identity and bookkeeping
        "model_type", "architectures", "_name_or_path", "name_or_path", "name", "_commit_hash",
        "transformers_version", "torch_dtype", "dtype", "auto_map", "tokenizer_class", "language",
        "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
        "pooler_size_per_head", "pooler_type", "output_past", "gradient_checkpointing",
        "attn_implementation", "_attn_implementation", "_attn_implementation_autoset",
        "_attn_implementation_internal", "_flash_attn_2_enabled", "use_flash_attn", "is_matryoshka",
        "matryoshka_dimensions", "sentence_transformers", "unsloth_version", "unsloth_fixed",
        "export_model_type", "transformers.js_config", "pipeline_tag",
        # training
        "attention_probs_dropout_prob", "hidden_dropout_prob", "attention_dropout",
        "hidden_dropout", "embd_pdrop", "resid_pdrop", "initializer_range", "initializer_factor",
        "use_cache", "tie_word_embeddings", "tie_encoder_decoder", "pretraining_tp", "torchscript",
        "chunk_size_feed_forward", "output_attentions", "output_hidden_states", "return_dict",
        "use_return_dict", "use_bfloat16", "cross_attention_hidden_size", "is_composition",
        "tf_legacy_loss", "xla_device",
        # special tokens: tokenizer.json tokenizes texts, and lengths mark the padding
        "bos_token_id", "eos_token_id", "eos_token_ids", "pad_token_id", "sep_token_id",
        "cls_token_id", "mask_token_id", "unk_token_id", "decoder_start_token_id", "prefix",
        "bos_token", "eos_token", "pad_token", "sep_token", "cls_token", "mask_token", "unk_token",
        # heads
        "add_pooling_layer", "id2label", "label2id", "num_labels", "_num_labels", "problem_type",
        "finetuning_task", "task_specific_params", "classifier_dropout", "classifier_bias",
        "classifier_pooling", "summary_activation", "sbert_ce_default_activation_function",
        # generation
        "temperature", "top_k", "top_p", "typical_p", "do_sample", "early_stopping", "num_beams",
        "num_beam_groups", "diversity_penalty", "max_length", "min_length", "length_penalty",
        "repetition_penalty", "encoder_no_repeat_ngram_size", "no_repeat_ngram_size",
        "bad_words_ids", "num_return_sequences", "output_scores", "return_dict_in_generate",
        "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
        "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens",
        "cache_implementation",
    }
)  # fmt: skip
"""Keys that change no vector, in any family."""

SHAPE_KEYS: Final = frozenset(
    {
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "intermediate_size", "max_position_embeddings",
    }
)  # fmt: skip
"""Keys that every family requires."""

ROPE_KEYS: Final = frozenset(
    {"rope_scaling", "rope_parameters", "original_max_position_embeddings"}
)
WINDOW_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "none": frozenset(),
    "all_layers": frozenset(),
    "by_layer_type": frozenset({"use_sliding_window", "max_window_layers", "layer_types"}),
    "alternating": frozenset({"layer_types"}),
}
"""Keys by value of `Family.windows`, in addition to those that the row names."""

_NO_ADAPTERS: Final[Mapping[str, object]] = {
    "adapters": {},
    "config_map": {},
    "fusion_config_map": {},
    "fusions": {},
}

FIXED_KEYS: Final[Mapping[str, tuple[object, ...]]] = {
    "is_encoder_decoder": (False, None),
    "add_cross_attention": (False, None),
    "is_decoder": (False, None),
    "pruned_heads": ({}, None),
    # Those of the package adapters, which writes this into models without one, too.
    "adapters": (_NO_ADAPTERS, {}, None),
    "quantization_config": (None,),
    "partial_rotary_factor": (1.0, None),
    # In the files of Qwen2.5; the classes for texts do not read it.
    "use_mrope": (False, None),
    # Despite its name, few classes in transformers 5 read it; the rows of those have it as a
    # trait. The other classes read `is_causal: false`.
    "use_bidirectional_attention": (False, None),
}
"""Keys that would change the vectors in any family, with the only values implemented."""

ACTIVATIONS_BY_NAME: Final[Mapping[str, Activation]] = {
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
"""`hidden_act` to activation. Source: `ACT2CLS` in transformers, activations.py."""

LAYER_TYPES: Final = ("full_attention", "sliding_attention")
"""Names of attention without and with a window."""
