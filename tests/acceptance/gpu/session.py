"""A run in progress: what its blocks share."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from embedlib.measuring.process import ContestantFailedError
from embedlib.measuring.spread import aba_ratios
from tests.acceptance.gpu.budget import Budget
from tests.acceptance.gpu.children import Children, Place, StartProcess
from tests.acceptance.gpu.gpu_state import GpuState
from tests.acceptance.gpu.journal import Journal, Line
from tests.acceptance.gpu.models import Precision, Shape, shape_of
from tests.acceptance.gpu.options import GpuOptions

TURNS: Final = 2
"""Of the other one in a race; ours are before, between and behind."""
RACE: Final = 2 * TURNS + 1
"""Measurements of a race."""
RESULTS: Final[Mapping[str, str]] = MappingProxyType({"bulk": "tokens_per_s", "query": "p50_ms"})
"""What counts of a call in a race: more tokens per second, or fewer milliseconds."""
COPIES: Final = 2.0
"""Room for a model's files and for what is compiled of them, which is smaller."""

Refine = Callable[[dict[str, Any]], dict[str, Any]]


class GpuSession:
    """What blocks measure with, and where they write their results."""

    def __init__(
        self,
        options: GpuOptions,
        journal: Journal,
        budget: Budget,
        stack: ExitStack,
        start: StartProcess,
        gpu: str,
    ) -> None:
        self.options = options
        self.journal = journal
        self.budget = budget
        self.children = Children(options.device, start, self._loaded)
        self.passed: dict[str, tuple[Precision, ...]] = {}
        """By model, the precisions that passed the gate: only their speed is measured."""
        self._stack = stack
        self._state = GpuState(gpu)
        stack.callback(self._state.close)
        stack.callback(self.children.end_all)
        self._folders: dict[str, Path] = {}

    def shape(self, model: str) -> Shape:
        """Return a model's sizes."""
        return shape_of(model, is_tiny=self.options.device == "cpu")

    def ours(self, model: str, precision: Precision, **options: Any) -> Place:
        """Return the engine's process with a model; options are those of its call `load`."""
        load = {"model": model, "precision": precision, **options}
        return Place("embedlib", tuple(load.items()))

    def ask(self, place: Place, call: str, **arguments: Any) -> Any:
        """Make a call, which may take the time that the block has left.

        Raises:
            ContestantFailedError: there is no answer.
        """
        return self.children.call(place, call, self.budget.left_s, **arguments)

    def measure(
        self,
        block: str,
        place: Place,
        call: str,
        num_left: int,
        facts: Mapping[str, Any],
        refine: Refine = lambda found: found,
        **arguments: Any,
    ) -> Line | None:
        """Make a measurement and write its result; None: it failed or was skipped.

        Args:
            block: the block it belongs to.
            place: the contestant.
            call: the name of the call.
            num_left: measurements of the block that are still to be made, this one included.
            facts: to write beside the result.
            refine: adds what follows from the result.
            **arguments: of the call, beside `seconds`.
        """
        if self.budget.left_s <= 0:
            self.journal.add(block, **facts, skipped="the time of the block is over")
            return None
        self._state.means()  # forgets what was before
        try:
            found = self.ask(place, call, seconds=self.budget.measuring_s(num_left), **arguments)
        except ContestantFailedError as error:
            self.journal.add(block, **facts, failed=str(error))
            return None
        return self.journal.add(block, **facts, **refine({**found, **self._state.means()}))

    def race(
        self,
        block: str,
        ours: Place,
        theirs: Place,
        call: str,
        arguments: Mapping[str, Any],
        num_left: int,
        **facts: Any,
    ) -> Line | None:
        """Measure two in turns and write how many times as fast ours is.

        Args:
            block: the block it belongs to.
            ours: the engine's process.
            theirs: that of the other one.
            call: what both are asked, one of `RESULTS`.
            arguments: of the call, beside `seconds`.
            num_left: measurements of the block that are still to be made, beside these.
            **facts: to write beside the result.
        """
        facts |= arguments
        if self.budget.left_s <= 0:
            self.journal.add(block, **facts, skipped="the time of the block is over")
            return None
        results: dict[Place, list[float]] = {ours: [], theirs: []}
        key = RESULTS[call]
        turns = [ours, *[theirs, ours] * TURNS]
        try:
            for number, place in enumerate(turns):
                seconds = self.budget.measuring_s(num_left + len(turns) - number)
                found = self.ask(place, call, seconds=seconds, **arguments)
                results[place].append(found[key])
        except ContestantFailedError as error:
            self.journal.add(block, **facts, failed=str(error))
            return None
        is_rate = call == "bulk"
        rates = [[value if is_rate else 1 / value for value in results[who]] for who in turns[:2]]
        ratios = sorted(aba_ratios(*rates))
        best = max if is_rate else min
        return self.journal.add(
            block,
            **facts,
            ratio=sum(ratios) / len(ratios),
            ratio_min=ratios[0],
            ratio_max=ratios[-1],
            **{key: best(results[theirs]), f"our_{key}": best(results[ours])},
        )

    def farthest(self, ours: Place, theirs: Place, **arguments: Any) -> float:
        """Return the largest 1 - cosine between two's vectors; a fast wrong answer would show here.

        Args:
            ours: the engine's process.
            theirs: that of the other one.
            **arguments: of the call `vectors`, beside `path`.

        Raises:
            ContestantFailedError: one of them has none.
        """
        folder = self.scratch()
        vectors = []
        for name, place in (("ours", ours), ("theirs", theirs)):
            path = folder / f"{name}.npy"
            self.ask(place, "vectors", path=str(path), **arguments)
            found = np.load(path)
            vectors.append(found / np.linalg.norm(found, axis=1, keepdims=True))
        # numpy's minimum, as Python's passes over NaN.
        return float(1 - np.min((vectors[0] * vectors[1]).sum(axis=1)))

    def scratch(self) -> Path:
        """Return a new folder that goes with the run."""
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory("-embedlib-bench")))

    def model_folder(self, model: str) -> Path:
        """Return the model's files, written now unless they are there already.

        Raises:
            ContestantFailedError: there is no room for them.
        """
        if model not in self._folders:
            writer = Place("embedlib")
            room = self.ask(writer, "find_room", model=model, copies=COPIES)
            root = tempfile.TemporaryDirectory("-embedlib-bench", dir=room)
            folder = Path(self._stack.enter_context(root), "model")
            found = self.ask(writer, "write", folder=str(folder), model=model)
            self.children.end(writer)
            self.journal.add("files", model=model, **found)
            self._folders[model] = folder
        return self._folders[model]

    def _loaded(self, place: Place, found: Mapping[str, Any]) -> None:
        facts = {key: value for key, value in place.load if key != "folder"}
        self.journal.add("load", who=place.name, **facts, **found)
