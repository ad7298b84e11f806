"""The type of number that a graph is computed in."""

from __future__ import annotations

from embedlib.engines.machine import VNNI_FLAGS, Machine


def computes_in_bf16(precision: str) -> bool:
    """Return whether everything that is not int8 is computed in bf16, and not in float32.

    With int8 that is so where bf16 is the faster one, and the library still rounds activations to
    int8 before it multiplies. Source: docs/benchmarks.md, bf16 and int8 on Zen 4. Whether it does
    on a CPU with AMX was not measured.

    Args:
        precision: of the model: "int8", "bf16" or "float32".
    """
    features = Machine().cpu_features()
    has_both = "avx512_bf16" in features and not VNNI_FLAGS.isdisjoint(features)
    return precision == "bf16" or (precision == "int8" and has_both and "amx_bf16" not in features)
