"""The machine's own limits: how fast it multiplies matrices of the model's shapes, and reads."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from embedlib.measuring.openvino_products import ROWS, openvino_multiply
from embedlib.models.spec import Encoder
from embedlib.models.weights.tensor_roles import linear_weights

SGEMM = "sgemm"
"""Name of the contestant that measures this."""

READ_BYTES = 256 << 20
"""Read by each thread at a time: more than the caches hold."""

Multiply = Callable[[], object]
"""One product of each shape."""

Shapes = list[tuple[int, int]]
"""(inputs, outputs) of each matrix."""

Rates = dict[str, dict[str, float]]
"""FLOP/s, by precision and library."""


def linear_shapes(encoder: Encoder) -> Shapes:
    """Return (inputs, outputs) of each weight matrix of a layer with attention and one MLP."""
    hidden, intermediate = encoder.hidden_size, encoder.intermediate_size
    query = encoder.num_heads * encoder.head_dim
    key = encoder.num_kv_heads * encoder.head_dim
    up = [(hidden, intermediate)] * (2 if encoder.is_gated else 1)
    attention = [(hidden, query), (hidden, key), (hidden, key), (query, hidden)]
    return [*attention, *up, (intermediate, hidden)]


def flop_per_token(encoder: Encoder) -> int:
    """Return the additions and multiplications of the linear layers for one token.

    Of experts, those of the ones that are chosen. Attention itself is left out: it depends on the
    length, and is a few percent for short texts.
    """
    weights = linear_weights(encoder)
    if (experts := encoder.experts) is not None:
        chosen = experts.num_chosen * 2 * encoder.intermediate_size
        weights += len(experts.layers) * (experts.count + chosen) * encoder.hidden_size
    return 2 * weights


class SgemmCalls:
    """The calls that the process which measures the machine answers.

    Each thread multiplies its own matrices, and the library is limited to one thread per call: no
    thread waits for another one, so this is the highest rate that the cores reach.
    """

    def __init__(self, threads: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._threads = threads
        self._clock = clock

    def measure(self, shapes: Shapes, seconds: float) -> Rates:
        """Return FLOP/s by precision and library; torch only where it is installed.

        What "bf16" and "int8" say is what the library makes of them on this CPU: without
        instructions for them it multiplies something else.
        """
        makers: list[tuple[str, str, Callable[[Shapes], Multiply]]] = [
            ("float32", "numpy", _numpy_multiply)
        ]
        if importlib.util.find_spec("torch") is not None:
            makers.append(("float32", "torch", _torch_multiply))
        makers += [
            (precision, "openvino", partial(openvino_multiply, precision))
            for precision in ("float32", "bf16", "int8")
        ]
        flop = 2 * ROWS * sum(inputs * outputs for inputs, outputs in shapes)
        rates: Rates = {}
        for precision, library, make in makers:
            multiplies = [make(shapes) for _ in range(self._threads)]
            for multiply in multiplies:
                multiply()  # the first one loads code and reserves buffers
            rates.setdefault(precision, {})[library] = flop * self._race(multiplies, seconds)
        return rates

    def read(self, seconds: float) -> float:
        """Return bytes/s of reading memory that is in no cache, all threads together."""
        blocks = [np.ones(READ_BYTES // 4, np.float32) for _ in range(self._threads)]
        # A product with itself: numpy's own sum is slower than memory.
        return self._race([partial(np.dot, block, block) for block in blocks], seconds) * READ_BYTES

    def _race(self, multiplies: list[Multiply], seconds: float) -> float:
        """Return calls per second of all threads together."""

        def calls_per_second(multiply: Multiply) -> float:
            started = self._clock()
            num_calls = 0
            elapsed = 0.0
            while elapsed < seconds:
                multiply()
                num_calls += 1
                elapsed = self._clock() - started
            return num_calls / elapsed

        with ThreadPoolExecutor(len(multiplies)) as threads:
            return sum(threads.map(calls_per_second, multiplies))


def _numpy_multiply(shapes: Shapes) -> Multiply:
    return partial(_multiply, np.matmul, _operands(shapes))


def _torch_multiply(shapes: Shapes) -> Multiply:
    import torch

    operands = [[torch.from_numpy(array) for array in arrays] for arrays in _operands(shapes)]
    return partial(_multiply, torch.mm, operands)


def _multiply(product: Callable[..., object], operands: Sequence[Sequence[Any]]) -> None:
    for rows, weight, out in operands:
        product(rows, weight, out=out)


def _operands(shapes: Shapes) -> list[tuple[Any, Any, Any]]:
    """Return rows, weight and output buffer; ordinary numbers, since denormal ones are slow."""
    random = np.random.default_rng(0)
    return [
        (
            random.standard_normal((ROWS, inputs), np.float32),
            random.standard_normal((inputs, outputs), np.float32),
            np.empty((ROWS, outputs), np.float32),
        )
        for inputs, outputs in shapes
    ]
