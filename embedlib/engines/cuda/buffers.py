"""Memory of a forward pass: every matrix of a plan, allocated once and reused by every batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

from embedlib.engines.cuda.inputs import Layout
from embedlib.engines.cuda.plan import Matrix, Plan

FP8: Final = torch.float8_e4m3fn


@dataclass(frozen=True)
class Buffer:
    """A matrix in device memory."""

    values: torch.Tensor
    """[rows, columns], rows contiguous."""
    scales: torch.Tensor | None = None
    """float32[rows, 1] if the values are FP8: row r means values[r] * scales[r]; None otherwise."""


def matrices(plan: Plan) -> tuple[Matrix, ...]:
    """Return every matrix that a plan writes, without duplicates."""
    found: dict[Matrix, None] = {}
    for step in plan.steps:
        for name in ("out", "residual", "values"):
            matrix = getattr(step, name, None)
            if isinstance(matrix, Matrix):
                found[matrix] = None
    return tuple(found)


class Workspace:
    """The matrices of a plan, for batches up to a maximum size."""

    def __init__(
        self, plan: Plan, max_tokens: int, max_seqs: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Allocate the memory.

        Args:
            plan: the plan whose matrices to allocate.
            max_tokens: maximum T of a batch.
            max_seqs: maximum B of a batch.
            dtype: the plan's number type.
            device: where to allocate.

        Raises:
            torch.OutOfMemoryError: the device has too little free memory.
        """
        room = Layout(max_tokens, max_seqs, len(plan.pooled_modes))
        types = {"plan": dtype, "fp8": FP8, "float32": torch.float32}
        buffers = {}
        for matrix in matrices(plan):
            num_rows = room.num_tokens if matrix.rows == "token" else room.num_pooled
            shape = (num_rows, matrix.columns)
            values = torch.empty(shape, dtype=types[matrix.numbers], device=device)
            scales = None
            if matrix.is_fp8:
                scales = torch.empty((num_rows, 1), dtype=torch.float32, device=device)
            buffers[matrix] = Buffer(values, scales)
        self._buffers: Mapping[Matrix, Buffer] = buffers
        self.max_tokens = max_tokens
        self.max_seqs = max_seqs

    def rows(self, matrix: Matrix, layout: Layout) -> Buffer:
        """Return the view of a matrix that has as many rows as the batch."""
        num_rows = layout.num_tokens if matrix.rows == "token" else layout.num_pooled
        buffer = self._buffers[matrix]
        scales = None if buffer.scales is None else buffer.scales[:num_rows]
        return Buffer(buffer.values[:num_rows], scales)
