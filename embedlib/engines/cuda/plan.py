"""A plan: the kernel launches of one forward pass, as data.

It lists the steps and the matrices that they read and write. `lowering.py` builds it from a
ModelSpec, `groups.py` divides it where another batch may be launched in between, and `executor.py`
executes it.

Every matrix has one row per token of the packed batch (T rows), or one row per pooled token
(P rows). Rows never mix outside attention and pooling, so nothing is ever padded.

The steps of a layer, for x + f(norm(x)) in FP8 (a bracket is one kernel):

    [norm, quantize] -> [qkv] -> [rotate] -> [attend] -> [quantize] -> [o]
    [add, norm, quantize] -> [gate and up] -> [activate, quantize] -> [down]

In bfloat16 the steps are the same without quantization. The first kernel of the next layer adds
the last change of a layer.

A plan may compute the P rows a second time, in bfloat16 beside the T rows in FP8. Each kind has its
own residual; attention reads the keys and values of a pooled token from its bfloat16 row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from embedlib.models.encoder_parts import Rope
from embedlib.models.spec import PoolingMode

RowKind = Literal["token", "pooled"]
NumberKind = Literal["plan", "fp8", "float32"]


@dataclass(frozen=True)
class Matrix:
    """A matrix that steps write and read, [T or P, columns]; equal objects share memory."""

    name: str
    columns: int
    rows: RowKind = "token"
    numbers: NumberKind = "plan"
    """plan: the number type that the engine computes in; fp8: with a float32 scale per row."""

    @property
    def is_fp8(self) -> bool:
        """Whether the matrix is FP8 and has scales."""
        return self.numbers == "fp8"


@dataclass(frozen=True)
class Embed:
    """out = tokens[id] * embedding_scale + positions[position] + token_types[type]."""

    out: Matrix


@dataclass(frozen=True)
class Norm:
    """s = residual + change, n = norm(s); out = n; residual = s, n or unchanged.

    With sandwich norms the change is first normed itself.
    """

    residual: Matrix
    change: Matrix | None
    change_norm: str | None
    role: str
    keeps: Literal["sum", "norm", "nothing"]
    out: Matrix | None
    """None: the next step reads the residual, which holds the norm."""


@dataclass(frozen=True)
class Linear:
    """out = source @ weight.T + bias; the weights of several roles are concatenated by rows."""

    roles: tuple[str, ...]
    source: Matrix
    out: Matrix

    @property
    def weight(self) -> tuple[tuple[str, ...], bool]:
        """The key of its weight: the roles, and whether it is in FP8."""
        return self.roles, self.source.is_fp8


@dataclass(frozen=True)
class Rotate:
    """Rotate queries and keys by their positions, in place; first norm them if a role is given."""

    values: Matrix
    rope: Rope | None
    num_query_heads: int
    """Query heads, in the first columns; the key heads follow."""
    num_key_heads: int
    query_norm: str | None
    key_norm: str | None


@dataclass(frozen=True)
class NormColumns:
    """Norm the columns of every row from `start` to `stop`, in place."""

    values: Matrix
    start: int
    stop: int
    role: str


@dataclass(frozen=True)
class MultiplyDistances:
    """out = the products of heads with the vectors of distances, see `RelativePositions`."""

    source: Matrix
    start: int
    """The first of the columns that hold the heads, one behind the other."""
    role: str
    """The layer that projects the vectors: of keys for queries, of queries for keys."""
    out: Matrix
    """Per head as many columns as there are vectors; written where a batch needs them."""


@dataclass(frozen=True)
class Attend:
    """out = softmax(cap(scale * (q k^T + d)) + bias) v over the visible keys, for every head.

    With relative positions, d is the query's product with the vector of the distance, plus the
    key's; else it is 0.
    """

    query: Matrix
    """Its first columns are the queries."""
    key_value: Matrix
    """Its last columns are keys and values."""
    window: int | None
    out: Matrix
    layer: int = field(compare=False)
    """Selects the kept keys (`prefixes`); steps that differ only in the layer are equal."""
    by_distance: tuple[Matrix, ...] = ()
    """The products of queries and of keys with the vectors of distances; empty: there are none."""


@dataclass(frozen=True)
class Quantize:
    """out = source in FP8, with a scale per row."""

    source: Matrix
    out: Matrix


@dataclass(frozen=True)
class Activate:
    """out = act(gate) * up of the columns [gate, up], or act(source) without a gate."""

    source: Matrix
    out: Matrix


@dataclass(frozen=True)
class ChooseExperts:
    """out = the shares of the experts that a token chooses, and 0 for the others; see `Experts`."""

    source: Matrix
    role: str
    out: Matrix


@dataclass(frozen=True)
class ActivateExperts:
    """values = act(values) times the expert's share, in place, for the columns of every expert."""

    values: Matrix
    shares: Matrix


@dataclass(frozen=True)
class Convolve:
    """out = c * y of the columns [b, c, x], y the weighted sum of b * x beside a token.

    See `Convolutions`.
    """

    source: Matrix
    role: str
    out: Matrix


@dataclass(frozen=True)
class TakePooled:
    """out = the pooled rows of source."""

    source: Matrix
    out: Matrix


@dataclass(frozen=True)
class PutPooled:
    """The pooled rows of out = the last columns of source, as many as out has."""

    source: Matrix
    out: Matrix


@dataclass(frozen=True)
class KeepKeys:
    """Keep the last columns of source, keys and values, for later batches."""

    source: Matrix
    layer: int


Step = (
    Embed
    | Norm
    | Linear
    | NormColumns
    | Rotate
    | MultiplyDistances
    | Attend
    | Quantize
    | Activate
    | ChooseExperts
    | ActivateExperts
    | Convolve
    | TakePooled
    | PutPooled
    | KeepKeys
)


@dataclass(frozen=True)
class Plan:
    """A forward pass up to the hidden vectors; the executor adds pooling and the later modules."""

    layers: tuple[tuple[Step, ...], ...]
    """The steps of each layer; the first begins with the embedding, the last ends with the final
    norm."""
    hidden: Matrix
    """The result: one row per token, or per pooled token."""
    pooled_modes: tuple[PoolingMode, ...]
    """The pooling mode of each pooled row of a sequence; empty if all tokens are needed."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps in order."""
        return tuple(chain.from_iterable(self.layers))
