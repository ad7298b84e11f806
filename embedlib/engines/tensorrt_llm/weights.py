"""Loads an engine directory's tensors into our model, and checks that nothing is left over.

TensorRT-LLM skips a parameter without a tensor and leaves its memory uninitialized. Here all
parameters are set to NaN first. A parameter that still contains NaN afterwards is an error, and so
is a tensor that no parameter used.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from embedlib.errors import ModelWeightsError
from embedlib.models.compiled.row_scales import SCALE_SUFFIX
from embedlib.models.families.table import ROWS
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.head_modules import AnswerRows
from embedlib.models.weights.load import MODULE_TENSORS
from embedlib.models.weights.tensor_roles import (
    encoder_shapes,
    tensor_name,
    tensor_prefix,
    tensor_rows,
)
from embedlib.models.weights.weight_files import WEIGHTS_NAME

CHECKED_NAMES: Final = ("weight", "bias", "weight_scale")
"""Parameters that a checkpoint fills; the others of an FP8 linear layer are constants."""
NAN_E4M3: Final = 0x7F


class RoleTensors:
    """The transformer's tensors in a checkpoint, by role; records which ones were taken."""

    def __init__(self, weights: Mapping[str, Any], files: ModelFiles) -> None:
        self._weights = weights
        self._names = set(weights.keys())
        self._family = ROWS[files.spec.encoder.family]
        self._shapes = encoder_shapes(files.spec.encoder)
        self._taken: set[str] = set()
        prefix = tensor_prefix(self._family, self._names)
        if prefix is None:
            anchor = tensor_name("tokens", self._family)
            raise ModelWeightsError(
                f"the engine directory has no tensor {anchor}; compile the model again"
            )
        self._prefix = prefix

    def __contains__(self, role: str) -> bool:
        return role in self._shapes

    def take(self, role: str) -> Tensor:
        """Return the tensor of a role and mark it as taken."""
        tensor = self._rows(role, "")
        if tuple(tensor.shape) != self._shapes[role]:
            raise ModelWeightsError(
                f"the engine directory's tensor for {role} has shape {list(tensor.shape)}; "
                f"expected: {list(self._shapes[role])}; compile the model again"
            )
        return tensor

    def take_linear(self, stem: str) -> dict[str, Tensor]:
        """Return the tensors of a linear layer: its weight, bias and scales."""
        found = {"weight": self.take(f"{stem}.weight")}
        if f"{stem}.bias" in self:
            found["bias"] = self.take(f"{stem}.bias")
        if found["weight"].dtype == torch.float8_e4m3fn:
            found["weight_scale"] = self._rows(f"{stem}.weight", SCALE_SUFFIX)
        return found

    def take_named(self, name: str) -> Tensor:
        """Return a tensor by name: one without a role, such as a head's; mark it as taken."""
        if name not in self._names:
            raise ModelWeightsError(
                f"the engine directory has no tensor {name}; compile the model again"
            )
        self._taken.add(name)
        tensor: Tensor = self._weights[name][:]  # slicing reads the tensor from the file
        return tensor

    def check_all_taken(self) -> None:
        """Reject tensors that were not taken, except those that the family ignores."""
        for name in sorted(self._names):
            is_ignored = any(fnmatchcase(name, pattern) for pattern in self._family.ignored_tensors)
            if name not in self._taken and not is_ignored:
                raise ModelWeightsError(
                    f"the engine directory has a tensor {name} that the model does not use; "
                    "compile the model again"
                )

    def _rows(self, role: str, suffix: str) -> Tensor:
        rows = tensor_rows(role, self._family)
        tensor = self.take_named(self._prefix + rows.name + suffix)
        return tensor.chunk(rows.count)[rows.index]


def fill_model(
    model: nn.Module,
    weights: Mapping[str, Any],
    files: ModelFiles,
    folder: Path,
    linear_roles: Mapping[str, tuple[str, ...]],
) -> None:
    """Fill all parameters of a model.

    Args:
        model: an `EmbeddingModel`.
        weights: the transformer's tensors by name.
        files: the model, or the engine directory.
        folder: the engine directory.
        linear_roles: the linear layers of a layer and the roles each computes.

    Raises:
        ModelWeightsError: if a tensor is missing, unexpected or of the wrong shape, or a parameter
            was not filled.
    """
    tensors = RoleTensors(weights, files)
    _poison(model)
    with torch.no_grad():
        _fill_transformer(model.model, tensors, linear_roles)
        _fill_head(model.head, tensors, files, folder)
    tensors.check_all_taken()
    _check_filled(model)


