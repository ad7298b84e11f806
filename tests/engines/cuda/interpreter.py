"""Patches Triton's interpreter, which runs kernels on the CPU: two corrections and a speed-up.

Source: triton/runtime/interpreter.py of 3.6.0, 3.7.1 and 3.9.0. Its casts to bfloat16 and FP8
truncate or drop the carry, where a GPU rounds to nearest, ties to even. Its matrix product reads
the bits of bfloat16 as integers. And it patches `triton.language` again at every call of a function
from a kernel: names in the function's module, which stay patched, and those that the launch has
patched already. Here each function is patched once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime import interpreter

TORCH_TYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8e4nv": torch.float8_e4m3fn,
}


def correct() -> None:
    """Replace the two wrong functions and the slow one."""
    interpreter._convert_float = convert_float
    wrong = interpreter.InterpreterBuilder.create_dot

    def create_dot(self: Any, left: Any, right: Any, *others: Any) -> Any:
        return wrong(self, as_float32(left), as_float32(right), *others)

    interpreter.InterpreterBuilder.create_dot = create_dot

    known = set()

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if self.fn not in known:
            known.add(self.fn)
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*arguments, **named)

    interpreter.InterpretedFunction.__call__ = call


def convert_float(values: NDArray[Any], source: Any, target: Any, _: object) -> NDArray[Any]:
    """Convert the bits of one number type to the bits of another."""
    bits = np.ascontiguousarray(values).view(f"i{source.primitive_bitwidth // 8}")
    numbers = torch.from_numpy(bits).view(TORCH_TYPES[source.name]).to(torch.float32)
    size = target.primitive_bitwidth // 8
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[size]
    return numbers.to(TORCH_TYPES[target.name]).view(whole).numpy().view(f"u{size}")


def as_float32(handle: Any) -> Any:
    """Return a tile as float32, which represents every bfloat16 and float16."""
    if handle.dtype.scalar == tl.float32:
        return handle
    bits = convert_float(handle.data, handle.dtype.scalar, tl.float32, None)
    return interpreter.TensorHandle(bits.view(np.float32), tl.float32)
