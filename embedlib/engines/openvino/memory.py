"""How much memory a model takes on the CPU: an estimate, made before anything is loaded.

Every compiled model holds its own packed copy of the linear layers; oneDNN packs a layer once for
few rows and once for many. Weights that are not stored as float32 or int8 are widened when the
graph is built. Files are mapped, so their pages are dropped when memory runs short.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from embedlib.config import Config
from embedlib.engines.kind import ChosenPrecision
from embedlib.engines.openvino.block_sizes import MAX_WHOLE_TOKENS, num_scores
from embedlib.engines.openvino.prefix_sizes import max_kept_bytes
from embedlib.errors import ModelError
from embedlib.memory import GIB
from embedlib.models.reading.files import ModelFiles
from embedlib.models.spec import Encoder
from embedlib.models.weights.safetensors_files import list_tensors
from embedlib.models.weights.tensor_roles import encoder_shapes, linear_roles

MAX_BATCH_TOKENS: Final = 512
"""Small batches stay in the cache of a core. Source: docs/benchmarks.md, token budget."""
LIBRARY_BYTES: Final = GIB // 4
"""OpenVINO, its threads and the tokenizer, whatever the model; a safe estimate."""
LIBRARY_ADDRESSES: Final = 2 * GIB
"""Address space of libraries and of the stacks and heaps of threads; a safe estimate."""
PACKED_COPIES: Final = 2.0
"""Packed copies of a linear layer per compiled model, at most. Source: docs/benchmarks.md, memory
of the CPU engine."""
WIDENING: Final = 1.15
"""Memory for widened weights, over their size: what the allocator keeps is included."""
LIVE_ROWS: Final = 8
"""Activations of a layer in memory at once, in rows of the hidden size; an estimate."""
BLOCK_ROWS: Final = 14
"""What attention in blocks keeps beside them, in rows of all heads. Source: docs/benchmarks.md,
long texts."""


@dataclass(frozen=True)
class MemoryNeeds:
    """What a model takes, in bytes."""

    weights: int
    """In the precision that is computed in."""
    separate: int
    """All data, with one compiled model for each lane."""
    shared: int
    """All data, with one compiled model for both lanes."""
    files: int
    """Of mapped files, and of libraries' addresses."""


def memory_needs(files: ModelFiles, precision: ChosenPrecision, config: Config) -> MemoryNeeds:
    """Return an estimate of the memory a model takes on one device.

    Args:
        files: the model.
        precision: int8 takes one byte for each weight of a linear layer, float32 four.
        config: says how many batches are computed at the same time, and their size.
    """
    encoder = files.spec.encoder
    linear = {f"{role}.weight" for role in linear_roles(encoder)}
    coded = linear - {f"{role}.weight" for role in precision.excluded}
    is_widened = _stores_16_bits(precision.folder or files.transformer_dir)
    weights = packed = widened = 0
    for role, shape in encoder_shapes(encoder).items():
        is_coded = precision.name == "int8" and role in coded
        num_bytes = math.prod(shape) * (1 if is_coded else 4)
        weights += num_bytes
        packed += num_bytes if role in linear else 0
        widened += num_bytes if is_widened and not is_coded else 0
    batch_tokens = config.max_batch_tokens or MAX_BATCH_TOKENS
    batch_tokens = min(batch_tokens, files.spec.max_seq_tokens)
    batches = (config.num_threads + 1) * _activation_bytes(encoder, batch_tokens)
    copy = int(PACKED_COPIES * packed)
    shared = LIBRARY_BYTES + int(WIDENING * widened) + copy + batches + max_kept_bytes(files.spec)
    return MemoryNeeds(
        weights=weights,
        separate=shared + copy,
        shared=shared,
        files=2 * weights + LIBRARY_ADDRESSES,
    )


def _stores_16_bits(folder: Path) -> bool:
    """Return whether a folder stores weights in 16 bits, which a graph takes as float32."""
    try:
        return any(
            tensor.dtype in ("F16", "BF16")
            for path in folder.glob("*.safetensors")
            for tensor in list_tensors(path, folder).values()
        )
    except ModelError:
        return False  # the engine raises it again, when it loads the weights


def _activation_bytes(encoder: Encoder, batch_tokens: int) -> int:
    width = LIVE_ROWS * encoder.hidden_size + 2 * encoder.intermediate_size
    score_copies = 2
    if batch_tokens > MAX_WHOLE_TOKENS:
        width += BLOCK_ROWS * encoder.num_heads * encoder.head_dim
        score_copies = 4
    # A sequence that fills the batch.
    scores = score_copies * encoder.num_heads * num_scores(batch_tokens)
    return 4 * (batch_tokens * width + scores)
