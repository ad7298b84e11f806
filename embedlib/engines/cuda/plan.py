"""A plan: the kernel launches of one forward pass, as data.

It says which matrices there are, and which step reads and writes which. `lowering.py` makes it of
a ModelSpec, `groups.py` says where the GPU may be given to somebody else, `executor.py` carries it
out.

All matrices have one row per token of the packed batch, T rows, or one row per token that pooling
takes, P rows. Rows never mix outside attention and pooling, so nothing is ever padded.

The steps of a layer, for x + f(norm(x)) in FP8 (a bracket is one kernel):

    [norm, quantize] -> [qkv] -> [rotate] -> [attend] -> [quantize] -> [o]
    [add, norm, quantize] -> [gate and up] -> [activate, quantize] -> [down]

In bfloat16 the same steps without their quantization. The addition of a layer's last change falls
into the first kernel of the next layer.

A plan may compute the P rows a second time, in bfloat16 beside the T rows in FP8. Both have a
residual of their own; what attention reads of a pooled token comes from its row in bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from embedlib.models.spec import PoolingMode, Rope

RowKind = Literal["token", "pooled"]
NumberKind = Literal["plan", "fp8", "float32"]


@dataclass(frozen=True)
class Matrix:
    """A matrix that steps write and read, [T or P, columns]; equal ones are the same memory."""

    name: str
    columns: int
    rows: RowKind = "token"
    numbers: NumberKind = "plan"
    """plan: the number type that the engine computes in; fp8: with a float32 scale per row."""

    @property
    def is_fp8(self) -> bool:
        """Whether it has scales."""
        return self.numbers == "fp8"


@dataclass(frozen=True)
class Embed:
    """out = tokens[id] * embedding_scale + positions[position] + token_types[type]."""

    out: Matrix


@dataclass(frozen=True)
class Norm:
    """s = residual + change, n = norm(s); out = n, and residual = s or n or stays as it was.

    With sandwich the change goes through a norm of its own first.
    """

    residual: Matrix
    change: Matrix | None
    change_norm: str | None
    role: str
    keeps: Literal["sum", "norm", "nothing"]
    out: Matrix | None
    """None: the next step reads the residual, which is the norm."""


@dataclass(frozen=True)
class Linear:
    """out = source @ weight.T + bias; the weights of several roles stand one below the other."""

    roles: tuple[str, ...]
    source: Matrix
    out: Matrix

    @property
    def weight(self) -> tuple[tuple[str, ...], bool]:
        """What tells its weight from others: the roles, and whether it is in FP8."""
        return self.roles, self.source.is_fp8


@dataclass(frozen=True)
class Rotate:
    """Turn queries and keys by their positions, in place; norm them before where roles say so."""

    values: Matrix
    rope: Rope | None
    num_query_heads: int
    """Heads at the first columns; those of keys follow."""
    num_key_heads: int
    query_norm: str | None
    key_norm: str | None


@dataclass(frozen=True)
class Attend:
    """out = softmax(cap(scale * q k^T) + bias, where visible) v, for every head."""

    query: Matrix
    """Its first columns are the queries."""
    key_value: Matrix
    """Its last columns are keys and values."""
    window: int | None
    out: Matrix
    layer: int = field(compare=False)
    """Whose kept keys come before these (`prefixes`); steps that differ here alone are alike."""


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
class TakePooled:
    """out = the rows of source that pooling takes."""

    source: Matrix
    out: Matrix


@dataclass(frozen=True)
class PutPooled:
    """The rows of out that pooling takes = the last columns of source, as many as out has."""

    source: Matrix
    out: Matrix


@dataclass(frozen=True)
class KeepKeys:
    """The last columns of source, keys and values, are kept for later batches."""

    source: Matrix
    layer: int


Step = (
    Embed
    | Norm
    | Linear
    | Rotate
    | Attend
    | Quantize
    | Activate
    | TakePooled
    | PutPooled
    | KeepKeys
)


@dataclass(frozen=True)
class Plan:
    """A forward pass up to the hidden vectors; pooling and what follows is the executor's end."""

    layers: tuple[tuple[Step, ...], ...]
    """The steps of each layer; the first begins with the embedding, the last ends with the final
    norm."""
    hidden: Matrix
    """The result: one row per token, or per pooled token."""
    pooled_modes: tuple[PoolingMode, ...]
    """What a sequence's pooled rows are; empty where all tokens are needed to the end."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps in order."""
        return tuple(chain.from_iterable(self.layers))
