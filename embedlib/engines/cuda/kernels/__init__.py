"""One function per step of a plan, for CUDA devices; `reference.py` has the same in plain torch.

cuBLAS computes products of many rows outside attention, Triton everything else. FP8 products have a
scale per row of either side, and use the matrix units' "fast accumulation": about 14 bits of each
partial sum are kept, far more than e4m3 has.
"""

from __future__ import annotations

import torch

from embedlib.engines.cuda.buffers import Buffer
from embedlib.engines.cuda.device_weights import LinearWeight
from embedlib.engines.cuda.kernels.attention import attend
from embedlib.engines.cuda.kernels.convolution import convolve
from embedlib.engines.cuda.kernels.experts import activate_experts, choose_experts
from embedlib.engines.cuda.kernels.few_rows import multiply_few_rows, serves_few_rows
from embedlib.engines.cuda.kernels.pooling import pool
from embedlib.engines.cuda.kernels.rotation import rotate
from embedlib.engines.cuda.kernels.rows import activate, embed, norm, quantize

__all__ = [
    "activate",
    "activate_experts",
    "attend",
    "choose_experts",
    "convolve",
    "embed",
    "linear",
    "multiply_distances",
    "norm",
    "pool",
    "quantize",
    "rotate",
]


def linear(source: Buffer, weight: LinearWeight, out: Buffer) -> None:
    """out = source @ weight.T + bias; see `reference.linear`."""
    if serves_few_rows(source.values, weight.values):
        multiply_few_rows(source, weight, out)
    else:
        multiply_many_rows(source, weight, out)


def multiply_many_rows(source: Buffer, weight: LinearWeight, out: Buffer) -> None:
    """Let cuBLAS do the same."""
    columns = weight.values.t()
    if source.scales is not None:
        torch._scaled_mm(
            source.values,
            columns,
            source.scales,
            weight.scales,
            bias=weight.bias,
            out_dtype=out.values.dtype,
            use_fast_accum=True,
            out=out.values,
        )
    elif weight.bias is None:
        torch.mm(source.values, columns, out=out.values)
    else:
        torch.addmm(weight.bias, source.values, columns, out=out.values)


def multiply_distances(
    source: torch.Tensor, vectors: torch.Tensor, needed: slice, out: torch.Tensor
) -> None:
    """Multiply every head with its vectors; see `reference.multiply_distances`.

    cuBLAS reads the columns of a head, and writes those of its products, where they lie. Source:
    `baddbmm_out_cuda_impl` in PyTorch, aten/src/ATen/native/cuda/Blas.cpp: it copies neither if the
    last stride is 1.
    """
    heads, products = (
        matrix.unflatten(1, (len(vectors), -1)).transpose(0, 1) for matrix in (source, out)
    )
    torch.bmm(heads, vectors[:, needed].transpose(1, 2), out=products[:, :, needed])
