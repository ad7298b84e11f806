"""Pooling: token vectors to one vector for each text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from embedlib.engines.openvino.graphs.nodes import (
    MASKED,
    float_constant,
    int_constant,
    int_input,
    nan_or_zero,
)
from embedlib.engines.openvino.library import op, ov
from embedlib.models.spec import Module, Pooling, PoolingMode


@dataclass(frozen=True)
class Tokens:
    """The tokens of a batch."""

    ids: ov.Node
    """int32[B, L], padded on the right."""
    seq_lens: ov.Node
    """int32[B]."""
    indices: ov.Node
    """int32[L]: 0, 1, 2 ..."""
    positions: ov.Node
    """int32[L]: the same behind the tokens of a kept prefix."""
    is_token: ov.Node
    """bool[B, L]: False on padding."""


@dataclass(frozen=True)
class Pooler:
    """Builds the nodes that pool the tokens of a batch."""

    tokens: Tokens
    inputs: list[ov.Node]
    """Those of the graph; one is added if pooling leaves the prompt out."""

    def only_place(self, pooling: Module | None) -> ov.Node | None:
        """Return int32[B, 1]: the index of the only token pooled; None if several are pooled.

        Args:
            pooling: the first module behind the transformer, if there is one.
        """
        if not isinstance(pooling, Pooling):
            return None
        if pooling.modes == ("cls",):
            place = self._first_token(pooling)
        elif pooling.modes == ("last_token",):
            place = self._last_token(pooling)
        else:
            return None
        return op.unsqueeze(place, int_constant(1))

    def pool(self, hidden: ov.Node, pooling: Pooling) -> ov.Node:
        """Pool token vectors float32[B, L, H] to float32[B, H * number of modes].

        Source: `Pooling._forward_padded` of sentence-transformers 6.2.
        """
        counted = self.tokens.is_token
        if not pooling.include_prompt:
            after = op.greater_equal(
                op.unsqueeze(self.tokens.positions, int_constant(0)),
                op.unsqueeze(self._num_prompt_tokens, int_constant(1)),
            )
            counted = op.logical_and(counted, after)
        vectors = [self._pool_mode(hidden, pooling, mode, counted) for mode in pooling.modes]
        return op.concat(vectors, 1) if len(vectors) > 1 else vectors[0]

    def _pool_mode(
        self, hidden: ov.Node, pooling: Pooling, mode: PoolingMode, counted: ov.Node
    ) -> ov.Node:
        if mode == "cls":
            return op.gather(hidden, self._first_token(pooling), int_constant(1), batch_dims=1)
        if mode == "last_token":
            return op.gather(hidden, self._last_token(pooling), int_constant(1), batch_dims=1)
        if mode == "max":
            shown = op.select(op.unsqueeze(counted, int_constant(2)), hidden, op.constant(MASKED))
            return op.add(op.reduce_max(shown, int_constant(1)), nan_or_zero(shown, 1))
        weight = op.convert(counted, "f32")
        if mode == "weighted_mean":
            weight = op.multiply(
                weight, op.convert(op.add(self.tokens.positions, int_constant(1)), "f32")
            )
        total = op.squeeze(
            op.matmul(op.unsqueeze(weight, int_constant(1)), hidden, False, False), int_constant(1)
        )
        divisor = op.maximum(op.reduce_sum(weight, int_constant(1), True), float_constant(1e-9))
        return op.divide(total, op.sqrt(divisor) if mode == "mean_sqrt_len" else divisor)

    @cached_property
    def _num_prompt_tokens(self) -> ov.Node:
        """The input int32[B] with the tokens at the start that pooling leaves out."""
        made = int_input("num_prompt_tokens", [-1])
        self.inputs.append(made)
        return made

    def _first_token(self, pooling: Pooling) -> ov.Node:
        """Return int32[B]: the position of the first token that is pooled.

        Source: `Pooling._forward_padded` of sentence-transformers 6.2: the argmax of the mask, so
        0 if the prompt is all there is.
        """
        if pooling.include_prompt:
            return op.subtract(self.tokens.seq_lens, self.tokens.seq_lens)
        has_more = op.less(self._num_prompt_tokens, self.tokens.seq_lens)
        return op.multiply(self._num_prompt_tokens, op.convert(has_more, "i32"))

    def _last_token(self, pooling: Pooling) -> ov.Node:
        """Return int32[B]: the position of the last token that is not skipped; 0 if all are.

        Source: `GenericForSequenceClassification` in transformers, modeling_layers.py.
        """
        if pooling.skipped_token_id is None:
            return op.subtract(self.tokens.seq_lens, int_constant(1))
        is_other = op.logical_and(
            self.tokens.is_token,
            op.not_equal(self.tokens.ids, int_constant(pooling.skipped_token_id)),
        )
        places = op.multiply(op.convert(is_other, "i32"), self.tokens.indices)
        return op.reduce_max(places, int_constant(1))
