"""How many operators the library keeps ready for sizes of batches it has met, and what they take.

Layers of one shape share them, so some six are those of a size. Source of all numbers:
docs/measurements/memory.md, sizes of batches.
"""

from __future__ import annotations

from typing import Final

PREPARED: Final = 24
"""In a stage or a stream. Bulk work seldom meets a size again, and takes as long with 6 as with 60.

Source: `CPU_RUNTIME_CACHE_CAPACITY` in OpenVINO's intel_cpu/src/internal_properties.hpp.
"""
PREPARED_FOR_QUERIES: Final = 120
"""In a compiled model of queries alone, whose lengths change."""
OPERATOR_BYTES: Final = 3 << 18
"""Of one of them: 0.6 to 1.0 MiB measured."""
STAGE_BYTES: Final = 3 << 17
"""The same in one of several stages, which take oneDNN's from one another."""


def separate_bytes(num_streams: int) -> int:
    """Return what operators take where each lane has a compiled model."""
    return (num_streams * PREPARED + PREPARED_FOR_QUERIES) * OPERATOR_BYTES


def shared_bytes(num_stages: int) -> int:
    """Return what operators take where both lanes share one."""
    return num_stages * PREPARED * STAGE_BYTES
