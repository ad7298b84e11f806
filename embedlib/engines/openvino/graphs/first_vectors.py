"""What the first layer reads: the vectors of token ids, positions and types."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embedlib.engines.openvino.graphs.nodes import float_constant, int_constant, int_input
from embedlib.engines.openvino.graphs.pooling import Tokens
from embedlib.engines.openvino.graphs.weighted import Weighted
from embedlib.engines.openvino.library import op, ov
from embedlib.models.spec import ModelSpec
from embedlib.models.weights.tensor_roles import ArraysByRole


@dataclass(frozen=True)
class FirstVectors:
    """Builds the nodes that look up the vectors of a batch's tokens."""

    spec: ModelSpec
    weights: ArraysByRole
    weighted: Weighted
    tokens: Tokens
    inputs: list[ov.Node]
    """Those of the graph; one is added if the model reads pairs and types."""

    def hidden(self) -> ov.Node:
        """Return the input of the first layer: float32[B, L, H]."""
        encoder = self.spec.encoder
        hidden = op.gather(self.weighted.constant("tokens"), self.tokens.ids, int_constant(0))
        if encoder.embedding_scale != 1:
            hidden = op.multiply(hidden, float_constant(encoder.embedding_scale))
        if encoder.has_position_table:
            table = self.weighted.constant("positions")
            if encoder.pad_token_id is None:
                rows = op.add(self.tokens.positions, int_constant(encoder.position_offset))
            else:
                rows = self._positions_past_padding(encoder.pad_token_id)
            hidden = op.add(hidden, op.gather(table, rows, int_constant(0)))
        head = self.spec.head
        if encoder.num_token_types > 1 and head is not None and head.has_token_types:
            hidden = op.add(hidden, self._token_types())
        elif encoder.num_token_types:
            # One text is one segment: every token is of type 0.
            hidden = op.add(hidden, self._first_row("token_types"))
        if encoder.num_task_types:
            hidden = op.add(hidden, self._first_row("task_types"))
        if encoder.norm_placement == "post" or encoder.norms_embeddings:
            hidden = self.weighted.norm(encoder.norm, hidden, "embedding_norm", encoder.norm_eps)
        if encoder.embedding_size is not None:
            hidden = self.weighted.linear(hidden, "embedding_projection")
        return hidden

    def _first_row(self, role: str) -> ov.Node:
        """Return the first row of a table, for every token: float32[H]."""
        return op.constant(np.ascontiguousarray(self.weights[role][0]))

    def _token_types(self) -> ov.Node:
        """Return each token's type vector: float32[B, L, H]; a pair's second text has type 1."""
        num_type0_tokens = int_input("num_type0_tokens", [-1])
        self.inputs.append(num_type0_tokens)
        is_second = op.greater_equal(
            op.unsqueeze(self.tokens.positions, int_constant(0)),
            op.unsqueeze(num_type0_tokens, int_constant(1)),
        )
        types = op.convert(is_second, "i32")
        return op.gather(self.weighted.constant("token_types"), types, int_constant(0))

    def _positions_past_padding(self, pad_token_id: int) -> ov.Node:
        """Return position ids int32[B, L]: counted from pad_token_id + 1, skipping padding tokens.

        This differs from plain counting only if a text contains the padding token. Source:
        `create_position_ids_from_input_ids` in transformers, models/roberta.
        """
        counts = op.convert(op.not_equal(self.tokens.ids, int_constant(pad_token_id)), "i32")
        counts = op.multiply(op.cumsum(counts, int_constant(1)), counts)
        return op.add(counts, int_constant(pad_token_id))
