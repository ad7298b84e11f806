"""Which errors mean that a GPU ran out of memory; for the engines on torch."""

from __future__ import annotations

from typing import Final

MESSAGES: Final = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""In errors of CUDA's own calls and of cuBLAS, for which torch has no exception class."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or one that it was raised from, means that memory ran out.

    Only torch's allocator has an exception class for this, named here so as not to import torch.
    Other CUDA calls raise an AcceleratorError or a RuntimeError, and TensorRT-LLM may raise another
    error from it.
    """
    return error is not None and (
        type(error).__name__ == "OutOfMemoryError"
        or any(message in str(error) for message in MESSAGES)
        or is_out_of_memory(error.__cause__)
    )
