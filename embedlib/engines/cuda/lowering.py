"""From a ModelSpec to a plan, without torch and without weights.

**What is not computed.** Where only the first or the last token of a sequence is pooled, the last
layer needs the keys and values of all tokens, but queries, output projection and MLP of the pooled
ones alone. For a model of 32 layers that is 3 % of everything, and the vectors are the same.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal

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
    RowKind,
    Step,
    TakePooled,
)
from embedlib.errors import EngineUnsupportedError
from embedlib.models.spec import Encoder, ModelSpec, Pooling, PoolingMode

FP8_MULTIPLE: Final = 16
"""Rows and columns of an FP8 weight. Source: `_scaled_mm_cuda` in PyTorch,
aten/src/ATen/native/cuda/Blas.cpp: the trailing dimensions must be divisible by 16."""
MAX_HEAD_DIM: Final = 256
"""A tile of queries, keys and values of larger heads does not fit into shared memory."""
SINGLE_TOKEN_MODES: Final[frozenset[PoolingMode]] = frozenset({"cls", "last_token"})
FUSED: Final = (("q", "k", "v"), ("gate", "up"))
"""Linear layers of one input, computed as one matrix."""


def linear_roles(encoder: Encoder) -> tuple[str, ...]:
    """Return the roles of the transformer's linear layers: `layers.0.q` and so on."""
    leaves = ("q", "k", "v", "o", *(("gate",) if encoder.is_gated else ()), "up", "down")
    return tuple(f"layers.{layer}.{leaf}" for layer in range(encoder.num_layers) for leaf in leaves)


def build_plan(spec: ModelSpec, quantized: Collection[str] = ()) -> Plan:
    """Return the plan of a model.

    Args:
        spec: the model.
        quantized: roles of linear layers in FP8; q, k, v and gate, up of a layer only together.

    Raises:
        EngineUnsupportedError: the plan cannot say what the spec asks for.
    """
    return _PlanBuilder(spec, frozenset(quantized)).build()


