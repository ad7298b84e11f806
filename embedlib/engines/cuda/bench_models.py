"""Models for measurements: the sizes of real ones, seeded numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

import torch

from embedlib.models.spec import Encoder, ModelSpec, Normalize, Pooling, PoolingMode, Rope
from embedlib.models.weights import encoder_shapes


def _spec(encoder: Encoder, mode: PoolingMode, max_seq_tokens: int) -> ModelSpec:
    return ModelSpec(
        encoder=encoder,
        modules=(Pooling(modes=(mode,)), Normalize()),
        embedding_dim=encoder.hidden_size,
        max_seq_tokens=max_seq_tokens,
        max_seq_tokens_source="the benchmark",
    )


def _decoder(
    family: str,
    hidden: int,
    layers: int,
    heads: int,
    inner: int,
    vocabulary: int,
    theta: float,
    *,
    has_qk_norm: bool,
) -> Encoder:
    """A decoder with 8 key and value heads of 128."""
    return Encoder(
        family=family,
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=inner,
        activation="silu",
        is_gated=True,
        norm="rms_norm",
        norm_eps=1e-5,
        norm_placement="pre",
        num_positions=32_768,
        rope=Rope(theta=theta),
        is_causal=True,
        windows=(None,) * layers,
        has_qk_norm=has_qk_norm,
        has_qkv_bias=False,
        has_output_bias=False,
        has_mlp_bias=False,
        has_down_bias=False,
    )


_MISTRAL_7B: Final = _decoder("mistral", 4096, 32, 32, 14_336, 32_000, 10_000.0, has_qk_norm=False)
_QWEN3_600M: Final = _decoder("qwen3", 1024, 28, 16, 3072, 151_669, 1_000_000.0, has_qk_norm=True)
_BERT_LARGE: Final = Encoder(
    family="bert",
    vocab_size=30_522,
    hidden_size=1024,
    num_layers=24,
    num_heads=16,
    num_kv_heads=16,
    head_dim=64,
    intermediate_size=4096,
    activation="gelu",
    is_gated=False,
    norm="layer_norm",
    norm_eps=1e-12,
    norm_placement="post",
    num_positions=512,
    num_token_types=2,
    windows=(None,) * 24,
    has_qkv_bias=True,
    has_output_bias=True,
    has_mlp_bias=True,
    has_down_bias=True,
)

MODELS: Final[Mapping[str, ModelSpec]] = MappingProxyType(
    {
        "bge-en-icl": _spec(_MISTRAL_7B, "last_token", 32_768),
        "qwen3-embedding-0.6b": _spec(_QWEN3_600M, "last_token", 32_768),
        "bge-large": _spec(_BERT_LARGE, "cls", 512),
    }
)
"""By the name of the model whose sizes they have. Source: each one's config.json."""


class SeededWeights(Mapping[str, torch.Tensor]):
    """Weights made on the device when they are asked for, the same for a seed.

    Matrices are as large as training begins with (0.02), those that write to the residual smaller
    by the number of layers, so that no layer drowns the others.
    """

    def __init__(self, spec: ModelSpec, device: torch.device) -> None:
        self._shapes = encoder_shapes(spec.encoder)
        self._num_layers = spec.encoder.num_layers
        self._device = device

    def __getitem__(self, role: str) -> torch.Tensor:
        """Return one tensor, bfloat16."""
        shape = self._shapes[role]
        if role.endswith("norm.weight"):
            return torch.ones(shape, device=self._device)
        seed = sorted(self._shapes).index(role)
        generator = torch.Generator(self._device).manual_seed(seed)
        values = torch.randn(shape, generator=generator, device=self._device, dtype=torch.float32)
        scale = 0.02
        if role.endswith(("o.weight", "down.weight")):
            scale /= math.sqrt(2 * self._num_layers)
        return (values * scale).to(torch.bfloat16)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the roles."""
        return iter(self._shapes)

    def __len__(self) -> int:
        """Return the number of roles."""
        return len(self._shapes)
