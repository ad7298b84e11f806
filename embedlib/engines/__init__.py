"""Engines: each lowers a ModelSpec and its weights to something that runs batches.

An engine in another package imports the names below; they stay at this address. Importing them
loads no engine and no engine's library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_LAZY = {
    **dict.fromkeys(
        (
            "Batch",
            "CallerEngine",
            "CancellablePending",
            "Engine",
            "EngineLimits",
            "Lane",
            "LosableEngine",
            "Pending",
        ),
        "embedlib.engines.base",
    ),
    **dict.fromkeys(
        ("ChosenPrecision", "EngineChoice", "EngineKind", "EnginePlan"), "embedlib.engines.kind"
    ),
    "Gpu": "embedlib.engines.gpus",
    "Machine": "embedlib.engines.machine",
    "ModelFiles": "embedlib.models.reading.files",
    "ModelSpec": "embedlib.models.spec",
    "load_weights": "embedlib.models.weights.load",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'embedlib.engines' has no attribute {name!r}")
