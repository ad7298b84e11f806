"""Carries a plan out: finds each step's matrices and weights and launches its kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import torch
from torch.nn import functional

from embedlib.engines.cuda import reference
from embedlib.engines.cuda.buffers import Buffer, Workspace
from embedlib.engines.cuda.device_weights import DeviceWeights
from embedlib.engines.cuda.inputs import Layout
from embedlib.engines.cuda.plan import (
    Activate,
    Attend,
    Embed,
    Linear,
    Matrix,
    Norm,
    Plan,
    Quantize,
    Rotate,
    Step,
    TakePooled,
)
from embedlib.engines.cuda.reference import AttentionShape
from embedlib.models.spec import Dense, LayerNorm, ModelSpec, Normalize, Pooling


@dataclass(frozen=True)
class DeviceBatch:
    """A batch on the device; see `inputs.Layout` for the parts."""

    layout: Layout
    parts: Mapping[str, torch.Tensor]


def device_batch(values: torch.Tensor, layout: Layout) -> DeviceBatch:
    """Return the parts of int32[layout.size] as views."""
    sizes = [torch.Size(shape).numel() for shape in layout.shapes.values()]
    parts = torch.split(values, sizes)
    named = zip(layout.shapes.items(), parts, strict=True)
    return DeviceBatch(layout, {name: part.view(shape) for (name, shape), part in named})


class Executor:
    """A plan with its weights; the same for every batch."""

    def __init__(
        self, spec: ModelSpec, plan: Plan, weights: DeviceWeights, kernels: ModuleType
    ) -> None:
        """Take the parts.

        Args:
            spec: the model.
            plan: its plan.
            weights: its weights, on the device.
            kernels: the module with one function per step: `reference` or `kernels`.
        """
        encoder = spec.encoder
        self._spec = spec
        self._plan = plan
        self._weights = weights
        self._kernels = kernels
        self._shape = AttentionShape(
            num_heads=encoder.num_heads,
            num_kv_heads=encoder.num_kv_heads,
            head_dim=encoder.head_dim,
            scale=encoder.attention_scale or encoder.head_dim**-0.5,
            cap=encoder.attention_cap,
            is_causal=encoder.is_causal,
        )

    def run(self, steps: Sequence[Step], batch: DeviceBatch, workspace: Workspace) -> None:
        """Launch steps of the plan on what the steps before left in the workspace."""
        run = _Run(batch, workspace)
        for step in steps:
            self._launch(step, run)

    def finish(self, batch: DeviceBatch, workspace: Workspace) -> torch.Tensor:
        """Return float32[B, D], or [T, D] where nothing is pooled, of the hidden vectors.

        What stands behind the transformer is small, and computed in float32 by torch's own kernels.
        """
        hidden = workspace.rows(self._plan.hidden, batch.layout).values
        vectors = hidden
        for position, module in enumerate(self._spec.modules):
            if isinstance(module, Pooling):
                vectors = self._pool(hidden, batch, module)
            elif isinstance(module, Dense):
                weight, bias = self._weights.modules[position]
                vectors = functional.linear(vectors, weight, bias)
                vectors = reference.apply(vectors, module.activation)
            elif isinstance(module, LayerNorm):
                weight, bias = self._weights.modules[position]
                vectors = functional.layer_norm(vectors, weight.shape, weight, bias, module.eps)
            elif isinstance(module, Normalize):
                vectors = functional.normalize(vectors, dim=-1)
        return vectors

    def _pool(self, hidden: torch.Tensor, batch: DeviceBatch, pooling: Pooling) -> torch.Tensor:
        num_columns = len(pooling.modes) * hidden.shape[1]
        if self._plan.pooled_modes:
            return hidden.view(batch.layout.num_seqs, num_columns)
        vectors = torch.empty((batch.layout.num_seqs, num_columns), device=hidden.device)
        left_out = None if pooling.include_prompt else batch.parts["num_prompt_tokens"]
        parts = batch.parts
        self._kernels.pool(hidden, parts["cu_seqlens"], left_out, pooling.modes, vectors)
        return vectors

    def _launch(self, step: Step, run: _Run) -> None:
        kernels, weights, rows = self._kernels, self._weights, run.rows
        match step:
            case Embed(out):
                ids = [run.parts[name] for name in ("token_ids", "positions", "token_types")]
                kernels.embed(*ids, weights.embeddings, rows(out))
            case Norm(residual, change, change_norm, role, keeps, out):
                kernels.norm(
                    rows(residual).values,
                    rows(change).values if change else None,
                    weights.norms[change_norm] if change_norm else None,
                    weights.norms[role],
                    keeps,
                    rows(out) if out else None,
                )
            case Linear(roles, source, out):
                kernels.linear(rows(source), weights.linears[roles], rows(out))
            case Rotate(values, rope, num_queries, num_keys, query_norm, key_norm):
                kernels.rotate(
                    rows(values).values,
                    run.of_rows("positions", values),
                    weights.rotations[rope] if rope else None,
                    self._shape,
                    num_queries,
                    num_keys,
                    weights.norms[query_norm] if query_norm else None,
                    weights.norms[key_norm] if key_norm else None,
                )
            case Attend(query, key_value, window, out):
                kernels.attend(
                    rows(query).values,
                    rows(key_value).values,
                    run.of_rows("tiles", query),
                    self._shape,
                    window,
                    weights.position_bias,
                    rows(out).values,
                )
            case Quantize(source, out):
                kernels.quantize(rows(source).values, rows(out))
            case Activate(source, out):
                encoder = self._spec.encoder
                kernels.activate(
                    rows(source).values, encoder.activation, encoder.is_gated, rows(out)
                )
            case TakePooled(source, out):
                _take(rows(source), run.parts["pooled_rows"], rows(out))


@dataclass(frozen=True)
class _Run:
    """A batch and the memory it is computed in."""

    batch: DeviceBatch
    workspace: Workspace

    @property
    def parts(self) -> Mapping[str, torch.Tensor]:
        return self.batch.parts

    def rows(self, matrix: Matrix) -> Buffer:
        return self.workspace.rows(matrix, self.batch.layout)

    def of_rows(self, part: str, matrix: Matrix) -> torch.Tensor:
        """The part of the batch that belongs to a matrix's kind of rows."""
        return self.parts[part if matrix.rows == "token" else f"pooled_{part}"]


def _take(source: Buffer, rows: torch.Tensor, out: Buffer) -> None:
    """Copy rows; torch gathers bytes of FP8 where it has no kernel for FP8."""
    if source.scales is None or out.scales is None:
        torch.index_select(source.values, 0, rows, out=out.values)
        return
    codes, taken = source.values.view(torch.uint8), out.values.view(torch.uint8)
    torch.index_select(codes, 0, rows, out=taken)
    torch.index_select(source.scales, 0, rows, out=out.scales)
