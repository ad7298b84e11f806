"""The gate: no speed is measured of a precision whose vectors are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from embedlib.measuring.process import ContestantFailedError
from tests.acceptance.gpu.children import Place
from tests.acceptance.gpu.gate import (
    LENGTHS,
    MAX_FP8_ERROR,
    MAX_FP8_OUTLIER_ERROR,
    MAX_MIX_ERROR,
    MAX_REFERENCE_ERROR,
    NUM_LAYERS,
)
from tests.acceptance.gpu.models import Precision
from tests.acceptance.gpu.session import GpuSession

ORDER: Final[tuple[Precision, ...]] = ("bf16", "fp8")
"""bfloat16 is held against the reference, FP8 against bfloat16."""
ENGINE: Final = Place("embedlib")
REFERENCE: Final = Place("reference")

Outcome = dict[str, Any]


def gate(session: GpuSession, model: str) -> None:
    """Check a few layers of a model and remember which precisions passed."""
    checks = _Checks(session, model)
    passed: list[Precision] = []
    for precision in ORDER:
        facts = {"model": model, "precision": precision}
        is_right = True
        try:
            for outcome in checks.outcomes(precision):
                session.journal.add("gate", **facts, **outcome)
                is_right = is_right and outcome["passed"]
        except ContestantFailedError as error:
            session.journal.add("gate", **facts, failed=str(error))
            is_right = False
        if not is_right:
            break  # the next one is held against this one
        passed.append(precision)
    session.children.end(ENGINE)
    session.passed[model] = tuple(p for p in session.shape(model).precisions if p in passed)


class _Checks:
    """The checks of one model, in the order of `ORDER`, which leave files for one another."""

    def __init__(self, session: GpuSession, model: str) -> None:
        self._session = session
        self._model = model
        self._folder = session.scratch()

    def outcomes(self, precision: Precision) -> Iterator[Outcome]:
        """Yield what came of each check.

        Raises:
            ContestantFailedError: one could not be made.
        """
        if precision == ORDER[0]:
            folder = str(self._folder / "model")
            self._ask(ENGINE, "write", folder=folder, model=self._model, num_layers=NUM_LAYERS)
            found = self._ask(REFERENCE, "vectors", folder=folder, path=self._path("reference"))
            self._session.children.end(REFERENCE)
            self._load(precision, has_marks=True)
            yield self._compare(f"close to {found['by']}", "reference", MAX_REFERENCE_ERROR)
            self._keep("plain")
        else:
            self._load(precision, has_marks=True)
            yield self._compare("close to bf16", "plain", MAX_FP8_ERROR)
        yield from self._ask(ENGINE, "checks", allowed=MAX_MIX_ERROR[precision])
        self._load(precision, has_outliers=True)
        if precision == ORDER[0]:
            self._keep("outliers")
        else:
            name = "close to bf16 with a huge channel"
            yield self._compare(name, "outliers", MAX_FP8_OUTLIER_ERROR)

    def _load(self, precision: Precision, **marks: bool) -> None:
        model = {"model": self._model, "num_layers": NUM_LAYERS}
        self._ask(ENGINE, "load", precision=precision, **model, **marks)

    def _keep(self, name: str) -> None:
        self._ask(ENGINE, "vectors", path=self._path(name), lengths=list(LENGTHS))

    def _compare(self, name: str, kept: str, allowed: float) -> Outcome:
        outcome: Outcome = self._ask(
            ENGINE, "compare", check=name, path=self._path(kept), allowed=allowed
        )
        return outcome

    def _path(self, name: str) -> str:
        return str(Path(self._folder, f"{name}.npy"))

    def _ask(self, place: Place, call: str, **arguments: Any) -> Any:
        # Everything stands behind the gate, so it may take more than the time of its block.
        left_s = self._session.budget.run_left_s
        return self._session.children.call(place, call, left_s, **arguments)
