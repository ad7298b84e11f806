"""The error for weights that do not fit into memory."""

from __future__ import annotations

import math

from embedlib.errors import ModelWeightsError
from embedlib.models.spec import ModelSpec
from embedlib.models.weights.tensor_roles import encoder_shapes
from embedlib.system.memory import gib, read_memory


def no_memory(what: str, num_bytes: int) -> ModelWeightsError:
    """Return the error for weights that the system has no memory for.

    Args:
        what: the file or the model.
        num_bytes: what the weights need.
    """
    shortage = read_memory().shortage(num_bytes, num_bytes)
    told = f"{gib(num_bytes)} of memory"
    if shortage is not None:
        told = f"{shortage[0]}, and this process can have {shortage[1]}"
    return ModelWeightsError(
        f"{what}: the weights need {told}; free memory, raise the process's limit, or use a "
        "smaller model or a larger machine"
    )


def float32_bytes(spec: ModelSpec) -> int:
    """Return the bytes of a transformer's weights in float32."""
    return sum(4 * math.prod(shape) for shape in encoder_shapes(spec.encoder).values())
