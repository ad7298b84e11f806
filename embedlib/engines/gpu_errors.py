"""What an error says of a GPU: out of memory, or lost; for the engines on torch."""

from __future__ import annotations

import traceback
from typing import Final

from embedlib.errors import EngineOutOfMemoryError, EngineRunError, first_line

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


def run_error(engine: str, error: BaseException) -> EngineRunError:
    """Return embedlib's error for one that an engine met while it computed a batch.

    The functions that it has left lose their variables: weights and recordings, which would stay on
    the device behind `close` for as long as a caller keeps the error.
    """
    traceback.clear_frames(error.__traceback__)
    kind = EngineOutOfMemoryError if is_out_of_memory(error) else EngineRunError
    return kind(f"engine {engine}: {first_line(error)}")


def loss_of(error: BaseException) -> str | None:
    """Return why a GPU cannot be used any more after waiting for it failed; None: memory ran out.

    A kernel has failed, and CUDA returns its error from every later call of the process that uses
    this GPU. Source: CUDA Runtime API, `cudaErrorIllegalAddress` and others.
    """
    if is_out_of_memory(error):
        return None
    return f"the GPU is lost ({first_line(error)}); restart the process"
