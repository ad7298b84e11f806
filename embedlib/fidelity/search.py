"""`compile_to_gate`: int8 in as many layers as a wanted fidelity allows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.config import Config
from embedlib.engines.compiled.cache import int8_weights
from embedlib.engines.compiled.checkpoint import linear_layers
from embedlib.engines.compiled.compile import compile_model
from embedlib.engines.compiled.engine_folder import file_hashes, model_fingerprint
from embedlib.engines.compiled.fidelity_report import MIN_TEXTS, Gate, write_report
from embedlib.engines.int8 import int8_hardware
from embedlib.errors import ConfigError, EngineBuildError
from embedlib.fidelity.compare import Comparison, Embedded, Subject, compare, cosines, embed
from embedlib.fidelity.embedders import CPU_ENGINE, Weights, limited, on_cpu, versions
from embedlib.fidelity.texts import FidelityTexts, built_in_texts
from embedlib.models.files import ModelFiles
from embedlib.models.weights import load_weights

MAX_UNITS: Final = 48
"""Tried one by one. A model of more layers has neighbours of one kind tried together."""
SEARCH_STEP: Final = 4
"""The gain of a unit is measured on every fourth text."""
MAX_KEPT_SHARE: Final = 0.5
"""Of the weights of the linear layers; with more of them kept, int8 is not worth having."""

Report = Callable[[int, int], object]


@dataclass(frozen=True)
class _Unit:
    """Linear layers that are kept together, or not."""

    layers: tuple[str, ...]
    num_weights: int
    """What keeping them costs: the engine's time grows with it."""


def compile_to_gate(
    files: ModelFiles,
    config: Config,
    *,
    gate: Gate | None = None,
    texts: FidelityTexts | None = None,
    out: Path | None = None,
    report: Report = lambda num_done, num_all: None,
) -> tuple[Path, Comparison]:
    """Return the engine directory of a model in int8 that passes a gate, and what was measured.

    All linear layers in int8, if that passes. Else layers are kept, those first that gain most for
    their size: the gain of each is measured by keeping it alone; then the shortest beginning of
    that order that passes is searched by halving. The same texts give the same layers.

    Args:
        files: the model.
        config: the options; where the cache is, and how many threads compute.
        gate: what to reach; None: the default one.
        texts: what to measure on; None: the built-in ones.
        out: where to write; None: into the cache, where an Embedder finds it.
        report: hears how many measurements are done, and how many there are at most.

    Raises:
        ConfigError: there are too few texts.
        EngineBuildError: even with half of the weights kept the gate is not passed.
        what `compile_model` raises.
    """
    gate = gate or Gate()
    files = limited(files, config)
    texts = texts or built_in_texts(files.spec.max_seq_tokens)
    if len(texts.all) < MIN_TEXTS:
        raise ConfigError(
            f"texts has {len(texts.all)} texts; choosing layers takes {MIN_TEXTS} or more"
        )
    search = _Search(files, config, texts, report)
    kept = search.find(gate)
    folder = compile_model(files, "int8", kept, config, out=out)
    comparison = search.compare(int8_weights(folder), kept)
    write_report(folder, comparison.report)
    return folder, comparison


class _Search:
    """Measures choices of layers on one model and one set of texts."""

    def __init__(
        self, files: ModelFiles, config: Config, texts: FidelityTexts, report: Report
    ) -> None:
        self._files = files
        self._config = config
        self._texts = texts
        self._few = texts.thinned(SEARCH_STEP)
        self._report = report
        self._floats = load_weights(files)
        self._codes = int8_weights(compile_model(files, "int8", (), config))
        self._units = _units(files, self._floats)
        self._num_done = 0
        self._num_all = len(self._units) + math.ceil(math.log2(len(self._units) + 1)) + 4
        self._right = self._embed(self._floats, texts)
        self._right_few = _thin(self._right)

    def find(self, gate: Gate) -> tuple[str, ...]:
        """Return the layers to keep."""
        if self._compare_kept(()).report.passes(gate):
            return ()
        order = self._rank()
        total = sum(unit.num_weights for unit in order)
        sums = np.cumsum([unit.num_weights for unit in order])
        # The first `too_few` units do not pass, the first `enough` do.
        too_few, enough = 0, int((sums <= MAX_KEPT_SHARE * total).sum())
        best = self._compare_kept(order[:enough]).report
        if not best.passes(gate):
            raise EngineBuildError(
                f"int8 does not reach a mean cosine of {gate.mean} and {gate.p1} for 99 of 100 "
                f"texts: with half of the weights kept it has {best.mean:.5f} and {best.p1:.5f}; "
                "lower the gate or stay with float32"
            )
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            if self._compare_kept(order[:middle]).report.passes(gate):
                enough = middle
            else:
                too_few = middle
        return tuple(sorted(layer for unit in order[:enough] for layer in unit.layers))

    def compare(self, weights: Weights, kept: Sequence[str]) -> Comparison:
        """Compare weights with the model's own on all texts."""
        subject = Subject(
            fingerprint=model_fingerprint(self._files, file_hashes(self._config)),
            engine=CPU_ENGINE,
            hardware=int8_hardware(),
            precision="int8",
            excluded=tuple(sorted(kept)),
            reference="float32",
            max_seq_tokens=self._files.spec.max_seq_tokens,
            versions=versions(CPU_ENGINE),
        )
        return compare(self._right, self._embed(weights, self._texts), self._texts, subject)

    def _rank(self) -> list[_Unit]:
        """Return the units, highest gain for its cost first."""
        base = self._error(())
        gains = {unit: (base - self._error(unit.layers)) / unit.num_weights for unit in self._units}
        return sorted(self._units, key=lambda unit: (-gains[unit], unit.layers))

    def _error(self, kept: Sequence[str]) -> float:
        """Mean of 1 - cosine on the few texts."""
        found = self._embed(self._mix(kept), self._few)
        return float((1 - cosines(self._right_few.all, found.all)).mean())

    def _compare_kept(self, units: Sequence[_Unit]) -> Comparison:
        layers = [layer for unit in units for layer in unit.layers]
        return self.compare(self._mix(layers), layers)

    def _mix(self, kept: Sequence[str]) -> Weights:
        """Weights in int8 but for the layers that are kept."""
        mixed: dict[str, NDArray[Any]] = dict(self._codes)
        return mixed | {f"{layer}.weight": self._floats[f"{layer}.weight"] for layer in kept}

    def _embed(self, weights: Weights, texts: FidelityTexts) -> Embedded:
        with on_cpu(weights, self._files, self._config) as embedder:
            vectors = embed(embedder, texts)
        self._num_done += 1
        self._report(self._num_done, self._num_all)
        return vectors


def _thin(vectors: Embedded) -> Embedded:
    """The vectors of `FidelityTexts.thinned`."""
    return Embedded(
        queries=vectors.queries[::SEARCH_STEP], documents=vectors.documents[::SEARCH_STEP]
    )


def _units(files: ModelFiles, weights: Weights) -> list[_Unit]:
    """Return what is kept together: one layer, or in large models a few neighbours of one kind."""
    kinds: dict[str, list[str]] = {}
    layers = linear_layers(files)
    for layer in layers:  # layers.3.q
        kinds.setdefault(layer.rpartition(".")[2], []).append(layer)
    size = math.ceil(len(layers) / MAX_UNITS)
    units = []
    for members in kinds.values():
        for start in range(0, len(members), size):
            chosen = tuple(members[start : start + size])
            count = sum(math.prod(weights[f"{layer}.weight"].shape) for layer in chosen)
            units.append(_Unit(chosen, count))
    return units
