"""Encoders with convolutions in some layers, in place of attention.

Source: defaults, traits and tensor names are those of Lfm2Model in transformers 5.23, models/lfm2;
what makes it an encoder is in modeling_lfm2_bidirectional.py of
huggingface.co/LiquidAI/LFM2.5-Embedding-350M: attention both ways, and centred convolutions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from embedlib.models.families.row import ConvolutionKeys, Family, InnerSizeKeys, Key
from embedlib.models.families.tensor_names import LFM2_TENSORS

# As the main branch of transformers has it; 5.23 does not.
LFM2_BIDIRECTIONAL: Final = Family(
    model_type="lfm2_bidirectional",
    norm="rms_norm",
    norm_eps=Key("norm_eps", 1e-5),
    norm_placement="pre",
    is_gated=True,
    activation="silu",
    positions="rotary",
    rope_theta=Key("rope_theta", 1_000_000.0),
    rope_kinds=("default",),
    num_kv_heads=Key("num_key_value_heads", 8),
    head_dim=Key("head_dim"),
    has_qk_norm=True,
    has_qkv_bias=False,
    has_output_bias=False,
    has_mlp_bias=False,
    convolutions=ConvolutionKeys(
        width=Key("conv_L_cache", 3), has_bias=Key("conv_bias", False)
    ),
    inner_size=InnerSizeKeys(
        adjusts=Key("block_auto_adjust_ff_dim", True),
        factor=Key("block_ffn_dim_multiplier", 1.0),
        multiple=Key("block_multiple_of", 256),
    ),
    names={"intermediate_size": ("block_ff_dim",), "num_attention_heads": ("num_heads",)},
    fixed={
        "is_causal": (False, None),
        "use_pos_enc": (True, None),
        "block_use_swiglu": (True, None),
    },
    harmless=frozenset(
        {
            "tie_embedding", "theta", "block_norm_eps", "block_dim", "conv_dim", "conv_dim_out",
            "block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init",
            "conv_use_xavier_init",
            # Whether padding is mixed into texts of a batch; it never is here.
            "conv_zero_padding",
            # How attention is computed, of LFM2.5-ColBERT.
            "disable_flash_attention",
        }
    ),
    own_code={"AutoModel": ("Lfm2BidirectionalModel",)},
    prefixes=("", "model.", "lfm2.", "0.auto_model.", "auto_model."),
    tensors=LFM2_TENSORS,
    ignored_tensors=("*lm_head.weight", "*rotary_emb.inv_freq"),
)  # fmt: skip

# The published folders have the `model_type` of the decoder, and another class.
LFM2: Final = replace(
    LFM2_BIDIRECTIONAL,
    model_type="lfm2",
    implied={"model_type": ("architectures",)},
    fixed={
        **LFM2_BIDIRECTIONAL.fixed,
        "architectures": (["Lfm2BidirectionalModel"], ["Lfm2BidirectionalForMaskedLM"]),
    },
)
