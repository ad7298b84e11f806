"""`LayerChoices`: embeds texts with any linear layers of a model kept out of 8 bits."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, cast

from embedlib.engines.kind import EngineKind, EnginePlan
from embedlib.engines.registry import OWN_KINDS
from embedlib.fidelity.measure import lowered
from embedlib.fidelity.model import MeasuredModel
from embedlib.fidelity.outputs import Embedded
from embedlib.fidelity.remembered import RememberedVectors
from embedlib.fidelity.search import Unit
from embedlib.fidelity.texts import FidelityTexts
from embedlib.models.compiled.compile import compile_model
from embedlib.models.compiled.int8 import INT8_GROUPS
from embedlib.models.reading.files import ModelFiles
from embedlib.models.spec import Encoder
from embedlib.models.weights.load import load_weights
from embedlib.models.weights.tensor_roles import (
    FUSED_LAYERS,
    encoder_shapes,
    linear_roles,
    linear_weights,
)

MAX_UNITS: Final = 48
"""Maximum units, up to rounding; the search measures each one alone. In a model with more layers,
neighbors of one kind share a unit."""
SEARCHED_WEIGHTS: Final = 4_000_000_000
"""The weights of a model times the units of its layers that a search measures alone: some
four minutes of two cores for BERT-large. Source: docs/fidelity.md, which layers are kept."""
MIN_UNITS: Final = 12
"""Chosen: the lower and the upper half of the layers, for each of the six kinds that most models
have."""
SearchedPrecision = Literal["int8", "int8-g128", "fp8"]


class LayerChoices:
    """Implements `search.Choices` on an engine that takes weights from memory.

    The model is compiled and opened once. Each measurement that is not remembered builds an engine
    from those 8-bit weights, with the kept layers taken from the model's own weights.
    """

    def __init__(
        self, model: MeasuredModel, plan: EnginePlan, remembered: RememberedVectors
    ) -> None:
        """Compile the model unless the cache has it, then open the compiled and its own weights.

        Args:
            model: the model.
            plan: the engine, its device and the 8-bit precision.
            remembered: what need not be computed again.
        """
        open_weights = plan.kind.open_weights
        assert open_weights is not None, "only searched engines get here; a bug in embedlib"
        precision = cast(SearchedPrecision, plan.precision.name)
        self.precision: str = precision
        self.kept_in = plan.kind.precisions[-1]
        # int8 engines compute layer by layer; FP8 engines compute some layers as one matrix.
        fused = () if precision in INT8_GROUPS else FUSED_LAYERS
        self.units = layer_units(model.files, fused, most_units(model.files.spec.encoder))
        self._model = model
        self._plan = plan
        self._remembered = remembered
        self._own = load_weights(model.files)
        folder = compile_model(model.files, precision, (), model.config)
        self._compiled = open_weights(model.files, folder, plan)

    def embed(self, kept: Collection[str], texts: FidelityTexts) -> Embedded:
        """Return the vectors of texts with these layers kept in the higher precision."""
        return self._remembered.get(self.precision, kept, texts, lambda: self._compute(kept, texts))

    def _compute(self, kept: Collection[str], texts: FidelityTexts) -> Embedded:
        own = {f"{layer}.weight": self._own[f"{layer}.weight"] for layer in kept}
        # The model's own weights come last: a compiled int8 model lacks a head that is made of the
        # rows of two answer words.
        sources: tuple[Any, ...] = (own, self._compiled, self._own)
        precision = replace(self._plan.precision, excluded=tuple(kept))
        plan = replace(self._plan, precision=precision)
        return self._model.embed(lowered(self._model, ChainMap(*sources), plan), texts)


def searching_kinds() -> dict[str, EngineKind]:
    """Return for each precision that has a search the engine on which it runs."""
    return {name: kind for kind in OWN_KINDS for name in kind.searched_precisions}


def most_units(encoder: Encoder) -> int:
    """Return into how many units a search divides the layers: fewer of a larger model."""
    return min(MAX_UNITS, max(MIN_UNITS, SEARCHED_WEIGHTS // linear_weights(encoder)))


def layer_units(
    files: ModelFiles, fused: Sequence[Sequence[str]], max_units: int = MAX_UNITS
) -> tuple[Unit, ...]:
    """Group the linear layers: those computed as one matrix, in large models some neighbors too.

    Args:
        files: the model.
        fused: kinds of layers that the engine computes as one matrix.
        max_units: maximum number of units, up to rounding.
    """
    kinds: dict[str, dict[str, list[str]]] = {}
    for layer in linear_roles(files.spec.encoder):  # layers.3.q
        stem, _, leaf = layer.rpartition(".")
        kind = next((group[0] for group in fused if leaf in group), leaf)
        kinds.setdefault(kind, {}).setdefault(stem, []).append(layer)
    blocks = [list(stems.values()) for stems in kinds.values()]
    size = math.ceil(sum(map(len, blocks)) / max_units)
    shapes = encoder_shapes(files.spec.encoder)
    units = []
    for members in blocks:
        for start in range(0, len(members), size):
            chosen = tuple(layer for block in members[start : start + size] for layer in block)
            count = sum(math.prod(shapes[f"{layer}.weight"]) for layer in chosen)
            units.append(Unit(chosen, count))
    return tuple(units)
