from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, Generic, TypeVar

from torch import nn

from tensorrt_llm._torch.model_config import QuantConfig

TModel = TypeVar("TModel")
TConfig = TypeVar("TConfig")

MODEL_CLASS_MAPPING: dict[str, type] = {}


def register_auto_model(name: str) -> Callable[[type], type]:
    def decorate(cls: type) -> type:
        MODEL_CLASS_MAPPING[name] = cls
        return cls

    return decorate


class PostInitCaller(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = type.__call__(cls, *args, **kwargs)
        made.__post_init__()
        made.__pp_init__()
        return made


class DecoderModelForCausalLM(nn.Module, Generic[TModel, TConfig], metaclass=PostInitCaller):
    def __init__(self, model: Any, *, config: Any, hidden_size: int, vocab_size: int) -> None:
        raise AssertionError("this constructor creates a language-model head")

    def __pp_init__(self) -> None:
        assert not self.model_config.mapping.has_pp()

    def __post_init__(self) -> None:
        quant_config = self.model_config.quant_config
        for name, module in self.named_modules():
            # Fused layers have names that no checkpoint lists, so no pattern matches them.
            excluded = quant_config.exclude_modules or []
            if any(fnmatchcase(name, pattern) for pattern in excluded) and getattr(
                module, "quant_config", None
            ):
                module.quant_config = QuantConfig()
        for _, module in self.named_modules():
            if callable(getattr(module, "create_weights", None)):
                module.create_weights()

    @property
    def config(self) -> Any:
        return self.model_config.pretrained_config

    def infer_max_seq_len(self) -> int:
        longest = getattr(self.config, "max_position_embeddings", None)
        return 2048 if longest is None else longest
