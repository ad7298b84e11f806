"""One transformer for every spec this engine runs, built from TensorRT-LLM's modules.

TensorRT-LLM looks up a model's class by the name in `architectures`. `register` creates a class for
one spec and its weights, under a name that no checkpoint uses.

Source: the arguments of the modules and the fields of the batch's metadata are those of
TensorRT-LLM 1.3.0rc22 to 1.4.0rc1, tensorrt_llm/_torch/{attention,modules,models}.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from tensorrt_llm._torch.models.modeling_utils import DecoderModelForCausalLM, register_auto_model
from tensorrt_llm._torch.modules.gated_mlp import GatedMLP
from tensorrt_llm._torch.modules.linear import Linear
from tensorrt_llm._torch.modules.rms_norm import RMSNorm
from tensorrt_llm.functional import PositionEmbeddingType
from torch import Tensor, nn

from embedlib.engines.tensorrt_llm.parts import (
    Attention,
    PositionalEmbeddingParams,
    PredefinedAttentionMask,
    QKNormRoPEAttention,
    RopeParams,
)
from embedlib.engines.tensorrt_llm.pooling import ACTIVATIONS, Head
from embedlib.engines.tensorrt_llm.weights import fill_model, linear_of
from embedlib.errors import EngineUnsupportedError
from embedlib.models.reading.files import ModelFiles
from embedlib.models.spec import Encoder, ModelSpec

LINEAR_ROLES: Final = {
    "attention.qkv_proj": ("q", "k", "v"),
    "attention.o_proj": ("o",),
    "mlp.gate_up_proj": ("gate", "up"),
    "mlp.up_proj": ("up",),
    "mlp.down_proj": ("down",),
}
"""Linear layers of `Layer` and the roles each computes; roles of one entry are fused."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The model that a registered class is created for."""

    files: ModelFiles
    folder: Path
    """The engine directory."""
    excluded: frozenset[str]
    """Roles of linear layers that are not stored in FP8."""


def register(files: ModelFiles, folder: Path, excluded: Collection[str]) -> str:
    """Register a class for a model and return its name, which depends only on the directory."""
    name = f"EmbedlibModel_{folder.name}"
    source = Source(files=files, folder=folder, excluded=frozenset(excluded))
    register_auto_model(name)(type(name, (EmbeddingModel,), {"source": source}))
    return name


