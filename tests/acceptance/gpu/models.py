"""Models for measurements: the sizes of real ones. What follows needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Literal

from embedlib.models.reading.config_file import read_encoder
from embedlib.models.reading.json_files import JsonObject
from embedlib.models.spec import ModelSpec, Normalize, Pooling, PoolingMode

Precision = Literal["fp8", "bf16"]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model without its numbers."""

    config: Mapping[str, Any]
    """Its config.json: what decides the sizes."""
    pooling: PoolingMode
    max_seq_tokens: int
    precisions: tuple[Precision, ...]
    """Those it is measured in, the recommended one first."""
    share: float = 1.0
    """Of a block's time, as the smaller ones need less."""

    @property
    def spec(self) -> ModelSpec:
        """What an engine is given."""
        encoder = read_encoder(JsonObject("config.json", self.config))
        return ModelSpec(
            encoder=encoder,
            modules=(Pooling(modes=(self.pooling,)), Normalize()),
            embedding_dim=encoder.hidden_size,
            max_seq_tokens=self.max_seq_tokens,
            max_seq_tokens_source="the benchmark",
        )


_BGE_EN_ICL: Final = {
    "model_type": "mistral",
    "architectures": ["MistralModel"],
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14_336,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 32_768,
    "rope_theta": 10_000.0,
    "sliding_window": None,
}
_QWEN3: Final = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151_669,
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32_768,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
}
_BGE_LARGE: Final = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": 30_522,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}

_DEBERTA_V3_BASE: Final = {
    "model_type": "deberta-v2",
    "architectures": ["DebertaV2Model"],
    "vocab_size": 128_100,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-7,
    "max_position_embeddings": 512,
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "max_relative_positions": -1,
    "position_biased_input": False,
}

LARGE: Final = "bge-en-icl"
ENCODER: Final = "bge-large"
SHAPES: Final[Mapping[str, Shape]] = MappingProxyType(
    {
        LARGE: Shape(
            config=_BGE_EN_ICL,
            pooling="last_token",
            max_seq_tokens=32_768,
            precisions=("fp8", "bf16"),
        ),
        ENCODER: Shape(
            config=_BGE_LARGE,
            pooling="cls",
            max_seq_tokens=512,
            precisions=("bf16", "fp8"),
            share=0.5,
        ),
        "qwen3-embedding-0.6b": Shape(
            config=_QWEN3,
            pooling="last_token",
            max_seq_tokens=32_768,
            precisions=("fp8", "bf16"),
            share=0.5,
        ),
        "deberta-v3-base": Shape(
            config=_DEBERTA_V3_BASE,
            pooling="cls",
            max_seq_tokens=512,
            precisions=("bf16", "fp8"),
            share=0.5,
        ),
    }
)
"""By the name of the model whose sizes they have. Source: each one's config.json."""
DEFAULT: Final = (LARGE, ENCODER, "qwen3-embedding-0.6b")
"""Those that are measured unless others are named."""

TINY: Final = MappingProxyType(
    {
        "vocab_size": 60,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "intermediate_size": 32,
        "max_position_embeddings": 512,
    }
)
"""In place of the real sizes where there is no GPU."""
TINY_BATCH_TOKENS: Final = 2048


def shape_of(name: str, *, num_layers: int | None = None, is_tiny: bool = False) -> Shape:
    """Return a model's sizes.

    Args:
        name: one of `SHAPES`.
        num_layers: keep only the first ones; None: all.
        is_tiny: the same model in the sizes of `TINY`.
    """
    shape = SHAPES[name]
    config = dict(shape.config)
    if is_tiny:
        config |= {key: value for key, value in TINY.items() if key in config}
    if num_layers is not None:
        config["num_hidden_layers"] = min(num_layers, config["num_hidden_layers"])
    longest = min(shape.max_seq_tokens, config["max_position_embeddings"])
    return replace(shape, config=config, max_seq_tokens=longest)
