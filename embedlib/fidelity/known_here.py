"""What is known of a model on this machine: what was measured, what is given up, what is open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from embedlib.config import Config
from embedlib.engines.kind import ChosenPrecision, EngineKind, EnginePlan
from embedlib.engines.machine import Machine
from embedlib.engines.precision import known_versions, to_prepare
from embedlib.engines.registry import find_kind
from embedlib.engines.select import choose_engine, plan_for
from embedlib.errors import (
    CloseTimeoutError,
    EngineError,
    EngineOutOfMemoryError,
    EngineUnavailableError,
    PassingBuildError,
)
from embedlib.fidelity.model import MeasuredModel
from embedlib.models.compiled.cache import Compiled
from embedlib.models.compiled.engine_folder import file_hashes, model_fingerprint
from embedlib.models.compiled.fidelity_report import FidelityReport
from embedlib.models.compiled.report_cache import give_up, has_given_up
from embedlib.models.reading.files import ModelFiles

_PASSING: Final = (
    EngineUnavailableError,
    EngineOutOfMemoryError,
    PassingBuildError,
    CloseTimeoutError,
)
"""Errors of a shortage, which may be over at the next load."""


@dataclass(frozen=True)
class Here:
    """A model, this machine, and the engine that would run one on the other."""

    measured: MeasuredModel
    machine: Machine
    float32: EnginePlan
    """The plan of float32 as a load makes it; it does not say whether float32 fits."""

    @classmethod
    def find(cls, measured: MeasuredModel, machine: Machine) -> Here:
        """Choose the engine.

        Raises:
            EngineUnavailableError: none that the options allow can run here.
        """
        choice = choose_engine(measured.config, machine)
        kind = find_kind(choice.name, machine)
        return cls(measured, machine, plan_for(kind, choice, ChosenPrecision(name="float32")))

    @property
    def kind(self) -> EngineKind:
        """The engine."""
        return self.float32.kind

    def facts(self, precision: str) -> tuple[ModelFiles, str, str, str, Config]:
        """Return what `report_cache` tells measurements apart by."""
        plan = self.float32
        return self.measured.files, precision, plan.engine, plan.hardware, self.measured.config

    def known(self) -> list[Compiled]:
        """Return what the cache has of the model."""
        plan, measured = self.float32, self.measured
        return known_versions(plan.kind, plan.hardware, measured.files, measured.config)

    def give_up(self, precision: str, reason: str) -> None:
        """Remember why a precision is not measured again; not of files that changed meanwhile."""
        measured = self.measured
        found = model_fingerprint(measured.files, file_hashes(measured.config))
        if found == measured.fingerprint:
            give_up(*self.facts(precision), reason)

    def _lacks(self, precision: str, versions: Sequence[Compiled], *, with_search: bool) -> bool:
        """Return whether a load would have a precision measured that has only these versions."""
        plan = replace(self.float32, tried=(precision, "float32"))
        files = self.measured.files
        return bool(to_prepare(plan, files, versions, lambda _: False, with_search=with_search))

    def known_report(self, precision: str) -> FidelityReport | None:
        """Return the report of a precision without kept layers that is valid here."""
        for version in self.known():
            if not self._lacks(precision, [version], with_search=False):
                return version.report
        return None

    def is_open(self, precision: str) -> bool:
        """Return whether nobody has searched layers to keep in a precision here."""
        return not has_given_up(*self.facts(precision)) and self._lacks(
            precision, self.known(), with_search=True
        )

    def remember_error(self, precision: str, error: EngineError) -> None:
        """Remember an error that comes again at every load; not one of a shortage, or of a disk."""
        if not isinstance(error, _PASSING) and not isinstance(error.__cause__, OSError):
            self.give_up(precision, str(error))
