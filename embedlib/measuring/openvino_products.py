"""Matrix products alone, by the library that embedlib computes with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

ROWS = 512
"""Tokens multiplied at once: about a batch of the CPU engine."""

_HINTS = {"float32": "f32", "bf16": "bf16", "int8": "f32"}


def openvino_multiply(precision: str, shapes: Sequence[tuple[int, int]]) -> Callable[[], object]:
    """Return a function that computes one product of each shape on one thread.

    Args:
        precision: "float32"; "bf16", which the plugin takes where the CPU has it; or "int8":
            weights in int8, and activations quantized at run time, in groups as large as fit into
            the rows of every product.
        shapes: (inputs, outputs) of each matrix.
    """
    from embedlib.engines.openvino.core import loaded_core
    from embedlib.engines.openvino.library import op, ov

    rows = [op.parameter([ROWS, inputs], np.float32) for inputs, _ in shapes]
    products = [
        op.matmul(row, _weight(op, precision, *shape), False, True)
        for row, shape in zip(rows, shapes, strict=True)
    ]
    properties = {
        "INFERENCE_PRECISION_HINT": _HINTS[precision],
        "EXECUTION_MODE_HINT": "PERFORMANCE",
        # The plugin quantizes only groups that divide by 16; 2**64 - 1, "a whole row", does not.
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(math.gcd(*(inputs for inputs, _ in shapes))),
        "INFERENCE_NUM_THREADS": 1,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,
    }
    compiled = loaded_core().compile_model(ov.Model(products, rows), "CPU", properties)
    request = compiled.create_infer_request()
    random = np.random.default_rng(1)
    for place, (inputs, _) in enumerate(shapes):
        values = random.standard_normal((ROWS, inputs), np.float32)
        request.set_input_tensor(place, ov.Tensor(values))
    return lambda: request.infer(share_outputs=True)


def _weight(op: Any, precision: str, inputs: int, outputs: int) -> Any:
    random = np.random.default_rng(0)
    if precision != "int8":
        return op.constant(random.standard_normal((outputs, inputs), np.float32))
    codes = op.constant(random.integers(-127, 128, (outputs, inputs), np.int8))
    scales = op.constant(np.full((outputs, 1), 1 / 127, np.float32))
    return op.multiply(op.convert(codes, "f32"), scales)