class _PlanBuilder:
    """Builds one plan; the fields are what many layers share."""

    def __init__(self, spec: ModelSpec, quantized: frozenset[str]) -> None:
        self.encoder = spec.encoder
        self.quantized = quantized
        self.query_columns = self.encoder.num_heads * self.encoder.head_dim
        self.key_columns = self.encoder.num_kv_heads * self.encoder.head_dim
        pooling = next((m for m in spec.modules if isinstance(m, Pooling)), None)
        modes = pooling.modes if pooling else ()
        self.pooling = pooling
        self.pooled_modes = modes if modes and SINGLE_TOKEN_MODES.issuperset(modes) else ()
        self.is_post = self.encoder.norm_placement == "post"
        self.residual = Matrix("residual", self.encoder.hidden_size)

    def build(self) -> Plan:
        self._check()
        layers = [self._layer(layer) for layer in range(self.encoder.num_layers)]
        layers[0] = [*self._begin(), *layers[0]]
        rows: RowKind = "pooled" if self.pooled_modes else "token"
        return Plan(tuple(map(tuple, layers)), self._hidden(rows), self.pooled_modes)

    def _hidden(self, rows: RowKind) -> Matrix:
        """The result: in float32, so that a vector is not rounded once more at its end."""
        return Matrix("hidden", self.encoder.hidden_size, rows, "float32")

    def _begin(self) -> list[Step]:
        """Embeddings and the norm in front of the first layer."""
        is_normed = self.is_post or self.encoder.norms_embeddings
        role = "embedding_norm" if is_normed else "layers.0.attention_norm"
        out = self._input("normed", self.encoder.hidden_size, "token", "layers.0.q")
        return [
            Embed(self.residual),
            self._norm(self.residual, None, None, role, out, keeps_norm=is_normed),
        ]

    def _layer(self, layer: int) -> list[Step]:
        """One layer, from its normed input to the normed input of what follows."""
        encoder = self.encoder
        prefix = f"layers.{layer}."
        is_last = layer == encoder.num_layers - 1
        rows: RowKind = "pooled" if is_last and self.pooled_modes else "token"
        is_sandwich = encoder.norm_placement == "sandwich"
        residual = Matrix("residual", encoder.hidden_size, rows)
        change = Matrix("change", encoder.hidden_size, rows)

        steps = self._attention(prefix, encoder.windows[layer], rows)
        mixed = Matrix("mixed", self.query_columns, rows)
        steps += self._linear(prefix, ("o",), mixed, change)

        first_norm = "attention_norm" if self.is_post else "mlp_norm"
        change_norm = prefix + "attention_out_norm" if is_sandwich else None
        normed = self._input("normed", encoder.hidden_size, rows, prefix + "up")
        steps.append(
            self._norm(
                residual, change, change_norm, prefix + first_norm, normed, keeps_norm=self.is_post
            )
        )

        steps += self._mlp(prefix, rows, change)

        if self.is_post:
            role = prefix + "mlp_norm"
        else:
            role = "final_norm" if is_last else f"layers.{layer + 1}.attention_norm"
        if is_last:
            out = self._hidden(rows)
        else:
            out = self._input("normed", encoder.hidden_size, rows, f"layers.{layer + 1}.q")
        change_norm = prefix + "mlp_out_norm" if is_sandwich else None
        step = self._norm(residual, change, change_norm, role, out, keeps_norm=self.is_post)
        return [*steps, step]

    def _norm(
        self,
        residual: Matrix,
        change: Matrix | None,
        change_norm: str | None,
        role: str,
        out: Matrix,
        *,
        keeps_norm: bool,
    ) -> Norm:
        keeps: Literal["sum", "norm", "nothing"] = "norm" if keeps_norm else "sum"
        if (change is None and not keeps_norm) or out == self._hidden(residual.rows):
            keeps = "nothing"
        is_written = keeps != "norm" or out.is_fp8
        return Norm(residual, change, change_norm, role, keeps, out if is_written else None)

    def _attention(self, prefix: str, window: int | None, rows: RowKind) -> list[Step]:
        """From the normed input to the heads' outputs side by side."""
        encoder = self.encoder
        normed = self._source("normed", encoder.hidden_size, "token", prefix + "q")
        both = self.query_columns + 2 * self.key_columns
        mixed = Matrix("mixed", self.query_columns, rows)
        if rows == "token":
            qkv = Matrix("qkv", both)
            return [
                Linear((prefix + "q", prefix + "k", prefix + "v"), normed, qkv),
                *self._rotate(prefix, qkv, window, encoder.num_heads, encoder.num_kv_heads),
                Attend(qkv, qkv, window, mixed),
            ]
        key_value = Matrix("key_value", 2 * self.key_columns)
        query = Matrix("query", self.query_columns, "pooled")
        taken = Matrix(normed.name, normed.columns, "pooled", normed.numbers)
        residual = Matrix("residual", encoder.hidden_size, "pooled")
        steps: list[Step] = [
            Linear((prefix + "k", prefix + "v"), normed, key_value),
            *self._rotate(prefix, key_value, window, 0, encoder.num_kv_heads),
            TakePooled(self.residual, residual),
        ]
        if taken != residual:
            steps.append(TakePooled(normed, taken))
        return [
            *steps,
            Linear((prefix + "q",), taken, query),
            *self._rotate(prefix, query, window, encoder.num_heads, 0),
            Attend(query, key_value, window, mixed),
        ]

    def _rotate(
        self, prefix: str, values: Matrix, window: int | None, num_queries: int, num_keys: int
    ) -> list[Step]:
        encoder = self.encoder
        rope = encoder.rope
        if window is not None and encoder.window_rope is not None:
            rope = encoder.window_rope
        if rope is None and not encoder.has_qk_norm:
            return []
        query_norm, key_norm = (
            f"{prefix}{leaf}_norm" if encoder.has_qk_norm and count else None
            for leaf, count in (("q", num_queries), ("k", num_keys))
        )
        return [Rotate(values, rope, num_queries, num_keys, query_norm, key_norm)]

    def _mlp(self, prefix: str, rows: RowKind, change: Matrix) -> list[Step]:
        """From the normed input to the change of the residual."""
        encoder = self.encoder
        inner = encoder.intermediate_size
        normed = self._source("normed", encoder.hidden_size, rows, prefix + "up")
        roles = (prefix + "gate", prefix + "up") if encoder.is_gated else (prefix + "up",)
        wide = Matrix("wide", inner * len(roles), rows)
        active = self._input("active", inner, rows, prefix + "down")
        return [
            Linear(roles, normed, wide),
            Activate(wide, active),
            Linear((prefix + "down",), active, change),
        ]

    def _linear(
        self, prefix: str, leaves: tuple[str, ...], source: Matrix, out: Matrix
    ) -> list[Step]:
        """A linear layer on a matrix that its maker could not quantize."""
        roles = tuple(prefix + leaf for leaf in leaves)
        if roles[0] not in self.quantized:
            return [Linear(roles, source, out)]
        codes = Matrix(source.name, source.columns, source.rows, "fp8")
        return [Quantize(source, codes), Linear(roles, codes, out)]

    def _input(self, name: str, columns: int, rows: RowKind, role: str) -> Matrix:
        """Return the matrix that a linear layer reads, in FP8 where the layer is."""
        return Matrix(name, columns, rows, "fp8" if role in self.quantized else "plan")

    def _source(self, name: str, columns: int, rows: RowKind, role: str) -> Matrix:
        """Return what a linear layer behind a norm reads: the residual where that is the norm."""
        matrix = self._input(name, columns, rows, role)
        is_normed = self.is_post or (self.encoder.norms_embeddings and role == "layers.0.q")
        if is_normed and not matrix.is_fp8:
            return Matrix("residual", columns, rows)
        return matrix

    def _check(self) -> None:
        """Refuse what the kernels cannot do."""
        encoder = self.encoder
        if encoder.head_dim > MAX_HEAD_DIM:
            raise EngineUnsupportedError(
                f"engine cuda: head_dim = {encoder.head_dim}; its attention kernel allows at most "
                f"{MAX_HEAD_DIM}; use engine='openvino'"
            )
        if self.pooling and self.pooling.skipped_token_id is not None and not self.pooled_modes:
            raise EngineUnsupportedError(
                f"engine cuda: skipped_token_id with the pooling modes "
                f"{', '.join(self.pooling.modes)}; it goes with last_token and cls alone"
            )
        if encoder.num_layers < 1:
            raise EngineUnsupportedError("engine cuda: num_layers = 0; it needs at least 1")
        _check_quantized(encoder, self.quantized)


