"""The error for weights that do not fit into memory."""

from __future__ import annotations

import math
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from embedlib.errors import ModelWeightsError
from embedlib.models.spec import ModelSpec
from embedlib.models.weights.tensor_roles import encoder_shapes

GIB: Final = 1 << 30


def no_memory(what: str, num_bytes: int) -> ModelWeightsError:
    """Return the error for weights that the system has no memory for.

    Args:
        what: the file or the model.
        num_bytes: what the weights need.
    """
    left = available_bytes()
    told = "" if left is None else f", and {left / GIB:.1f} GiB are available"
    return ModelWeightsError(
        f"{what}: the weights need {num_bytes / GIB:.1f} GiB of memory{told}; free memory, raise "
        "the process's limit, or use a smaller model or a larger machine"
    )


def float32_bytes(spec: ModelSpec) -> int:
    """Return the bytes of a transformer's weights in float32."""
    return sum(4 * math.prod(shape) for shape in encoder_shapes(spec.encoder).values())


def available_bytes() -> int | None:
    """Return how many bytes this process can still get; None where the system does not tell."""
    return min(_limits(), default=None)


def _limits() -> Iterator[int]:
    """Yield the memory of the machine that is free, and what the process's limit leaves."""
    try:
        free = Path("/proc/meminfo").read_text(encoding="ascii")
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:  # not Linux, or a sandbox
        return
    for line in free.splitlines():
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) << 10  # Source: proc(5), in kB
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        yield max(0, most - pages * resource.getpagesize())
