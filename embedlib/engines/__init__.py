"""Engines: each lowers a ModelSpec and its weights to something that runs batches.

An engine in another package imports the names below; they stay at this address. Importing them
loads no engine and no engine's library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedlib.packages.lazy import importer

if TYPE_CHECKING:
    from embedlib.engines.base import (
        Batch,
        CallerEngine,
        CancellablePending,
        Engine,
        EngineLimits,
        Lane,
        LosableEngine,
        Pending,
    )
    from embedlib.engines.gpus import Gpu
    from embedlib.engines.kind import ChosenPrecision, EngineChoice, EngineKind, EnginePlan
    from embedlib.engines.machine import Machine
    from embedlib.models.reading.files import ModelFiles
    from embedlib.models.spec import ModelSpec
    from embedlib.models.weights.load import load_weights

__all__ = [
    "Batch",
    "CallerEngine",
    "CancellablePending",
    "ChosenPrecision",
    "Engine",
    "EngineChoice",
    "EngineKind",
    "EngineLimits",
    "EnginePlan",
    "Gpu",
    "Lane",
    "LosableEngine",
    "Machine",
    "ModelFiles",
    "ModelSpec",
    "Pending",
    "load_weights",
]

_MODULES = {
    ".base": (
        *("Batch", "CallerEngine", "CancellablePending", "Engine", "EngineLimits"),
        *("Lane", "LosableEngine", "Pending"),
    ),
    ".gpus": ("Gpu",),
    ".kind": ("ChosenPrecision", "EngineChoice", "EngineKind", "EnginePlan"),
    ".machine": ("Machine",),
    "embedlib.models.reading.files": ("ModelFiles",),
    "embedlib.models.spec": ("ModelSpec",),
    "embedlib.models.weights.load": ("load_weights",),
}
__getattr__, __dir__ = importer(__name__, _MODULES)
