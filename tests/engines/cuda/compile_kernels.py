"""Compiles every kernel for a GPU, without needing one; prints the results as JSON.

Runs as a separate program, because the other tests use Triton's interpreter, which never compiles.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from embedlib.engines.cuda.capability import HOPPER
from embedlib.engines.cuda.inputs import FLOAT32_TILE_ROWS
from embedlib.engines.cuda.kernels import attention as attention_kernel
from embedlib.engines.cuda.kernels import convolution as convolution_kernel
from embedlib.engines.cuda.kernels import experts as expert_kernels
from embedlib.engines.cuda.kernels import few_rows as few_rows_kernels
from embedlib.engines.cuda.kernels import pooling as pool_kernel
from embedlib.engines.cuda.kernels import rotation as rotate_kernel
from embedlib.engines.cuda.kernels import rows as row_kernels
from embedlib.engines.cuda.kernels.attention_sizes import attention_blocks, attention_warps
from embedlib.engines.cuda.kernels.overlap import FP_FUSION

WAIT = "griddepcontrol.wait"
"""For what was launched before, see `kernels.overlap`."""
INSTRUCTIONS = ("cvt.rn.satfinite.e4m3x2.f32", "wgmma.mma_async", "cp.async", "mma.sync", WAIT)
BF16, FP8, F32, I32, INT, FLOAT = "*bf16", "*fp8e4nv", "*fp32", "*i32", "i32", "fp32"
FEW_ROWS = {"num_warps": 4, "num_stages": few_rows_kernels.STAGES}

ROW = {"residual": BF16, "change": BF16, "source": BF16, "out": FP8, "scales": F32, "columns": INT}
NORMS = ("change_weight", "change_bias", "weight", "bias", "query_weight", "key_weight")
TYPES = {
    **dict.fromkeys((*NORMS, "cos_table", "sin_table", "position_bias", "hidden", "router"), F32),
    **dict.fromkeys(("token_ids", "positions", "token_types", "tiles", "cu_seqlens"), I32),
    **dict.fromkeys(("prefix_lengths", "rows_by_distance"), I32),
    **dict.fromkeys(("token_table", "position_table", "type_table", "values"), BF16),
    **dict.fromkeys(("eps", "scale", "cap"), FLOAT),
    "num_left_out": I32,
}
"""Types by argument; an argument that is missing here is an integer."""


def attention(
    capability: int, head_dim: int, num_rows: int, pack: int, itemsize: int = 2, **traits: bool
) -> tuple[Any, dict[str, str], dict[str, Any], dict[str, int]]:
    """Return the kernel with the arguments that `attention_kernel.attend` launches it with."""
    block_keys, num_stages = attention_blocks(
        num_rows,
        head_dim,
        itemsize,
        divmod(capability, 10),
        has_table=traits.get("HAS_BIAS", False) or traits.get("HAS_DISTANCES", False),
    )
    number = F32 if itemsize == 4 else BF16
    constants = {
        **dict.fromkeys(("IS_CAUSAL", "HAS_WINDOW", "HAS_CAP", "HAS_BIAS", "HAS_PREFIX"), False),
        "HAS_DISTANCES": False,
        "HEADS_PER_KEY": pack,
        "PACK": pack,
        "PRECISION": "ieee" if itemsize == 4 else "tf32",
        "BLOCK_QUERIES": num_rows // pack,
        "BLOCK_KEYS": block_keys,
        "WIDTH": 2 * head_dim,
        "HEAD_DIM": head_dim,
        "BLOCK_DIM": head_dim,
        **traits,
    }
    options = {
        "num_warps": attention_warps(num_rows, head_dim),
        "num_stages": num_stages,
    }
    pointers = ("query", "key_value", "of_queries", "of_keys", "prefix", "out")
    types = dict.fromkeys(pointers, number)
    return attention_kernel.attend_kernel, types, constants, options


ROWS: dict[str, tuple[Any, dict[str, str], dict[str, Any], int]] = {
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
    "convolve": (
        convolution_kernel.convolve_kernel,
        {"source": BF16, "out": BF16},
        {"HAS_BIAS": True, "WIDTH": 3, "BLOCK": 1024},
        2,
    ),
    "choose experts": (
        expert_kernels.choose_experts_kernel,
        {"source": BF16, "out": F32},
        {"NUM_EXPERTS": 8, "NUM_CHOSEN": 2, "BLOCK": 1024, "BLOCK_EXPERTS": 8},
        2,
    ),
    "activate experts": (
        expert_kernels.activate_experts_kernel,
        {"shares": F32},
        {"ACTIVATION": "gelu", "NUM_EXPERTS": 8, "BLOCK": 4096},
        8,
    ),
    "rotate": (
        rotate_kernel.rotate_kernel,
        {},
        {"TURNS": True, "NORMS": True, "HALF": 64, "BLOCK_HEADS": 64, "BLOCK_HALF": 64},
        16,
    ),
    "pool": (
        pool_kernel.pool_kernel,
        {"out": F32},
        {"MODE": "weighted_mean", "LEAVES_OUT": True, "BLOCK_TOKENS": 32, "BLOCK_COLUMNS": 64},
        4,
    ),
}


def kernels(capability: int) -> dict[str, tuple[Any, dict[str, str], dict[str, Any], Any]]:
    """Return every kernel; attention in every size it is launched in."""
    found: dict[str, tuple[Any, dict[str, str], dict[str, Any], Any]] = {
        name: (*kernel, {"num_warps": num_warps, "num_stages": 2})
        for name, (*kernel, num_warps) in ROWS.items()
    }
    for name, number, block_rows, block_inputs in (
        ("few rows", FP8, 16, 256),
        ("few rows full", FP8, 64, 128),
        ("few rows bf16", BF16, 32, 128),
    ):
        found[name] = (
            few_rows_kernels.few_rows_kernel,
            {"source": number, "weight": number, "bias": BF16, "out": BF16}
            | dict.fromkeys(("source_scales", "weight_scales"), F32),
            {
                "HAS_SCALES": number == FP8,
                "HAS_BIAS": True,
                "BLOCK_ROWS": block_rows,
                "BLOCK_COLUMNS": few_rows_kernels.BLOCK_COLUMNS,
                "BLOCK_INPUTS": block_inputs,
            },
            FEW_ROWS,
        )
    for head_dim in (32, 64, 128, 256):
        # The sizes that `inputs.tile_queries` returns.
        long = 128 if head_dim < 256 else 64
        kept = {"IS_CAUSAL": True, "HAS_PREFIX": True}
        found[f"attend {head_dim} causal"] = attention(capability, head_dim, long, 4, **kept)
        found[f"attend {head_dim} both ways"] = attention(capability, head_dim, long, 1)
        found[f"attend {head_dim} short"] = attention(capability, head_dim, 64, 4, **kept)
        found[f"attend {head_dim} pooled"] = attention(capability, head_dim, 16, 4, **kept)
        found[f"attend {head_dim} window"] = attention(
            capability, head_dim, long, 2, IS_CAUSAL=True, HAS_WINDOW=True, HAS_CAP=True
        )
    found["attend 64 bias"] = attention(capability, 64, 128, 1, HAS_BIAS=True)
    for name, num_rows in (("", 128), (" short", 64), (" pooled", 16)):
        found[f"attend 64 distances{name}"] = attention(
            capability, 64, num_rows, 1, HAS_DISTANCES=True
        )
    for head_dim in (128, 256):
        found[f"attend {head_dim} float32"] = attention(
            capability, head_dim, FLOAT32_TILE_ROWS, 4, itemsize=4, IS_CAUSAL=True
        )
    return found


def compile_kernel(
    capability: int,
    function: Any,
    types: dict[str, str],
    constants: dict[str, Any],
    options: dict[str, int],
) -> dict[str, Any]:
    arguments = function.arg_names
    overlaps = divmod(capability, 10) == HOPPER
    constants = {**constants, "OVERLAPS": overlaps}
    signature = {
        argument: "constexpr"
        if argument in constants
        else types.get(argument, TYPES.get(argument, INT))
        for argument in arguments
    }
    # Triton detects this at a launch: pointers and strides are multiples of 16.
    aligned = [
        argument
        for argument, kind in signature.items()
        if kind.startswith("*") or any(word in argument for word in ("stride", "column", "inputs"))
    ]
    source = ASTSource(
        fn=function,
        signature=signature,
        constexprs={(arguments.index(key),): value for key, value in constants.items()},
        attrs={(arguments.index(key),): [["tt.divisibility", 16]] for key in aligned},
    )
    target = GPUTarget("cuda", capability, 32)
    options = {**options, "enable_fp_fusion": FP_FUSION, "launch_pdl": overlaps}
    with redirect_stdout(StringIO()) as told:
        compiled = triton.compile(source, target=target, options=options)
    # Registers that the assembler spills to memory.
    spilled = re.search(r"(\d+) bytes spill stores", told.getvalue())
    assert spilled, told.getvalue()
    return {
        "shared_bytes": compiled.metadata.shared,
        "spilled_bytes": int(spilled[1]),
        "instructions": [name for name in INSTRUCTIONS if name in compiled.asm["ptx"]],
    }


def main(capability: int, pattern: str) -> None:
    triton.knobs.nvidia.dump_ptxas_log = True
    found = {
        name: compile_kernel(capability, *kernel)
        for name, kernel in kernels(capability).items()
        if re.match(pattern, name)
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
