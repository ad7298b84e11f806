from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tensorrt_llm._torch.autotuner import AutoTuner
from tensorrt_llm._torch.model_config import QuantConfig

E4M3_MAX = 448.0
FP8_ROWWISE = "FP8_PER_CHANNEL_PER_TOKEN"


class Linear(nn.Module):
    """One layer, or several fused ones; `create_weights` creates the parameters."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        dtype: torch.dtype | None = None,
        *,
        quant_config: QuantConfig | None = None,
        skip_create_weights_in_init: bool = False,
        force_dynamic_quantization: bool = False,
        num_parts: int = 1,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.has_bias = bias
        self.dtype = dtype
        self.quant_config = quant_config
        self.force_dynamic_quantization = force_dynamic_quantization
        self._num_parts = num_parts
        self._weights_created = False
        if not skip_create_weights_in_init:
            self.create_weights()

    @property
    def is_fp8(self) -> bool:
        algo = self.quant_config.quant_algo if self.quant_config else None
        assert algo in (None, FP8_ROWWISE), f"no linear method for {algo}"
        return algo is not None

    def create_weights(self) -> None:
        if self._weights_created:
            return
        self._weights_created = True
        shape = (self.out_features, self.in_features)
        kind = torch.float8_e4m3fn if self.is_fp8 else self.dtype
        self.weight = nn.Parameter(torch.empty(shape, dtype=kind), requires_grad=False)
        if self.is_fp8:
            scales = torch.empty(self.out_features, dtype=torch.float32)
            self.weight_scale = nn.Parameter(scales, requires_grad=False)
            self.input_scale = nn.Parameter(torch.tensor(1.0), requires_grad=False)
            self.inv_input_scale = nn.Parameter(torch.tensor(1.0), requires_grad=False)
        if self.has_bias:
            bias = torch.empty(self.out_features, dtype=self.dtype)
            self.bias = nn.Parameter(bias, requires_grad=False)
        else:
            self.register_parameter("bias", None)

    def load_weights(
        self, weights: list[dict[str, Tensor]], allow_partial_loading: bool = False
    ) -> None:
        assert isinstance(weights, list), "weights must be a list of dicts"
        assert len(weights) == self._num_parts, f"{self._num_parts} dicts are expected"
        self._copy("weight", [part["weight"] for part in weights])
        if self.has_bias:
            self._copy("bias", [part["bias"] for part in weights])
        # Missing scales are skipped.
        scales = [part["weight_scale"] for part in weights if "weight_scale" in part]
        if self.is_fp8 and len(scales) == len(weights):
            self._copy("weight_scale", scales)

    def _copy(self, name: str, parts: list[Tensor]) -> None:
        parameter = getattr(self, name)
        joined = torch.cat(parts) if len(parts) > 1 else parts[0]
        assert joined.shape == parameter.shape, f"{name}: {joined.shape} for {parameter.shape}"
        is_fp8 = parameter.dtype == torch.float8_e4m3fn
        assert (joined.dtype == torch.float8_e4m3fn) == is_fp8, f"{name} has {joined.dtype}"
        parameter.data.copy_(joined)

    def forward(self, values: Tensor) -> Tensor:
        assert values.dtype == self.dtype, f"{values.dtype} into a layer of {self.dtype}"
        weight, bias = self.weight, self.bias
        if not self.is_fp8:
            return functional.linear(values, weight, bias)
        AutoTuner.get().choose(f"{self.in_features} to {self.out_features}")
        # Each token has its own scale; the product is computed in higher precision.
        wide = values.float()
        scales = wide.abs().amax(-1, keepdim=True).clamp(min=1e-12) / E4M3_MAX
        rounded = (wide / scales).to(torch.float8_e4m3fn).float() * scales
        product = rounded @ (weight.float() * self.weight_scale[:, None]).T
        product = product.to(self.dtype)
        return product if bias is None else product + bias