def _fill_transformer(
    transformer: Any, tensors: RoleTensors, linear_roles: Mapping[str, tuple[str, ...]]
) -> None:
    for name in ("tokens", "positions", "token_types"):
        if (table := getattr(transformer, name)) is not None:
            table.weight.copy_(tensors.take(name))
    for name in ("embedding_norm", "final_norm"):
        if (norm := getattr(transformer, name)) is not None:
            _fill_norm(norm, name, tensors)
    for index, layer in enumerate(transformer.layers):
        stem = f"layers.{index}."
        for name in ("attention_norm", "mlp_norm"):
            _fill_norm(getattr(layer, name), stem + name, tensors)
        for name in ("q_norm", "k_norm"):
            if f"{stem}{name}.weight" in tensors:
                _fill_norm(getattr(layer.attention, name), stem + name, tensors)
        for name, roles in linear_roles.items():
            linear = linear_of(layer, name)
            if linear is not None:
                parts = [tensors.take_linear(stem + role) for role in roles]
                linear.load_weights(weights=parts)


def linear_of(layer: Any, name: str) -> Any:
    """Return the linear layer with this name inside `layer`, or None if there is none."""
    outer, _, inner = name.partition(".")
    return getattr(getattr(layer, outer), inner, None)


def _fill_norm(norm: Any, stem: str, tensors: RoleTensors) -> None:
    norm.weight.copy_(tensors.take(f"{stem}.weight"))
    if f"{stem}.bias" in tensors:
        norm.bias.copy_(tensors.take(f"{stem}.bias"))


def _fill_head(head: Any, tensors: RoleTensors, files: ModelFiles, folder: Path) -> None:
    """Load the modules after the transformer, from their folders or the transformer's tensors."""
    for key, layer in head.layers.items():
        position = int(key)
        place = files.module_tensors.get(position)
        if place is None:
            found = _read_module(files, position, folder)
        elif isinstance(place, AnswerRows):
            found = {"weight": _answer_row(place, tensors)}
        else:
            names = [name for name, _ in layer.named_parameters()]
            found = {name: tensors.take_named(f"{place}.{name}") for name in names}
        for name, parameter in layer.named_parameters():
            if name in found:  # `_check_filled` reports the others
                parameter.copy_(found[name])


def _read_module(files: ModelFiles, position: int, folder: Path) -> dict[str, Tensor]:
    """Return the tensors of a module with its own folder, by leaf name."""
    directory = folder / files.module_dirs[position].relative_to(files.folder)
    stem = MODULE_TENSORS[type(files.spec.modules[position])] + "."
    stored = load_file(directory / WEIGHTS_NAME)
    return {name.removeprefix(stem): tensor for name, tensor in stored.items()}


def _answer_row(place: AnswerRows, tensors: RoleTensors) -> Tensor:
    """Return float[1, H]: the score's weights, the row of one answer minus that of the other."""
    matrix = tensors.take("tokens") if place.tensor is None else tensors.take_named(place.tensor)
    row = matrix[place.true_token_id].float()
    if place.false_token_id is not None:
        row = row - matrix[place.false_token_id].float()
    return row[None] / place.divisor


def _checked(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [
        (name, parameter)
        for name, parameter in model.named_parameters()
        if name.rpartition(".")[2] in CHECKED_NAMES
    ]


def _poison(model: nn.Module) -> None:
    for _, parameter in _checked(model):
        if parameter.dtype == torch.float8_e4m3fn:
            parameter.data.view(torch.uint8).fill_(NAN_E4M3)
        else:
            parameter.data.fill_(float("nan"))


def _check_filled(model: nn.Module) -> None:
    for name, parameter in _checked(model):
        values = parameter.data
        if values.dtype == torch.float8_e4m3fn:
            is_nan = (values.view(torch.uint8) & NAN_E4M3) == NAN_E4M3
        else:
            is_nan = values.isnan()
        if bool(is_nan.any()):
            raise ModelWeightsError(
                f"the parameter {name} was not filled from the engine directory; this version of "
                "TensorRT-LLM loads weights in a different way"
            )
