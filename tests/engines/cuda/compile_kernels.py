"""Compiles every kernel for a GPU, which needs none; prints what came out as JSON.

A program of its own: under the interpreter, which the other tests use, there is nothing to compile.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from embedlib.engines.cuda import head_kernels, pool_kernel, row_kernels

BF16, FP8, F32, I32, INT, FLOAT = "*bf16", "*fp8e4nv", "*fp32", "*i32", "i32", "fp32"

ROW = {"residual": BF16, "change": BF16, "source": BF16, "out": FP8, "scales": F32, "columns": INT}
NORMS = ("change_weight", "change_bias", "weight", "bias", "query_weight", "key_weight")
TYPES = {
    **dict.fromkeys((*NORMS, "cos_table", "sin_table", "position_bias", "hidden"), F32),
    **dict.fromkeys(("token_ids", "positions", "token_types", "tiles", "cu_seqlens"), I32),
    **dict.fromkeys(("token_table", "position_table", "type_table", "values"), BF16),
    **dict.fromkeys(("query", "key_value"), BF16),
    **dict.fromkeys(("eps", "scale", "cap"), FLOAT),
    "num_left_out": I32,
}
"""By argument; a number where nothing is said."""

ATTENTION = {"HEADS_PER_KEY": 4, "PRECISION": "tf32", "BLOCK_QUERIES": 64, "BLOCK_KEYS": 64}
KERNELS: dict[str, tuple[Any, dict[str, str], dict[str, Any], int]] = {
    "embed": (
        row_kernels.embed_kernel,
        {"out": BF16},
        {"HAS_POSITIONS": True, "HAS_TYPES": True, "BLOCK": 1024},
        2,
    ),
    "norm": (
        row_kernels.norm_kernel,
        ROW,
        {
            "HAS_CHANGE": True,
            "NORMS_CHANGE": True,
            "IS_RMS": False,
            "HAS_BIAS": True,
            "KEEPS": "sum",
            "WRITES": True,
            "IS_FP8": True,
            "BLOCK": 4096,
        },
        8,
    ),
    "activate": (
        row_kernels.activate_kernel,
        ROW,
        {"ACTIVATION": "gelu_tanh", "IS_GATED": True, "IS_FP8": True, "BLOCK": 16384},
        16,
    ),
    "rotate": (
        head_kernels.rotate_kernel,
        {},
        {"TURNS": True, "NORMS": True, "HALF": 64, "BLOCK_HEADS": 64, "BLOCK_HALF": 64},
        16,
    ),
    "attend causally": (
        head_kernels.attend_kernel,
        {"out": BF16},
        {
            **ATTENTION,
            "WIDTH": 512,
            "HEAD_DIM": 64,
            "BLOCK_DIM": 64,
            "IS_CAUSAL": True,
            "HAS_WINDOW": False,
            "HAS_CAP": False,
            "HAS_BIAS": False,
        },
        4,
    ),
    "attend with everything": (
        head_kernels.attend_kernel,
        {"out": BF16},
        {
            **ATTENTION,
            "WIDTH": 256,
            "HEAD_DIM": 64,
            "BLOCK_DIM": 64,
            "IS_CAUSAL": False,
            "HAS_WINDOW": True,
            "HAS_CAP": True,
            "HAS_BIAS": True,
        },
        4,
    ),
    "pool": (
        pool_kernel.pool_kernel,
        {"out": F32},
        {"MODE": "weighted_mean", "LEAVES_OUT": True, "BLOCK_TOKENS": 32, "BLOCK_COLUMNS": 64},
        4,
    ),
}


def compile_kernel(name: str, capability: int) -> dict[str, Any]:
    function, types, constants, num_warps = KERNELS[name]
    arguments = function.arg_names
    signature = {
        argument: "constexpr"
        if argument in constants
        else types.get(argument, TYPES.get(argument, INT))
        for argument in arguments
    }
    # What Triton sees at a launch for itself: memory and rows begin at multiples of 16.
    aligned = [
        argument
        for argument, kind in signature.items()
        if kind.startswith("*") or "stride" in argument or "column" in argument
    ]
    source = ASTSource(
        fn=function,
        signature=signature,
        constexprs={(arguments.index(key),): value for key, value in constants.items()},
        attrs={(arguments.index(key),): [["tt.divisibility", 16]] for key in aligned},
    )
    target = GPUTarget("cuda", capability, 32)
    options = {"num_warps": num_warps, "num_stages": 2}
    compiled = triton.compile(source, target=target, options=options)
    return {"shared_bytes": compiled.metadata.shared, "ptx": compiled.asm["ptx"]}


if __name__ == "__main__":
    json.dump({name: compile_kernel(name, int(sys.argv[1])) for name in KERNELS}, sys.stdout)
