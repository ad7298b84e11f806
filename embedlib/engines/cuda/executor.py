"""Executes a plan: looks up each step's matrices and weights and launches its kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType

import numpy as np
import torch
from torch.nn import functional

from embedlib.engines.cuda import reference
from embedlib.engines.cuda.attention import Varlen, attend_rows
from embedlib.engines.cuda.buffers import Buffer, Workspace
from embedlib.engines.cuda.device_weights import DeviceWeights
from embedlib.engines.cuda.distances import ByDistance, Distances
from embedlib.engines.cuda.groups import Group, Part
from embedlib.engines.cuda.inputs import Ints, Layout
from embedlib.engines.cuda.plan import (
    Activate,
    ActivateExperts,
    Attend,
    ChooseExperts,
    Convolve,
    Embed,
    KeepKeys,
    Linear,
    Matrix,
    MultiplyDistances,
    Norm,
    NormColumns,
    Plan,
    PutPooled,
    Quantize,
    Rotate,
    TakePooled,
)
from embedlib.engines.cuda.reference import AttentionShape, Prefix
from embedlib.models.spec import (
    Dense,
    Encoder,
    LayerNorm,
    ModelSpec,
    Normalize,
    Pooling,
    RoundTanh,
)


@dataclass(frozen=True)
class DeviceBatch:
    """A batch on the device; `inputs.Layout` lists its parts."""

    layout: Layout
    parts: Mapping[str, torch.Tensor]
    ends: Ints | None
    """cu_seqlens on the host; None if our kernel must compute attention: in a recorded batch, whose
    lengths change, and after a kept prefix."""
    longest: int
    """No sequence has more tokens."""


def device_batch(values: torch.Tensor, layout: Layout, ends: Ints | None = None) -> DeviceBatch:
    """Return the parts of int32[layout.size] as views."""
    shapes = layout.shapes
    parts = {name: values[place].view(shapes[name]) for name, place in layout.places.items()}
    longest = layout.num_tokens if ends is None else int(np.diff(ends).max())
    return DeviceBatch(layout, parts, ends, longest)


@dataclass(eq=False)
class Executor:
    """Runs the steps of one plan with its weights, on any batch."""

    spec: ModelSpec
    plan: Plan
    weights: DeviceWeights
    kernels: ModuleType
    """It has one function per step: `reference` or `kernels`."""
    served_whole: Mapping[Attend, Varlen] = field(default_factory=dict)
    """Attention steps of long batches that another function than our kernel computes, with that
    function."""
    prefix_keys: Sequence[torch.Tensor] = ()
    """Memory for the kept keys and values of each layer; empty: none are kept."""

    @cached_property
    def _shape(self) -> AttentionShape:
        return attention_shape(self.spec.encoder)

    def run(self, group: Group, batch: DeviceBatch, workspace: Workspace) -> None:
        """Launch a group of steps, which continue from the current state of the workspace."""
        run = _Run(batch, workspace)
        for part in group:
            self._launch(part, run)

    def finish(self, batch: DeviceBatch, workspace: Workspace) -> torch.Tensor:
        """Compute float32[B, D], or [T, D] without pooling, from the hidden vectors.

        The modules after the transformer are small; torch's own kernels compute them in float32.
        """
        hidden = workspace.rows(self.plan.hidden, batch.layout).values
        vectors = hidden
        for position, module in enumerate(self.spec.modules):
            if isinstance(module, Pooling):
                vectors = self._pool(hidden, batch, module)
            elif isinstance(module, Dense):
                weight, bias = self.weights.modules[position]
                vectors = functional.linear(vectors, weight, bias)
                vectors = reference.apply(vectors, module.activation)
            elif isinstance(module, LayerNorm):
                weight, bias = self.weights.modules[position]
                vectors = functional.layer_norm(vectors, weight.shape, weight, bias, module.eps)
            elif isinstance(module, Normalize):
                vectors = functional.normalize(vectors, dim=-1)
            elif isinstance(module, RoundTanh):
                vectors = torch.round(torch.tanh(vectors) * 127)
        return vectors

    def _pool(self, hidden: torch.Tensor, batch: DeviceBatch, pooling: Pooling) -> torch.Tensor:
        num_columns = len(pooling.modes) * hidden.shape[1]
        if self.plan.pooled_modes:
            return hidden.view(batch.layout.num_seqs, num_columns)
        vectors = hidden.new_empty((batch.layout.num_seqs, num_columns))
        left_out = None if pooling.include_prompt else batch.parts["num_prompt_tokens"]
        parts = batch.parts
        self.kernels.pool(hidden, parts["cu_seqlens"], left_out, pooling.modes, vectors)
        return vectors

    def _launch(self, part: Part, run: _Run) -> None:
        kernels, weights, rows = self.kernels, self.weights, run.rows
        step, cut = part.step, part.cut
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
            case Linear(_, source, out):
                weight = weights.linears[step.weight]
                kernels.linear(_cut(rows(source), cut), weight, _cut(rows(out), cut))
            case NormColumns(values, start, stop, role):
                columns = rows(values).values[:, start:stop]
                kernels.norm(columns, None, None, weights.norms[role], "norm", None)
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
            case MultiplyDistances(source, start, role, out):
                heads = _cut(rows(source), cut).values[:, start : start + self._shape.query_columns]
                needed = self._distances.needed(run.batch.longest)
                vectors = self._distances.vectors[role]
                kernels.multiply_distances(heads, vectors, needed, _cut(rows(out), cut).values)
            case Attend():
                self._attend(step, cut, run)
            case Quantize(source, out):
                kernels.quantize(rows(source).values, rows(out))
            case Activate(source, out):
                encoder = self.spec.encoder
                kernels.activate(
                    rows(source).values, encoder.activation, encoder.is_gated, rows(out)
                )
            case ChooseExperts(source, role, out):
                router, experts = weights.routers[role], self.spec.encoder.experts
                assert experts is not None, "the plan has steps for them; this is a bug in embedlib"
                kernels.choose_experts(
                    rows(source).values, router, experts.num_chosen, rows(out).values
                )
            case ActivateExperts(values, shares):
                activation = self.spec.encoder.activation
                kernels.activate_experts(rows(values).values, rows(shares).values, activation)
            case Convolve(source, role, out):
                convolution = weights.convolutions[role]
                positions = run.parts["positions"]
                kernels.convolve(rows(source).values, positions, convolution, rows(out).values)
            case TakePooled(source, out):
                _take(rows(source), run.parts["pooled_rows"], rows(out))
            case KeepKeys(source, layer):
                kept, found = self.prefix_keys[layer], rows(source).values
                kept[: len(found)] = found[:, -kept.shape[1] :]
            case PutPooled(source, out):
                last_columns = rows(source).values[:, -out.columns :]
                rows(out).values[run.parts["pooled_rows"]] = last_columns

    def _attend(self, step: Attend, cut: slice | None, run: _Run) -> None:
        query, key_value, out = (
            run.rows(matrix).values for matrix in (step.query, step.key_value, step.out)
        )
        varlen, batch = self.served_whole.get(step), run.batch
        if varlen is not None and batch.ends is not None:
            ends = batch.ends, batch.parts["cu_seqlens"]
            attend_rows(varlen, query, key_value, *ends, cut, self._shape, step.window, out)
            return
        tiles, prefix = run.of_rows("tiles", step.query), None
        if self.prefix_keys:
            num_kept = run.of_rows("tile_prefixes", step.query)
            num_kept = num_kept if cut is None else num_kept[cut]
            prefix = Prefix(self.prefix_keys[step.layer], num_kept)
        by_distance = None
        if step.by_distance:
            products = (run.rows(matrix).values for matrix in step.by_distance)
            by_distance = ByDistance(self._distances.rows, *products)
        self.kernels.attend(
            query,
            key_value,
            tiles if cut is None else tiles[cut],
            batch.layout.tile_queries if step.query.rows == "token" else 1,
            self._shape,
            step.window,
            self.weights.position_bias,
            out,
            prefix,
            by_distance,
        )

    @property
    def _distances(self) -> Distances:
        found = self.weights.distances
        assert found is not None, "the plan has steps for them; this is a bug in embedlib"
        return found


def attention_shape(encoder: Encoder) -> AttentionShape:
    """Return the attention parameters that all layers share."""
    return AttentionShape(
        num_heads=encoder.num_heads,
        num_kv_heads=encoder.num_kv_heads,
        head_dim=encoder.head_dim,
        scale=encoder.score_scale,
        cap=encoder.attention_cap,
        is_causal=encoder.is_causal,
    )


@dataclass(frozen=True)
class _Run:
    """A batch and the workspace it is computed in."""

    batch: DeviceBatch
    workspace: Workspace

    @property
    def parts(self) -> Mapping[str, torch.Tensor]:
        return self.batch.parts

    def rows(self, matrix: Matrix) -> Buffer:
        return self.workspace.rows(matrix, self.batch.layout)

    def of_rows(self, part: str, matrix: Matrix) -> torch.Tensor:
        """Return the part of the batch for a matrix's kind of rows: all tokens or pooled ones."""
        return self.parts[part if matrix.rows == "token" else f"pooled_{part}"]


def _cut(buffer: Buffer, cut: slice | None) -> Buffer:
    """Return the rows of a matrix in `cut`; all of them for None."""
    if cut is None:
        return buffer
    return Buffer(buffer.values[cut], None if buffer.scales is None else buffer.scales[cut])


def _take(source: Buffer, rows: torch.Tensor, out: Buffer) -> None:
    """Copy rows; FP8 is gathered as bytes, since torch has no kernel for it on every device."""
    if source.scales is None or out.scales is None:
        torch.index_select(source.values, 0, rows, out=out.values)
        return
    codes, taken = source.values.view(torch.uint8), out.values.view(torch.uint8)
    torch.index_select(codes, 0, rows, out=taken)
    torch.index_select(source.scales, 0, rows, out=out.scales)
