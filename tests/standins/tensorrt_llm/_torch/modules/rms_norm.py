from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    def __init__(self, *, hidden_size: int, eps: float, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size, dtype=dtype), requires_grad=False)
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor, residual: Any = ...) -> Any:
        if not isinstance(residual, Tensor):
            assert residual is ..., "a residual is a tensor, or is left out"
            return self._norm(hidden_states)
        # The kernel updates both arguments in place.
        residual.copy_(hidden_states.float() + residual.float())
        hidden_states.copy_(self._norm(residual))
        return hidden_states, residual

    def _norm(self, values: Tensor) -> Tensor:
        wide = values.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (wide * self.weight.float()).to(values.dtype)