def _check_quantized(encoder: Encoder, quantized: frozenset[str]) -> None:
    """Refuse FP8 layers that are not fused or not of a size that the matrix units take."""
    hidden, inner = encoder.hidden_size, encoder.intermediate_size
    queries, keys = (
        heads * encoder.head_dim for heads in (encoder.num_heads, encoder.num_kv_heads)
    )
    sizes = {
        "q": (queries, hidden),
        "k": (keys, hidden),
        "v": (keys, hidden),
        "o": (hidden, queries),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
    }
    known = set(linear_roles(encoder))
    for role in sorted(quantized):
        stem, _, leaf = role.rpartition(".")
        if role not in known:
            raise EngineUnsupportedError(f"engine cuda: {role!r} is no linear layer of this model")
        if any(size % FP8_MULTIPLE for size in sizes[leaf]):
            raise EngineUnsupportedError(
                f"engine cuda: {role} is {sizes[leaf][0]} x {sizes[leaf][1]}; FP8 takes multiples "
                f"of {FP8_MULTIPLE}; use precision='bf16'"
            )
        for group in FUSED:
            fused = {f"{stem}.{other}" for other in group} & known
            if leaf in group and not fused <= quantized:
                raise EngineUnsupportedError(
                    f"engine cuda: {role} is FP8 and {min(fused - quantized)} is not; they are "
                    "computed as one matrix"
                )
