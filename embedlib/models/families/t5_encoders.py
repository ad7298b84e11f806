"""T5: encoders without positions but a bias for every distance.

Source: defaults, traits and tensor names are those of the class in transformers 5.23,
`models/t5/{configuration,modeling}_t5.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from embedlib.models.families.row import Family, Key
from embedlib.models.families.tensor_names import T5_GATED_TENSORS, T5_TENSORS

T5_FIXED: Final[Mapping[str, tuple[object, ...]]] = {
    "is_encoder_decoder": (True, False, None),
    "is_causal": (False, None),
}
"""Keys of config.json that may have these values alone, in both rows."""

# The encoder alone: sentence-transformers leaves out the decoder of a file that has one.
T5_GATED: Final = Family(
    model_type="t5",
    name="t5-gated",
    chosen_by={"feed_forward_proj": ("gated-gelu",)},
    norm="rms_norm",
    norm_eps=Key("layer_norm_epsilon", 1e-6),
    norm_placement="pre",
    is_gated=True,
    activation="gelu_tanh",
    positions="bias",
    # The class does not read n_positions.
    num_positions=(),
    bias_buckets=Key("relative_attention_num_buckets", 32),
    bias_distance=Key("relative_attention_max_distance", 128),
    head_dim=Key("d_kv", 64),
    # Scores are not divided.
    query_scalar=1.0,
    has_qkv_bias=False,
    has_output_bias=False,
    has_mlp_bias=False,
    names={
        "hidden_size": ("d_model",),
        "num_hidden_layers": ("num_layers",),
        "num_attention_heads": ("num_heads",),
        "intermediate_size": ("d_ff",),
        "d_kv": ("head_dim",),
    },
    fixed={
        **T5_FIXED,
        # The class derives the two from feed_forward_proj, unless the file has them, too.
        "dense_act_fn": ("gelu_new",),
        "is_gated_act": (True,),
    },
    harmless=frozenset(
        {"n_positions", "num_decoder_layers", "dropout_rate", "scale_decoder_outputs"}
    ),
    # The class sets what tokenizer.json has.
    tokenizer_class="TokenizersBackend",
    prefixes=("", "0.auto_model.", "auto_model."),
    tensors=T5_GATED_TENSORS,
    ignored_tensors=("encoder.embed_tokens.weight", "decoder.*", "lm_head.*"),
)  # fmt: skip
T5: Final = replace(
    T5_GATED,
    name="",
    chosen_by={},
    own_rows=(T5_GATED,),
    is_gated=False,
    activation=Key("feed_forward_proj", "relu"),
    # A dense_act_fn in the file wins in the class, so the two must agree.
    names={**T5_GATED.names, "feed_forward_proj": ("dense_act_fn",)},
    fixed={**T5_FIXED, "is_gated_act": (False,)},
    tensors=T5_TENSORS,
)
