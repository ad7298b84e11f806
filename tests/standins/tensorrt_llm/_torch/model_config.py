from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


@dataclass
class QuantConfig:
    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    exclude_modules: list[str] | None = None


@dataclass
class ModelConfig:
    pretrained_config: Any
    quant_config: QuantConfig = field(default_factory=QuantConfig)
    mapping: Any = field(default_factory=lambda: SimpleNamespace(has_pp=lambda: False, tp_size=1))
    skip_create_weights_in_init: bool = True
    force_dynamic_quantization: bool = False
    attn_backend: str = "TRTLLM"

    def get_quant_config(self) -> QuantConfig:
        return self.quant_config
