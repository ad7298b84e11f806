"""Choices of layers on one model, in int8 and in FP8; see `search.Choices`."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from embedlib.config import EngineName
from embedlib.engines.make import EnginePlan
from embedlib.fidelity.measure import cpu_engine
from embedlib.fidelity.model import MeasuredModel
from embedlib.fidelity.outputs import Embedded
from embedlib.fidelity.search import Choices, Unit
from embedlib.fidelity.texts import FidelityTexts
from embedlib.models.compiled.cache import int8_weights
from embedlib.models.compiled.checkpoint import FUSED_LAYERS, linear_layers
from embedlib.models.compiled.compile import compile_model
from embedlib.models.reading.files import ModelFiles
from embedlib.models.weights.load import load_weights
from embedlib.models.weights.tensor_roles import encoder_shapes

if TYPE_CHECKING:
    from embedlib.engines.cuda.engine_directory import DirectoryWeights

MAX_UNITS: Final = 48
"""Tried one by one. A model of more layers has neighbours of one kind tried together."""
SearchedPrecision = Literal["int8", "fp8"]
ENGINES: Final[Mapping[SearchedPrecision, EngineName]] = MappingProxyType(
    {"int8": "openvino", "fp8": "cuda"}
)
"""Which engine a precision's layers are searched on."""
RESIDENT_SHARE: Final = 1 / 3
"""Of a GPU's free memory, which the model in FP8 may fill between measurements. The rest is for an
engine: its own copies of fused layers, and kept layers, which take twice the bytes; an estimate."""


class Int8Choices:
    """On the CPU engine."""

    precision = "int8"
    kept_in = "float32"

    def __init__(self, model: MeasuredModel) -> None:
        """Compile the model, unless the cache has it, and map it and its own weights."""
        self.units = layer_units(model.files, ())
        self._model = model
        self._floats = load_weights(model.files)
        self._codes = int8_weights(compile_model(model.files, "int8", (), model.config))

    def embed(self, kept: Collection[str], texts: FidelityTexts) -> Embedded:
        """Return vectors with these layers in float32."""
        weights: dict[str, Any] = {
            f"{layer}.weight": self._floats[f"{layer}.weight"] for layer in kept
        }
        # The model's own weights come last: int8 has no head that is made of answers' rows.
        sources: tuple[Any, ...] = (weights, self._codes, self._floats)
        return self._model.embed(cpu_engine(self._model, ChainMap(*sources)), texts)


class Fp8Choices:
    """On the engine of our own, on a GPU or emulated.

    The model is read once: its FP8 numbers wait on the GPU, if there is room, and each measurement
    builds an engine around them and brings the kept layers. Without room each brings all of it.
    """

    precision = "fp8"
    kept_in = "bf16"

    def __init__(self, model: MeasuredModel, device: str) -> None:
        """Compile the model, unless the cache has it, and bring it to the device."""
        from embedlib.engines.cuda.engine_directory import open_weights

        self.units = layer_units(model.files, FUSED_LAYERS)
        self._model = model
        self._device = device
        self._floats = load_weights(model.files)
        folder = compile_model(model.files, "fp8", (), model.config)
        self._weights = dict(_on_device(open_weights(model.files, folder), device))

    def embed(self, kept: Collection[str], texts: FidelityTexts) -> Embedded:
        """Return vectors with these layers in bfloat16."""
        from embedlib.engines.cuda.engine import CudaEngine

        weights: dict[str, Any] = {
            f"{layer}.weight": self._floats[f"{layer}.weight"] for layer in kept
        }
        engine = CudaEngine(
            self._model.files.spec,
            ChainMap(weights, self._weights),
            precision="fp8",
            excluded=kept,
            device=self._device,
            max_batch_tokens=self._model.config.max_batch_tokens,
            memory_fraction=self._model.config.gpu_memory_fraction,
        )
        return self._model.embed(engine, texts)


def open_choices(model: MeasuredModel, plan: EnginePlan) -> Choices:
    """Return the choices of a planned engine and precision."""
    if plan.precision.name == "int8":
        return Int8Choices(model)
    return Fp8Choices(model, plan.devices[0])


def layer_units(files: ModelFiles, fused: Sequence[Sequence[str]]) -> tuple[Unit, ...]:
    """Return what is kept together: layers computed as one, in large models a few neighbours too.

    Args:
        files: the model.
        fused: kinds of layers that the engine computes as one.
    """
    kinds: dict[str, dict[str, list[str]]] = {}
    for layer in linear_layers(files):  # layers.3.q
        stem, _, leaf = layer.rpartition(".")
        kind = next((group[0] for group in fused if leaf in group), leaf)
        kinds.setdefault(kind, {}).setdefault(stem, []).append(layer)
    blocks = [list(stems.values()) for stems in kinds.values()]
    size = math.ceil(sum(map(len, blocks)) / MAX_UNITS)
    shapes = encoder_shapes(files.spec.encoder)
    units = []
    for members in blocks:
        for start in range(0, len(members), size):
            chosen = tuple(layer for block in members[start : start + size] for layer in block)
            count = sum(math.prod(shapes[f"{layer}.weight"]) for layer in chosen)
            units.append(Unit(chosen, count))
    return tuple(units)


def _on_device(weights: DirectoryWeights, device: str) -> DirectoryWeights:
    """Return weights in a GPU's memory, or as they are if they take too much of it."""
    import torch

    from embedlib.engines.cuda.device_weights import Fp8Matrix

    if device == "cpu":
        return weights
    num_bytes = sum(
        part.nbytes
        for value in weights.values()
        for part in ((value.codes, value.scales) if isinstance(value, Fp8Matrix) else (value,))
    )
    if num_bytes > RESIDENT_SHARE * torch.cuda.mem_get_info(device)[0]:
        return weights
    return {
        role: Fp8Matrix(value.codes.to(device), value.scales.to(device))
        if isinstance(value, Fp8Matrix)
        else value.to(device)
        for role, value in weights.items()
    }
