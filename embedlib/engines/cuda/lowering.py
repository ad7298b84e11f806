"""Lowers a ModelSpec to a plan, without torch and without weights.

**What is skipped.** If only the first or the last token of a sequence is pooled, the last layer
needs keys and values of all tokens, but queries, output projection and MLP only of the pooled
tokens. For a model of 32 layers this saves 3 % of all work, and the vectors are the same.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Literal

from embedlib.engines.cuda.plan import (
    Activate,
    ActivateExperts,
    Attend,
    ChooseExperts,
    Convolve,
    Embed,
    Linear,
    Matrix,
    MultiplyDistances,
    Norm,
    NormColumns,
    Plan,
    PutPooled,
    Quantize,
    Rotate,
    RowKind,
    Step,
    TakePooled,
)
from embedlib.engines.cuda.support import check_supported
from embedlib.models.compiled.pooled_rows import pooled_modes
from embedlib.models.spec import Encoder, ModelSpec


def build_plan(
    spec: ModelSpec, quantized: Collection[str] = (), *, splits_pooled: bool = False
) -> Plan:
    """Return the plan of a model.

    Args:
        spec: the model.
        quantized: roles of linear layers in FP8; q, k, v of a layer only together, and so gate, up.
        splits_pooled: compute the pooled rows without FP8, see `models.compiled.pooled_rows`.

    Raises:
        EngineUnsupportedError: the plan cannot express the spec.
    """
    return _PlanBuilder(spec, frozenset(quantized), splits_pooled).build()


class _PlanBuilder:
    """Builds one plan; the fields are shared by all layers."""

    def __init__(self, spec: ModelSpec, quantized: frozenset[str], splits_pooled: bool) -> None:
        self.spec = spec
        self.encoder = spec.encoder
        self.quantized = quantized
        self.query_columns = self.encoder.num_heads * self.encoder.head_dim
        self.key_columns = self.encoder.num_kv_heads * self.encoder.head_dim
        self.pooled_modes = pooled_modes(spec)
        self.splits_pooled = splits_pooled
        self.tokens = _Rows(self.encoder, "token", quantized)
        self.pooled = _Rows(self.encoder, "pooled", frozenset() if splits_pooled else quantized)

    def build(self) -> Plan:
        check_supported(self.spec, self.quantized, splits_pooled=self.splits_pooled)
        layers = [self._layer(layer) for layer in range(self.encoder.num_layers)]
        layers[0] = [*self._begin(), *layers[0]]
        rows = self.pooled if self.pooled_modes else self.tokens
        return Plan(tuple(map(tuple, layers)), rows.hidden, self.pooled_modes)

    def _begin(self) -> list[Step]:
        """Return the embedding and the norm before the first layer."""
        steps: list[Step] = [Embed(self.tokens.residual)]
        if self.splits_pooled:
            steps += [TakePooled(self.tokens.residual, self.pooled.residual), self.pooled.begin()]
        return [*steps, self.tokens.begin()]

    def _layer(self, layer: int) -> list[Step]:
        """Return one layer, from its normed input to the normed input of the next layer."""
        is_last = bool(self.pooled_modes) and layer == self.encoder.num_layers - 1
        is_convolved = self.tokens.is_convolved(layer)
        if is_last and not is_convolved:
            return [*self._last_attention(layer), *self.pooled.behind_attention(layer)]
        steps = self._convolution(layer) if is_convolved else self._attention(layer)
        if not is_last:
            steps += self.tokens.behind_attention(layer)
        elif not self.splits_pooled:
            steps.append(TakePooled(self.tokens.residual, self.pooled.residual))
        if is_last or self.splits_pooled:
            steps += [
                TakePooled(self.tokens.mixed(layer), self.pooled.mixed(layer)),
                *self.pooled.behind_attention(layer),
            ]
        return steps

    def _attention(self, layer: int) -> list[Step]:
        """Return the steps from the normed input to the concatenated heads' outputs, all tokens."""
        qkv = Matrix("qkv", self.query_columns + 2 * self.key_columns)
        return [
            *self._project(layer, tuple(f"layers.{layer}.{leaf}" for leaf in "qkv"), qkv),
            *self._rotate(layer, qkv, self.encoder.num_heads, self.encoder.num_kv_heads),
            *self._attend(layer, qkv, qkv, self.tokens.mixed(layer)),
        ]

    def _convolution(self, layer: int) -> list[Step]:
        """Return the steps from the normed input to the output of a convolution, all tokens."""
        thirds = Matrix("thirds", 3 * self.encoder.hidden_size)
        return [
            *self._project(layer, (f"layers.{layer}.conv_in",), thirds),
            Convolve(thirds, f"layers.{layer}.conv", self.tokens.mixed(layer)),
        ]

    def _project(self, layer: int, roles: tuple[str, ...], out: Matrix) -> list[Step]:
        """Return a layer's first product, for all tokens."""
        steps: list[Step] = [Linear(roles, self.tokens.attention_input(layer), out)]
        if self.splits_pooled:
            own = replace(out, rows="pooled")
            steps += [Linear(roles, self.pooled.attention_input(layer), own), PutPooled(own, out)]
        return steps

    def _last_attention(self, layer: int) -> list[Step]:
        """Return the same steps with queries of pooled tokens only, and keys of all tokens."""
        q, k, v = (f"layers.{layer}.{leaf}" for leaf in "qkv")
        normed, taken = (rows.attention_input(layer) for rows in (self.tokens, self.pooled))
        key_value = Matrix("key_value", 2 * self.key_columns)
        steps: list[Step] = [Linear((k, v), normed, key_value)]
        if self.splits_pooled:
            query = Matrix("qkv", self.query_columns + key_value.columns, "pooled")
            steps += [Linear((q, k, v), taken, query), PutPooled(query, key_value)]
        else:
            query = Matrix("query", self.query_columns, "pooled")
            steps.append(TakePooled(self.tokens.residual, self.pooled.residual))
            if taken != self.pooled.residual:
                steps.append(TakePooled(normed, taken))
            steps.append(Linear((q,), taken, query))
        return [
            *steps,
            *self._rotate(layer, key_value, 0, self.encoder.num_kv_heads),
            *self._rotate(layer, query, self.encoder.num_heads, 0),
            *self._attend(layer, query, key_value, self.pooled.mixed(layer)),
        ]

    def _attend(self, layer: int, query: Matrix, key_value: Matrix, out: Matrix) -> list[Step]:
        """Return attention, behind what relative positions add to its scores."""
        relative = self.encoder.relative_positions
        products: list[MultiplyDistances] = []
        if relative is not None:
            columns = self.encoder.num_heads * 2 * relative.num_buckets
            keys_start = key_value.columns - 2 * self.key_columns
            by_query, by_key = Matrix("by_query", columns, query.rows), Matrix("by_key", columns)
            products = [
                MultiplyDistances(query, 0, f"layers.{layer}.k", by_query),
                MultiplyDistances(key_value, keys_start, f"layers.{layer}.q", by_key),
            ]
        window = self.encoder.windows[layer]
        by_distance = tuple(step.out for step in products)
        return [*products, Attend(query, key_value, window, out, layer, by_distance)]

    def _rotate(self, layer: int, values: Matrix, num_queries: int, num_keys: int) -> list[Step]:
        encoder = self.encoder
        rope = encoder.rope_of(encoder.windows[layer])
        query_norm, key_norm = (
            f"layers.{layer}.{leaf}_norm" if encoder.has_qk_norm and count else None
            for leaf, count in (("q", num_queries), ("k", num_keys))
        )
        norms: list[Step] = []
        if encoder.qk_norm_joins_heads:
            middle, end = (
                count * encoder.head_dim for count in (num_queries, num_queries + num_keys)
            )
            norms += [NormColumns(values, 0, middle, query_norm)] if query_norm else []
            norms += [NormColumns(values, middle, end, key_norm)] if key_norm else []
            query_norm = key_norm = None
        if rope is None and query_norm is None and key_norm is None:
            return norms
        return [*norms, Rotate(values, rope, num_queries, num_keys, query_norm, key_norm)]


