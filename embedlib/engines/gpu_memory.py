"""Whether a model fits into the memory of GPUs: an estimate, made before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final

from embedlib.config import Config
from embedlib.engines.gpus import Gpu, check_fp8
from embedlib.engines.kind import EnginePlan
from embedlib.errors import EngineUnavailableError
from embedlib.models.compiled.pooled_rows import POOLED_ROWS
from embedlib.models.spec import Encoder, ModelSpec
from embedlib.models.weights.tensor_roles import encoder_shapes, linear_roles
from embedlib.system.memory import GIB, digits_apart, gib

LIBRARY_BYTES: Final = 2 * GIB
"""Memory of torch, the kernels' code and the CUDA context, whatever the model; a safe estimate."""
BYTES_PER_NUMBER: Final = 2
"""Activations, and weights that are not FP8, are bfloat16."""
MAX_PREFIX_TOKENS: Final = 1024
"""Tokens of a prefix whose keys and values the engine cuda has room for, in causal models: 128 MiB
for a model of 7 billion numbers with 8 key heads."""


def check_gpus(plan: EnginePlan, spec: ModelSpec, config: Config, batch_tokens: int) -> None:
    """Check that the GPUs of a plan have the precision and the memory for a model.

    Args:
        plan: says on which GPUs, and in which precision.
        spec: the model.
        config: says which share of the memory may be used.
        batch_tokens: tokens of the largest batch.

    Raises:
        EngineUnavailableError: the message names the device.
    """
    precision = plan.precision
    needed = needed_bytes(spec, precision.name, precision.excluded, batch_tokens)
    for device, gpu in zip(plan.devices, plan.gpus, strict=True):
        if precision.name == "fp8":
            check_fp8(device, gpu)
        _check_room(device, gpu, needed, plan, config.gpu_memory_fraction)


def needed_bytes(
    spec: ModelSpec, precision: str, excluded: Collection[str], batch_tokens: int
) -> int:
    """Return an estimate of the GPU memory a model needs.

    Args:
        spec: the model.
        precision: "fp8": linear layers of the transformer take one byte per weight.
        excluded: roles of linear layers that stay in bfloat16, and pooled rows that do.
        batch_tokens: tokens of the largest batch.
    """
    weights = 0
    linear = linear_roles(spec.encoder) if precision == "fp8" else ()
    fp8 = {f"{role}.weight" for role in linear if role not in excluded}
    for role, shape in encoder_shapes(spec.encoder).items():
        is_fp8 = role in fp8
        weights += math.prod(shape) * (1 if is_fp8 else BYTES_PER_NUMBER)
        if is_fp8 and POOLED_ROWS in excluded:  # pooled rows read the layer in bfloat16 as well
            weights += math.prod(shape) * BYTES_PER_NUMBER
    return weights + _activation_bytes(spec.encoder, batch_tokens) + LIBRARY_BYTES


def _check_room(device: str, gpu: Gpu, needed: int, plan: EnginePlan, fraction: float) -> None:
    """Check that a model fits into a GPU.

    Raises:
        EngineUnavailableError: the GPU is too small, or other programs use its memory.
    """
    room = room_of(gpu, fraction)
    if needed > room and gpu.total_bytes is not None and gpu.free_bytes is not None:
        digits = digits_apart(needed, room)
        lower = "precision='fp8', " if gpu.has_fp8 and plan.precision.name != "fp8" else ""
        raise EngineUnavailableError(
            f"{device}: the model needs about {gib(needed, digits)}; {gpu.name} has "
            f"{gib(gpu.total_bytes)}, {gib(gpu.free_bytes, digits)} free, of which "
            f"gpu_memory_fraction = {fraction:g} allows {gib(gpu.total_bytes * fraction, digits)}; "
            f"take {lower}a smaller max_seq_tokens or max_batch_tokens, or a GPU with more free "
            "memory"
        )


def room_of(gpu: Gpu, fraction: float) -> float:
    """Return the bytes that a model may take of a GPU; infinity if the driver does not tell."""
    if gpu.total_bytes is None or gpu.free_bytes is None:
        return math.inf
    return min(gpu.total_bytes * fraction, gpu.free_bytes)


def bytes_per_token(encoder: Encoder) -> int:
    """Return the bytes of a token's activations: the matrices of one layer, which all layers share.

    The engine cuda allocates them as `cuda.lowering` names them; the other takes no more.
    """
    keys = 2 * encoder.num_kv_heads * encoder.head_dim
    queries = encoder.num_heads * encoder.head_dim
    # The residual, a norm of it and a change to it; the result in float32, which counts twice. If
    # tokens are pooled the result is smaller, and matrices of the pooled rows take as much.
    width = 5 * encoder.hidden_size
    width += 2 * (queries + keys)  # before and after attention, and the last layer's keys alone
    num_wide = (3 if encoder.is_gated else 2) + (encoder.experts.count if encoder.experts else 0)
    width += num_wide * encoder.intermediate_size
    if encoder.convolutions is not None:
        width += 3 * encoder.hidden_size
    if encoder.relative_positions is not None:  # of queries and of keys, with either direction's
        width += 4 * encoder.num_heads * encoder.relative_positions.num_buckets
    return width * BYTES_PER_NUMBER


def _activation_bytes(encoder: Encoder, batch_tokens: int) -> int:
    """Return the bytes of a batch's activations and of a kept prefix."""
    keys = 2 * encoder.num_kv_heads * encoder.head_dim * BYTES_PER_NUMBER
    kept = (
        min(MAX_PREFIX_TOKENS, batch_tokens) * keys * encoder.num_layers if encoder.is_causal else 0
    )
    return batch_tokens * bytes_per_token(encoder) + kept
