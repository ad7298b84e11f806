"""A model's weights on the device, in the form the kernels read.

Linear layers with the same input are fused into one matrix. An FP8 matrix has a float32 scale per
output channel. Norms, biases of norms and the modules after pooling are float32: they are small,
and a norm computes in float32 anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from embedlib.engines.cuda.buffers import FP8
from embedlib.engines.cuda.distances import Distances, rows_by_distance
from embedlib.engines.cuda.plan import (
    ChooseExperts,
    Convolve,
    Linear,
    MultiplyDistances,
    Norm,
    NormColumns,
    Plan,
    Rotate,
)
from embedlib.errors import ModelWeightsError
from embedlib.models.compiled.row_scales import E4M3_MAX, SMALLEST_SCALE
from embedlib.models.encoder_parts import Rope
from embedlib.models.position_bias import bias_by_distance
from embedlib.models.rope import inverse_frequencies
from embedlib.models.spec import Dense, Encoder, LayerNorm, ModelSpec


@dataclass(frozen=True)
class Fp8Matrix:
    """A quantized matrix, on the host or the device."""

    codes: torch.Tensor
    """float8_e4m3fn[rows, columns]."""
    scales: torch.Tensor
    """float32[rows]."""


HostWeights = Mapping[str, "NDArray[np.float32] | torch.Tensor | Fp8Matrix"]
"""Weights by role, see `embedlib.models.weights.load`."""


@dataclass(frozen=True)
class LinearWeight:
    """out = (source @ values.T) * source.scales * scales + bias."""

    values: torch.Tensor
    """[N, K], in FP8 or in the plan's number type."""
    scales: torch.Tensor | None
    """float32[1, N] for FP8; None otherwise."""
    bias: torch.Tensor | None
    """[N] in the plan's number type."""


@dataclass(frozen=True)
class NormWeight:
    """A norm over the last axis."""

    weight: torch.Tensor
    """float32[H]."""
    bias: torch.Tensor | None
    eps: float
    is_rms: bool


@dataclass(frozen=True)
class Embeddings:
    """The tables whose rows add up to a token's first vector."""

    tokens: torch.Tensor
    """[V, H] in the plan's number type, as the other tables."""
    positions: torch.Tensor | None
    token_types: torch.Tensor | None
    scale: float


@dataclass(frozen=True)
class Rotation:
    """float32[positions, head_dim / 2] each, multiplied by the scale of the rope."""

    cos: torch.Tensor
    sin: torch.Tensor


@dataclass(frozen=True)
class Convolution:
    """A convolution over neighbouring tokens, each channel with weights of its own."""

    weight: torch.Tensor
    """float32[width, H]: the token itself is in the middle."""
    bias: torch.Tensor | None
    """float32[H]."""


@dataclass(frozen=True)
class DeviceWeights:
    """All weights and tables of a plan; read-only once loaded."""

    embeddings: Embeddings
    linears: Mapping[tuple[tuple[str, ...], bool], LinearWeight]
    """By `Linear.weight`."""
    norms: Mapping[str, NormWeight]
    rotations: Mapping[Rope, Rotation]
    routers: Mapping[str, torch.Tensor]
    """float32[experts, H] by role."""
    convolutions: Mapping[str, Convolution]
    position_bias: torch.Tensor | None
    """float32[heads, 2 * positions - 1], added to scores at key - query + positions - 1."""
    distances: Distances | None
    """Set if the model has relative positions."""
    modules: Mapping[int, tuple[torch.Tensor, torch.Tensor | None]]
    """float32 weight and bias of modules that have them, by position in `spec.modules`."""


