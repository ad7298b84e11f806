"""Weights of measured models: seeded numbers, made on the device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

import torch

from embedlib.models.weights.tensor_roles import encoder_shapes
from tests.acceptance.gpu.models import Shape

BIAS_SCALE: Final = 0.1
HUGE_TOKEN: Final = 1000.0
HUGE_CHANNEL: Final = 2.0
"""Times the root of the hidden size: 128 for a model of 7 billion numbers, beside which all other
channels together are small."""
CHANNEL: Final = 7
"""Some channel of the residual."""


class SeededWeights(Mapping[str, torch.Tensor]):
    """Weights made when they are asked for, the same for a role on one kind of device.

    A product's outcome is as large as its input, and what all layers together add to the residual
    as large as an embedding: every part shows in the vectors, and no error grows from layer to
    layer as it would in wilder numbers.
    """

    def __init__(
        self,
        shape: Shape,
        device: torch.device,
        *,
        has_marks: bool = False,
        has_outliers: bool = False,
    ) -> None:
        """Make the mapping; no number is drawn yet.

        Args:
            shape: the model.
            device: where they are made. A CPU and a GPU draw different numbers.
            has_marks: the last token is not a number, and the one before it is huge.
            has_outliers: one channel of the residual is huge from the first layer on.
        """
        encoder = shape.spec.encoder
        self._shapes = encoder_shapes(encoder)
        self._num_layers = encoder.num_layers
        self._device = device
        self._has_marks = has_marks
        self._has_outliers = has_outliers

    def __getitem__(self, role: str) -> torch.Tensor:
        """Return one tensor, bfloat16."""
        shape = self._shapes[role]
        if role.endswith("norm.weight"):
            return torch.ones(shape, device=self._device, dtype=torch.bfloat16)
        seed = sorted(self._shapes).index(role)
        generator = torch.Generator(self._device).manual_seed(seed)
        values = torch.randn(shape, generator=generator, device=self._device, dtype=torch.float32)
        if role.startswith("layers."):
            values *= BIAS_SCALE if len(shape) == 1 else 1 / math.sqrt(shape[1])
        if role.endswith(("o.weight", "down.weight")):
            values /= math.sqrt(2 * self._num_layers)
        if self._has_marks and role == "tokens":
            values[-1] = math.nan
            values[-2] *= HUGE_TOKEN
        if self._has_outliers and role == "layers.0.down.weight":
            values[CHANNEL] *= HUGE_CHANNEL * math.sqrt(shape[0])
        return values.to(torch.bfloat16)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the roles."""
        return iter(self._shapes)

    def __len__(self) -> int:
        """Return the number of roles."""
        return len(self._shapes)
