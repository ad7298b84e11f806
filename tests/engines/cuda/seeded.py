"""Random numbers for kernels."""

from __future__ import annotations

import torch


def numbers(device: torch.device, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return random numbers, seeded by the shape: the same in every run."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(device, dtype)
