from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tensorrt_llm._torch.modules.linear import Linear


class GatedMLP(nn.Module):
    def __init__(
        self,
        *,
        hidden_size: int,
        intermediate_size: int,
        bias: bool,
        dtype: torch.dtype | None = None,
        config: Any = None,
    ) -> None:
        super().__init__()

        def linear(in_features: int, out_features: int, num_parts: int) -> Linear:
            return Linear(
                in_features,
                out_features,
                bias,
                dtype,
                quant_config=config.get_quant_config(),
                skip_create_weights_in_init=config.skip_create_weights_in_init,
                num_parts=num_parts,
            )

        self.gate_up_proj = linear(hidden_size, 2 * intermediate_size, 2)
        self.down_proj = linear(intermediate_size, hidden_size, 1)

    def forward(self, values: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(values).chunk(2, dim=-1)
        return self.down_proj(functional.silu(gate) * up)
