"""Decides which precisions `auto` may take on a machine, before anything is measured."""

from __future__ import annotations

from collections.abc import Callable, Collection

from embedlib.engines.kind import EngineKind


def worthwhile(
    kind: EngineKind, cpu_features: Collection[str], fits: Callable[[str], bool]
) -> tuple[str, ...]:
    """Return the precisions that `auto` may take here, best first; the last needs no report.

    A lower precision is worth its cosines only if it is faster than the last one on this CPU, or
    if the last one does not fit into memory.

    Args:
        kind: the engine.
        cpu_features: as in `EngineChoice`.
        fits: returns whether the model fits into memory in a precision.
    """
    *lower, default = fastest_first(kind, cpu_features)
    fast = [name for name in lower if _is_faster(kind, name, cpu_features)]
    closer = [name for name in lower if name not in kind.coarser_forms]
    slow = [] if fits(default) else [name for name in closer if name not in fast]
    return (*(name for name in (*fast, *slow) if fits(name)), default)


def fastest_first(kind: EngineKind, cpu_features: Collection[str]) -> tuple[str, ...]:
    """Return the precisions of an engine in the order of their speed on this CPU.

    The one that needs no report is the last in any case.

    Args:
        kind: the engine.
        cpu_features: as in `EngineChoice`.
    """

    def is_later(precision: str) -> bool:
        return kind.fastest_with.get(precision, frozenset()).isdisjoint(cpu_features)

    *lower, default = kind.precisions
    return (*sorted(lower, key=is_later), default)


def _is_faster(kind: EngineKind, precision: str, cpu_features: Collection[str]) -> bool:
    needed = kind.faster_with.get(precision)
    return needed is None or not needed.isdisjoint(cpu_features)
