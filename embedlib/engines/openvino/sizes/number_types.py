"""The type of number that a graph is computed in."""

from __future__ import annotations

from typing import Literal

from embedlib.engines.machine import AMX_FLAGS, VNNI_FLAGS, Machine
from embedlib.models.compiled.int8 import INT8_GROUPS


def multiplies_tiles(precision: str, cpu_features: frozenset[str]) -> bool:
    """Return whether AMX multiplies.

    Args:
        precision: of everything that is not int8.
        cpu_features: of this CPU, as `Machine` has them.
    """
    return precision == "bf16" and not AMX_FLAGS.isdisjoint(cpu_features)


def number_type(precision: str) -> Literal["float32", "bf16"]:
    """Return what everything that is not int8 is computed in.

    With int8 it is bf16 where that is the faster one and the library still rounds activations to
    int8 before it multiplies. With AMX a lone query would take up to two thirds longer. Source:
    docs/int8.md, groups of weights, and docs/fidelity.md, int8 on a CPU.

    Args:
        precision: of the model.
    """
    features = Machine().cpu_features()
    has_both = "avx512_bf16" in features and not VNNI_FLAGS.isdisjoint(features)
    is_faster = precision in INT8_GROUPS and has_both and "amx_bf16" not in features
    return "bf16" if precision == "bf16" or is_faster else "float32"