class _Rows:
    """Builds the steps for one kind of rows, in the precision of these rows."""

    def __init__(self, encoder: Encoder, rows: RowKind, quantized: frozenset[str]) -> None:
        self.encoder = encoder
        self.rows = rows
        self.quantized = quantized
        self.is_post = encoder.norm_placement == "post"
        self.residual = Matrix("residual", encoder.hidden_size, rows)
        self.convolved = encoder.convolutions.layers if encoder.convolutions else ()

    @property
    def hidden(self) -> Matrix:
        """The result, in float32 to save one more rounding of the vectors."""
        return Matrix("hidden", self.encoder.hidden_size, self.rows, "float32")

    def begin(self) -> Norm:
        """Return the norm before the first layer."""
        is_normed = self.is_post or self.encoder.norms_embeddings
        role = "embedding_norm" if is_normed else "layers.0.attention_norm"
        out = self._input("normed", self.encoder.hidden_size, self._first_role(0))
        return self._norm(None, None, role, out, keeps_norm=is_normed)

    def is_convolved(self, layer: int) -> bool:
        """Whether a layer has a convolution in place of attention."""
        return layer in self.convolved

    def mixed(self, layer: int) -> Matrix:
        """Return the matrix that a layer's attention, or its convolution, writes."""
        encoder = self.encoder
        of_heads = encoder.num_heads * encoder.head_dim
        columns = encoder.hidden_size if self.is_convolved(layer) else of_heads
        return Matrix("mixed", columns, self.rows)

    def attention_input(self, layer: int) -> Matrix:
        """Return the matrix that q, k and v read, or the convolution in their place."""
        return self._source(self._first_role(layer))

    def behind_attention(self, layer: int) -> list[Step]:
        """Return the steps from the heads' outputs to the normed input of the next layer."""
        encoder = self.encoder
        prefix = f"layers.{layer}."
        is_last = layer == encoder.num_layers - 1
        is_sandwich = encoder.norm_placement == "sandwich"
        change = Matrix("change", encoder.hidden_size, self.rows)
        first_norm, second_norm = "mlp_norm", f"layers.{layer + 1}.attention_norm"
        if self.is_post:
            first_norm, second_norm = "attention_norm", prefix + "mlp_norm"
        elif is_last:
            second_norm = "final_norm"
        out = self.hidden
        if not is_last:
            out = self._input("normed", encoder.hidden_size, self._first_role(layer + 1))
        inner: list[Step] = []
        if encoder.norms_attention_twice:
            role = prefix + "attention_out_norm"
            inner.append(Norm(self.residual, change, None, role, "nothing", change))
        return [
            *self._output(layer, change),
            *inner,
            self._norm(
                change,
                prefix + "attention_out_norm" if is_sandwich else None,
                prefix + first_norm,
                self._input("normed", encoder.hidden_size, prefix + "up"),
                keeps_norm=self.is_post,
            ),
            *self._mlp(prefix, change),
            self._norm(
                change,
                prefix + "mlp_out_norm" if is_sandwich else None,
                second_norm,
                out,
                keeps_norm=self.is_post,
            ),
        ]

    def _norm(
        self,
        change: Matrix | None,
        change_norm: str | None,
        role: str,
        out: Matrix,
        *,
        keeps_norm: bool,
    ) -> Norm:
        keeps: Literal["sum", "norm", "nothing"] = "norm" if keeps_norm else "sum"
        if (change is None and not keeps_norm) or out == self.hidden:
            keeps = "nothing"
        is_written = keeps != "norm" or out.is_fp8
        return Norm(self.residual, change, change_norm, role, keeps, out if is_written else None)

    def _output(self, layer: int, change: Matrix) -> list[Step]:
        """Return the output projection; in FP8 after a quantization, which attention lacks."""
        role = f"layers.{layer}.{'conv_out' if self.is_convolved(layer) else 'o'}"
        mixed = self.mixed(layer)
        if role not in self.quantized:
            return [Linear((role,), mixed, change)]
        codes = replace(mixed, numbers="fp8")
        return [Quantize(mixed, codes), Linear((role,), codes, change)]

    def _first_role(self, layer: int) -> str:
        """Return a role of the linear layers that a layer begins with; they are all FP8 or none."""
        return f"layers.{layer}.{'conv_in' if self.is_convolved(layer) else 'q'}"

    def _mlp(self, prefix: str, change: Matrix) -> list[Step]:
        """Return the steps from the normed input to the change of the residual."""
        inner, experts = self.encoder.intermediate_size, self.encoder.experts
        if experts is not None and prefix in {f"layers.{layer}." for layer in experts.layers}:
            return self._experts(prefix, change, experts.count)
        roles = (prefix + "gate", prefix + "up") if self.encoder.is_gated else (prefix + "up",)
        wide = Matrix("wide", inner * len(roles), self.rows)
        active = self._input("active", inner, prefix + "down")
        return [
            Linear(roles, self._source(prefix + "up"), wide),
            Activate(wide, active),
            Linear((prefix + "down",), active, change),
        ]

    def _experts(self, prefix: str, change: Matrix, count: int) -> list[Step]:
        """Return the same of a layer with experts: all compute every token, times 0 or its share.

        That is more work than the chosen ones have, and no row moves.
        """
        source = self._source(prefix + "up")
        wide = Matrix("wide_experts", count * self.encoder.intermediate_size, self.rows)
        shares = Matrix("shares", count, self.rows, "float32")
        return [
            ChooseExperts(source, prefix + "router", shares),
            Linear((prefix + "experts_up",), source, wide),
            ActivateExperts(wide, shares),
            Linear((prefix + "experts_down",), wide, change),
        ]

    def _input(self, name: str, columns: int, role: str) -> Matrix:
        """Return the matrix that a linear layer reads, in FP8 if the layer is."""
        return Matrix(name, columns, self.rows, "fp8" if role in self.quantized else "plan")

    def _source(self, role: str) -> Matrix:
        """Return what a linear layer after a norm reads: the residual if that holds the norm."""
        matrix = self._input("normed", self.encoder.hidden_size, role)
        is_normed = self.is_post or (self.encoder.norms_embeddings and role == self._first_role(0))
        return self.residual if is_normed and not matrix.is_fp8 else matrix