@dataclass(frozen=True)
class WeightLoader:
    """Copies weights to a device, one matrix at a time."""

    spec: ModelSpec
    weights: HostWeights
    dtype: torch.dtype
    device: torch.device

    def load(self, plan: Plan) -> DeviceWeights:
        """Return the weights of a plan.

        Raises:
            ModelWeightsError: a layer is computed in a higher precision but stored in FP8.
            torch.OutOfMemoryError: the weights do not fit into the device's memory.
        """
        encoder = self.spec.encoder
        linears, norms, ropes, routers, convolutions = {}, {}, {}, {}, {}
        for step in plan.steps:
            if isinstance(step, Linear):
                if step.weight not in linears:
                    linears[step.weight] = self._linear(step.roles, is_fp8=step.source.is_fp8)
            elif isinstance(step, Norm):
                for role in filter(None, (step.role, step.change_norm)):
                    norms[role] = self._norm(role, encoder.norm == "rms_norm")
            elif isinstance(step, ChooseExperts):
                routers[step.role] = self._float32(f"{step.role}.weight")
            elif isinstance(step, Convolve):
                convolutions[step.role] = self._convolution(step.role)
            elif isinstance(step, NormColumns):
                norms[step.role] = self._norm(step.role, is_rms=False)
            elif isinstance(step, Rotate):
                for role in filter(None, (step.query_norm, step.key_norm)):
                    norms[role] = self._norm(role, is_rms=True)
                if step.rope and step.rope not in ropes:
                    ropes[step.rope] = self._rotation(step.rope)
        return DeviceWeights(
            embeddings=Embeddings(
                tokens=self._plain("tokens"),
                positions=self._plain("positions") if "positions" in self.weights else None,
                token_types=self._token_types(encoder),
                scale=encoder.embedding_scale,
            ),
            linears=linears,
            norms=norms,
            rotations=ropes,
            routers=routers,
            convolutions=convolutions,
            position_bias=self._position_bias(encoder),
            distances=self._distances(plan),
            modules={
                position: (
                    self._float32(f"modules.{position}.weight"),
                    self._optional(f"modules.{position}.bias"),
                )
                for position, module in enumerate(self.spec.modules)
                if isinstance(module, (Dense, LayerNorm))
            },
        )

    def _token_types(self, encoder: Encoder) -> torch.Tensor | None:
        """Return the vectors of the types, with that of the task that all tokens have."""
        types = self._plain("token_types") if encoder.num_token_types else None
        if not encoder.num_task_types:
            return types
        task = self._plain("task_types")[:1]
        return task if types is None else types + task

    def _linear(self, roles: tuple[str, ...], *, is_fp8: bool) -> LinearWeight:
        biases = [self._plain(f"{role}.bias") for role in roles if f"{role}.bias" in self.weights]
        bias = torch.cat(biases) if biases else None
        if not is_fp8:
            for role in roles:
                self._check_unrounded(role)
            values = [self._plain(f"{role}.weight") for role in roles]
            if roles[0].endswith(".experts_down"):  # the one matrix that is stored transposed
                values = [values[0].T.contiguous()]
            return LinearWeight(_stacked(values), None, bias)
        parts = [self._fp8(f"{role}.weight") for role in roles]
        # torch cannot concatenate FP8 on every device, but it can concatenate bytes.
        codes = _stacked([part.codes.view(torch.uint8) for part in parts]).view(FP8)
        scales = torch.cat([part.scales for part in parts])
        return LinearWeight(codes, scales[None], bias)

    def _check_unrounded(self, role: str) -> None:
        """Reject a weight that is stored in FP8 for a layer of a higher precision."""
        if isinstance(self.weights[f"{role}.weight"], Fp8Matrix):
            raise ModelWeightsError(
                f"engine cuda: {role} is needed in {self.dtype}, and the engine directory has it "
                "in FP8; give the weights of the model it was made from"
            )

    def _fp8(self, role: str) -> Fp8Matrix:
        stored = self.weights[role]
        if isinstance(stored, Fp8Matrix):
            return Fp8Matrix(stored.codes.to(self.device), stored.scales.to(self.device))
        return quantize_fp8(self._float32(role))

    def _norm(self, role: str, is_rms: bool) -> NormWeight:
        weight, bias = self._float32(f"{role}.weight"), self._optional(f"{role}.bias")
        return NormWeight(weight, bias, self.spec.encoder.norm_eps, is_rms)

    def _convolution(self, role: str) -> Convolution:
        weight = self._float32(f"{role}.weight")  # [H, 1, width]
        return Convolution(weight[:, 0].T.contiguous(), self._optional(f"{role}.bias"))

    def _rotation(self, rope: Rope) -> Rotation:
        """Return the angles of all positions.

        Source: Su et al., RoFormer (arXiv:2104.09864).
        """
        frequencies, scale = inverse_frequencies(rope, self.spec.encoder.head_dim)
        # Rounded to float32 before the cosine, as in transformers: this is part of the model.
        positions = np.arange(self.spec.max_seq_tokens, dtype=np.float32)
        angles = np.outer(positions, frequencies.astype(np.float32))
        cos, sin = (
            torch.from_numpy((turn(angles) * scale).astype(np.float32)).to(self.device)
            for turn in (np.cos, np.sin)
        )
        return Rotation(cos, sin)

    def _position_bias(self, encoder: Encoder) -> torch.Tensor | None:
        if encoder.position_bias is None:
            return None
        by_distance = bias_by_distance(encoder, self.weights, self.spec.max_seq_tokens)
        return torch.from_numpy(by_distance).to(self.device)

    def _distances(self, plan: Plan) -> Distances | None:
        """Project the vectors of distances, in float32: they are the same for every text."""
        encoder = self.spec.encoder
        if encoder.relative_positions is None:
            return None
        norm, table = self._norm("relative_norm", is_rms=False), self._float32("relative")
        table = functional.layer_norm(table, table.shape[1:], norm.weight, norm.bias, norm.eps)
        linears = [step for step in plan.steps if isinstance(step, Linear)]
        in_fp8 = {role for step in linears if step.source.is_fp8 for role in step.roles}
        vectors = {}
        for step in plan.steps:
            if isinstance(step, MultiplyDistances):
                weight = self._values(step.role, is_fp8=step.role in in_fp8)
                projected = functional.linear(table, weight, self._optional(f"{step.role}.bias"))
                by_head = projected.unflatten(1, (encoder.num_heads, encoder.head_dim))
                vectors[step.role] = by_head.transpose(0, 1).contiguous().to(self.dtype)
        rows = rows_by_distance(encoder.relative_positions, self.spec.max_seq_tokens)
        return Distances(
            rows=torch.from_numpy(rows).to(self.device),
            first_rows=rows[len(rows) // 2 :].copy(),
            vectors=vectors,
        )

    def _values(self, role: str, *, is_fp8: bool) -> torch.Tensor:
        """Return float32[N, K]: a layer's matrix as the layer has it, rounded to FP8 or not."""
        if not is_fp8:
            self._check_unrounded(role)
            return self._float32(f"{role}.weight")
        matrix = self._fp8(f"{role}.weight")
        return matrix.codes.float() * matrix.scales[:, None]

    def _optional(self, role: str) -> torch.Tensor | None:
        return self._float32(role) if role in self.weights else None

    def _plain(self, role: str) -> torch.Tensor:
        return self._host(role).to(self.device, self.dtype)

    def _float32(self, role: str) -> torch.Tensor:
        return self._host(role).to(self.device, torch.float32)

    def _host(self, role: str) -> torch.Tensor:
        stored = self.weights[role]
        assert not isinstance(stored, Fp8Matrix), (
            "only linear layers are in FP8; this is a bug in embedlib"
        )
        if isinstance(stored, torch.Tensor):
            return stored
        return torch.from_numpy(np.require(stored, requirements=["C", "W"]))


def quantize_fp8(values: torch.Tensor) -> Fp8Matrix:
    """Quantize float32[rows, columns] to FP8, bit for bit as `models.compiled.fp8` does."""
    largest = values.abs().amax(dim=1)
    scales = (largest / E4M3_MAX).clamp(min=SMALLEST_SCALE)
    scales = torch.where(largest == 0, torch.ones_like(scales), scales)
    return Fp8Matrix((values / scales[:, None]).to(FP8), scales)


def _stacked(parts: list[torch.Tensor]) -> torch.Tensor:
    """Concatenate the rows of matrices; a single matrix is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)
