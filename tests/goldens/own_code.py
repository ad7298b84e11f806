"""Classes of models that transformers does not have, from a copy of their authors' code.

`new` is huggingface.co/Alibaba-NLP/new-impl, whose configuration.py and modeling.py must be in one
folder; `gte` is the same code under different names. The goldens were made with its copy in
github.com/xuhaike/SparseCL at 14fcd8b, folder sparsecl/gte, which adds training code at the end.
"""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification
from transformers.dynamic_module_utils import get_class_from_dynamic_module

FILES = ("configuration.py", "modeling.py")
MODEL_TYPES = ("new", "gte")


class GivenRope:
    """Keeps two keys as in the file; transformers 5 would merge them into one."""

    rope_theta = property(lambda self: self.__dict__.get("given_rope_theta"))
    rope_scaling = property(lambda self: self.__dict__.get("given_rope_scaling"))

    def __setattr__(self, key: str, value: object) -> None:
        """Set an attribute."""
        if key in ("rope_theta", "rope_scaling"):
            self.__dict__[f"given_{key}"] = value
        else:
            super().__setattr__(key, value)


def register(folder: Path) -> dict[str, str]:
    """Register the classes in transformers; return the SHA-256 of the files they come from."""
    base = get_class_from_dynamic_module("configuration.NewConfig", str(folder))
    pretrained = get_class_from_dynamic_module("modeling.NewPreTrainedModel", str(folder))
    # transformers 5 calls it after it has loaded the weights, which it would overwrite.
    pretrained._init_weights = lambda self, module: None
    for model_type in MODEL_TYPES:
        # transformers 5 replaces the constructor of a class that does not define one.
        given = {"model_type": model_type, "__init__": base.__init__}
        config = type(model_type, (GivenRope, base), given)
        AutoConfig.register(model_type, config)
        for auto, name in (
            (AutoModel, "NewModel"),
            (AutoModelForSequenceClassification, "NewForSequenceClassification"),
        ):
            kind = get_class_from_dynamic_module(f"modeling.{name}", str(folder))
            auto.register(config, type(name, (kind,), {"config_class": config}))
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES}


def default_values(model_type: str) -> dict[str, Any]:
    """Return the defaults of the configuration class."""
    kind = type(AutoConfig.for_model(model_type)).__mro__[2]
    parameters = inspect.signature(kind.__init__).parameters.values()
    return {
        parameter.name: parameter.default
        for parameter in parameters
        if isinstance(parameter.default, (str, int, float, bool, type(None)))
    }


def make_buffers(model: torch.nn.Module) -> None:
    """Compute the buffers that the files do not contain and transformers 5 leaves empty."""
    for module in model.modules():
        if hasattr(module, "_init_rope"):
            config = model.config
            module._init_rope(config)
            positions = torch.arange(config.max_position_embeddings)
            module.register_buffer("position_ids", positions, persistent=False)