class EmbeddingModel(DecoderModelForCausalLM):  # type: ignore[misc]
    """Computes vectors from token ids. Its base adds what TensorRT-LLM's loader expects."""

    source: ClassVar[Source]

    def __init__(self, model_config: Any) -> None:
        # Not the base's constructor: it would create a language-model head.
        nn.Module.__init__(self)
        spec = self.source.files.spec
        config = model_config.pretrained_config
        if getattr(config, "num_key_value_heads", None) is None:  # BERT's config has no such key
            config.num_key_value_heads = spec.encoder.num_kv_heads
        self.model_config = model_config
        self.model = Transformer(model_config, spec)
        self.head = Head(spec)

    def __post_init__(self) -> None:
        """Disable FP8 for excluded layers, before the base creates the parameters."""
        for index, layer in enumerate(self.model.layers):
            for name, roles in LINEAR_ROLES.items():
                if f"layers.{index}.{roles[0]}" in self.source.excluded:
                    linear = linear_of(layer, name)
                    if linear is not None:
                        linear.quant_config = None
        super().__post_init__()

    def forward(
        self,
        attn_metadata: Any,
        input_ids: Tensor,
        position_ids: Tensor,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Return float32[B, D]."""
        hidden = self.model(attn_metadata, input_ids, position_ids)
        seq_lens = attn_metadata.seq_lens_cuda[: attn_metadata.num_contexts]
        vectors: Tensor = self.head(hidden, input_ids, seq_lens)
        return vectors

    def infer_max_seq_len(self) -> int:
        """Return the maximum tokens of a sequence; the base would read it from config.json."""
        return self.source.files.spec.max_seq_tokens

    def load_weights(self, weights: Any, *args: Any, **kwargs: Any) -> None:
        """Fill every parameter from the checkpoint's tensors, by role."""
        fill_model(self, weights, self.source.files, self.source.folder, LINEAR_ROLES)


class Transformer(nn.Module):  # type: ignore[misc]
    """Computes one hidden vector per token from token ids."""

    def __init__(self, model_config: Any, spec: ModelSpec) -> None:
        super().__init__()
        encoder = spec.encoder
        dtype = model_config.pretrained_config.torch_dtype
        self.encoder = encoder

        def embedding(num_rows: int) -> nn.Embedding:
            return nn.Embedding(num_rows, encoder.hidden_size, dtype=dtype)

        self.tokens = embedding(encoder.vocab_size)
        self.positions = embedding(encoder.num_positions) if encoder.rope is None else None
        self.token_types = embedding(encoder.num_token_types) if encoder.num_token_types else None
        self.layers = nn.ModuleList(
            Layer(model_config, spec, index) for index in range(encoder.num_layers)
        )
        is_post = encoder.norm_placement == "post"
        self.embedding_norm = _norm(encoder, dtype) if is_post else None
        self.final_norm = None if is_post else _norm(encoder, dtype)

    def forward(self, attn_metadata: Any, token_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Return float[T, H].

        Args:
            attn_metadata: the batch's lengths, for attention.
            token_ids: int[T].
            position_ids: int[1, T], counted from 0 in every sequence.
        """
        hidden = self.tokens(token_ids)
        if self.positions is not None:
            hidden = hidden + self.positions(self._rows(token_ids, position_ids.flatten()))
        if self.token_types is not None:
            # One text is one segment: every token is of type 0.
            hidden = hidden + self.token_types.weight[0]
        if self.embedding_norm is not None:
            hidden = self.embedding_norm(hidden)
            for layer in self.layers:
                hidden = layer.forward_post(hidden, attn_metadata, position_ids)
            return hidden
        # The residual sum is passed along, so that one kernel adds to it and applies the next norm.
        residual: Tensor | None = None
        for layer in self.layers:
            hidden, residual = layer.forward_pre(hidden, residual, attn_metadata, position_ids)
        assert self.final_norm is not None, "pre-norm needs a final norm; this is a bug in embedlib"
        normed: Tensor = self.final_norm(hidden, residual)[0]
        return normed

    def _rows(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """Return int[T]: rows of the position table.

        Source: `create_position_ids_from_input_ids` in transformers, models/roberta: a padding
        token inside a text is not counted and gets the row of its own id.
        """
        padding = self.encoder.pad_token_id
        if padding is None:
            return positions + self.encoder.position_offset
        is_counted = (token_ids != padding).int()
        counts = torch.cumsum(is_counted, 0)
        starts = torch.arange(len(token_ids), device=token_ids.device) - positions
        before = counts[starts] - is_counted[starts]
        return (counts - before) * is_counted + padding


class Layer(nn.Module):  # type: ignore[misc]
    """One layer: attention and MLP with their norms."""

    def __init__(self, model_config: Any, spec: ModelSpec, index: int) -> None:
        super().__init__()
        encoder = spec.encoder
        dtype = model_config.pretrained_config.torch_dtype
        self.attention = _attention(model_config, spec, index)
        self.mlp: nn.Module
        if encoder.is_gated:
            self.mlp = GatedMLP(
                hidden_size=encoder.hidden_size,
                intermediate_size=encoder.intermediate_size,
                bias=encoder.has_mlp_bias,
                dtype=dtype,
                config=model_config,
            )
        else:
            self.mlp = PlainMLP(model_config, encoder)
        self.attention_norm = _norm(encoder, dtype)
        self.mlp_norm = _norm(encoder, dtype)
        causal, full = PredefinedAttentionMask.CAUSAL, PredefinedAttentionMask.FULL
        self.mask = causal if encoder.is_causal else full

    def forward_post(self, hidden: Tensor, attn_metadata: Any, position_ids: Tensor) -> Tensor:
        """Return float[T, H]: norm(x + f(x)), for attention and then the MLP."""
        attended = self._attend(hidden, attn_metadata, position_ids)
        hidden = self.attention_norm(hidden + attended)
        normed: Tensor = self.mlp_norm(hidden + self.mlp(hidden))
        return normed

    def forward_pre(
        self, hidden: Tensor, residual: Tensor | None, attn_metadata: Any, position_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the MLP's output, not yet added, and the residual sum; both float[T, H]."""
        if residual is None:
            residual = hidden
            hidden = self.attention_norm(hidden)
        else:
            hidden, residual = self.attention_norm(hidden, residual)
        hidden = self._attend(hidden, attn_metadata, position_ids)
        hidden, residual = self.mlp_norm(hidden, residual)
        return self.mlp(hidden), residual

    def _attend(self, hidden: Tensor, attn_metadata: Any, position_ids: Tensor) -> Tensor:
        attended: Tensor = self.attention(
            position_ids=position_ids,
            hidden_states=hidden,
            attn_metadata=attn_metadata,
            attention_mask=self.mask,
        )
        return attended


class PlainMLP(nn.Module):  # type: ignore[misc]
    """An MLP without a gate: down(act(up(x)))."""

    def __init__(self, model_config: Any, encoder: Encoder) -> None:
        super().__init__()

        def linear(in_features: int, out_features: int) -> Any:
            return Linear(
                in_features,
                out_features,
                bias=encoder.has_mlp_bias,
                dtype=model_config.pretrained_config.torch_dtype,
                quant_config=model_config.get_quant_config(),
                skip_create_weights_in_init=model_config.skip_create_weights_in_init,
                force_dynamic_quantization=model_config.force_dynamic_quantization,
            )

        self.up_proj = linear(encoder.hidden_size, encoder.intermediate_size)
        self.down_proj = linear(encoder.intermediate_size, encoder.hidden_size)
        self.activate = ACTIVATIONS[encoder.activation]

    def forward(self, hidden: Tensor) -> Tensor:
        """Return float[T, H] from float[T, H]."""
        changed: Tensor = self.down_proj(self.activate(self.up_proj(hidden)))
        return changed


def _attention(model_config: Any, spec: ModelSpec, index: int) -> Any:
    encoder = spec.encoder
    turned = None
    if encoder.rope is not None:
        # Dynamic RoPE equals plain RoPE up to the trained length, which is never exceeded here.
        rope = RopeParams(
            dim=encoder.head_dim, theta=encoder.rope.theta, max_positions=encoder.num_positions
        )
        turned = PositionalEmbeddingParams(type=PositionEmbeddingType.rope_gpt_neox, rope=rope)
    kind = QKNormRoPEAttention if encoder.has_qk_norm else Attention
    attention = kind(
        hidden_size=encoder.hidden_size,
        num_attention_heads=encoder.num_heads,
        num_key_value_heads=encoder.num_kv_heads,
        max_position_embeddings=encoder.num_positions,
        bias=encoder.has_qkv_bias,
        dense_bias=encoder.has_output_bias,
        pos_embd_params=turned,
        layer_idx=index,
        dtype=model_config.pretrained_config.torch_dtype,
        config=model_config,
    )
    # TensorRT-LLM derives head_dim from config.json by its own rules.
    if attention.head_dim != encoder.head_dim:
        raise EngineUnsupportedError(
            f"engine tensorrt_llm computes head_dim = {attention.head_dim}, but this model has "
            f"{encoder.head_dim}; pass another engine, `embedlib doctor` lists them"
        )
    return attention


def _norm(encoder: Encoder, dtype: torch.dtype) -> nn.Module:
    if encoder.norm == "rms_norm":
        norm: nn.Module = RMSNorm(
            hidden_size=encoder.hidden_size, eps=encoder.norm_eps, dtype=dtype
        )
        return norm
    return nn.LayerNorm(encoder.hidden_size, encoder.norm_eps, dtype=dtype)
