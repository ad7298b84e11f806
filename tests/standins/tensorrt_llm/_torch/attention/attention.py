from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from tensorrt_llm._torch.attention.backends.interface import (
    AttentionMetadata,
    PositionalEmbeddingParams,
    PredefinedAttentionMask,
)
from tensorrt_llm._torch.modules.linear import Linear


class Attention(nn.Module):
    def __init__(
        self,
        *,
        hidden_size: int,
        num_attention_heads: int,
        num_key_value_heads: int,
        max_position_embeddings: int,
        bias: bool,
        pos_embd_params: PositionalEmbeddingParams | None = None,
        layer_idx: int | None = None,
        dtype: torch.dtype | None = None,
        dense_bias: bool | None = None,
        config: Any = None,
        q_scaling: float = 1.0,
    ) -> None:
        super().__init__()
        assert layer_idx is not None
        self.num_heads, self.num_key_value_heads = num_attention_heads, num_key_value_heads
        self.head_dim = getattr(config.pretrained_config, "head_dim", None)
        if not isinstance(self.head_dim, int):
            self.head_dim = hidden_size // num_attention_heads
        self.q_size = self.num_heads * self.head_dim
        self.kv_size = self.num_key_value_heads * self.head_dim
        self.pos_embd_params = pos_embd_params
        self.q_scaling = q_scaling
        self.quant_config = config.get_quant_config()

        def linear(in_features: int, out_features: int, bias: bool, num_parts: int) -> Linear:
            return Linear(
                in_features,
                out_features,
                bias,
                dtype,
                quant_config=config.get_quant_config(),
                skip_create_weights_in_init=config.skip_create_weights_in_init,
                force_dynamic_quantization=config.force_dynamic_quantization,
                num_parts=num_parts,
            )

        self.qkv_proj = linear(hidden_size, self.q_size + 2 * self.kv_size, bias, 3)
        has_dense_bias = bias if dense_bias is None else dense_bias
        self.o_proj = linear(self.q_size, hidden_size, has_dense_bias, 1)

    def create_weights(self) -> None:
        self.o_proj.create_weights()

    def forward(
        self,
        position_ids: Tensor | None,
        hidden_states: Tensor,
        attn_metadata: AttentionMetadata,
        attention_mask: PredefinedAttentionMask = PredefinedAttentionMask.CAUSAL,
        attention_window_size: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        assert attention_window_size is None, "windows need a cache of keys and values"
        # Static quantization of the output layer's input would use an uncalibrated scale.
        assert not self.o_proj.is_fp8 or self.o_proj.force_dynamic_quantization
        assert position_ids is not None
        assert position_ids.shape == (1, len(hidden_states)), "position_ids is [1, T]"
        sizes = [self.q_size, self.kv_size, self.kv_size]
        q, k, v = self.qkv_proj(hidden_states).split(sizes, dim=-1)
        q, k = self.apply_qk_norm(q, k)
        heads = [self._heads(values) for values in (q, k, v)]
        if self.pos_embd_params is not None:
            heads[:2] = [self._turn(values, position_ids[0]) for values in heads[:2]]
        mixed = self._attend(*heads, attn_metadata, attention_mask)
        return self.o_proj(mixed.to(hidden_states.dtype))

    def apply_qk_norm(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k

    def _heads(self, values: Tensor) -> Tensor:
        """Reshape [T, heads * d] to float32[T, heads, d]."""
        return values.float().unflatten(-1, (-1, self.head_dim))

    def _turn(self, values: Tensor, positions: Tensor) -> Tensor:
        assert self.pos_embd_params is not None
        rope = self.pos_embd_params.rope
        assert rope is not None
        assert rope.dim == self.head_dim
        assert int(positions.max()) < rope.max_positions, "beyond the table of rotations"
        exponents = torch.arange(0, rope.dim, 2) / rope.dim
        angles = positions[:, None].float() * rope.theta**-exponents
        cos, sin = (turn(angles)[:, None] for turn in (torch.cos, torch.sin))
        first, second = values.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        metadata: AttentionMetadata,
        mask: PredefinedAttentionMask,
    ) -> Tensor:
        groups = self.num_heads // self.num_key_value_heads
        k, v = (values.repeat_interleave(groups, dim=1) for values in (k, v))
        # Tokens after the last sequence belong to no sequence; their rows stay uninitialized.
        mixed = torch.full_like(q, 1e4)
        start = 0
        for length in metadata.seq_lens.tolist():
            part = slice(start, start + length)
            scores = torch.einsum("qhd,khd->hqk", q[part], k[part])
            scores /= math.sqrt(self.head_dim) * self.q_scaling
            if mask is PredefinedAttentionMask.CAUSAL:
                later = torch.ones(length, length, dtype=torch.bool).triu(1)
                scores.masked_fill_(later, -math.inf)
            mixed[part] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v[part])
            start += length
        return mixed.flatten(1)
