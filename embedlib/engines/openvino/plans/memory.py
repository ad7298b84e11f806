"""How much memory a model takes on the CPU, and how it is laid out; known before it is loaded.

A compiled model packs the matrices for itself. MLAS packs a float32 matrix once for any number of
rows; oneDNN, which has what is stored in int8 or 16 bits, packs a small one for few rows and for
many, and those of a large model once, see `matrices`. In bf16 all matrices are oneDNN's, packed
once, in two bytes a weight, whatever the file stores; where MLPs are cut, columns are copied
before, see `mlp_sizes`. Two compiled models, one for each lane, are the fastest. From some size on
both lanes share one. Files are mapped; their pages are let go once a large model is packed.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from embedlib.config import Config
from embedlib.engines.kind import ChosenPrecision
from embedlib.engines.machine import Machine
from embedlib.engines.openvino.sizes.block_sizes import (
    MAX_WHOLE_TOKENS,
    is_in_blocks,
    num_scores,
    scores_are_kept,
)
from embedlib.engines.openvino.sizes.mlp_sizes import copied_bytes
from embedlib.engines.openvino.sizes.number_types import multiplies_tiles, number_type
from embedlib.engines.openvino.sizes.operator_sizes import separate_bytes, shared_bytes
from embedlib.engines.openvino.sizes.prefix_sizes import max_kept_bytes
from embedlib.engines.openvino.sizes.stage_sizes import (
    MAX_TOGETHER_TOKENS,
    MIN_TRIMMED_ROWS,
    max_stages,
)
from embedlib.errors import ModelError
from embedlib.models.compiled.int8 import INT8_GROUPS, groups_of
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.model_file import list_files
from embedlib.models.spec import Encoder
from embedlib.models.weights.safetensors_files import list_tensors
from embedlib.models.weights.tensor_roles import encoder_shapes, is_expert, linear_roles
from embedlib.models.weights.weight_files import weight_files
from embedlib.system.memory import GIB

MAX_BATCH_TOKENS: Final = 512
"""Small batches stay in the cache of a core. Source: docs/measurements/queries.md, token
budget."""
SHARED_BATCH_TOKENS: Final = 192
"""Of a batch where the lanes share a compiled model: a query waits for a part of one, and fewer
rows are multiplied at less than the full rate. Source: docs/measurements/memory.md, batches
of a shared model."""
TILES_BATCH_TOKENS: Final = 1024
"""Where AMX multiplies, whether the lanes share one or not: for more rows it is busier, and a batch
takes no longer than a smaller one in float32. Source: docs/measurements/cpu-amx.md, batches,
queries and attention."""
LIBRARY_BYTES: Final = 168 << 20
"""Python, OpenVINO, its threads and the tokenizer, whatever the model: 140 MiB measured, and some
to spare. Source: docs/measurements/memory.md, by model and precision."""
CACHE_BYTES: Final = 48 << 20
"""What a start that fills the cache of compiled models takes beside that; large models are not
kept there. Source: as above."""
LIBRARY_ADDRESSES: Final = 2 * GIB
"""Address space of libraries and of the stacks and heaps of threads; a safe estimate."""
SMALL_BYTES: Final = 64 << 20
"""Of packed matrices: so small a model may have copies and cost nothing worth saving."""
MLAS_COPIES: Final = 1.1
"""Packed copies of a float32 matrix in a large model: the plugin fuses some products with what
follows, and multiplies them with oneDNN. Source: docs/measurements/memory.md, packings."""
SMALL_COPIES: Final = 2.0
"""Packed copies of any matrix in a small model. Source: as above."""
MAPPED_BYTES: Final = GIB // 8
"""Pages of mapped files between two times that they are let go."""
TABLE_BYTES: Final = GIB // 16
"""Pages of embedding tables that texts have touched, at most; an estimate."""
SPARE_SHARE: Final = 0.25
SPARE_BYTES: Final = 197 << 20
"""What packed copies, and what a second compiled model takes beside them, may take beyond the
weights, for both lanes to have a model of their own. Source: docs/measurements/memory.md, lanes."""
LANE_BYTES: Final = 5 << 20
"""What a second compiled model takes for each layer beside its matrices, where oneDNN has them.
Source: docs/measurements/zen4-precisions.md, BERT-large and Qwen3-0.6B in int8."""
LIVE_ROWS: Final = 8
"""Activations of a layer in memory at once, in rows of the hidden size; an estimate."""
BLOCK_ROWS: Final = 14
"""What attention in blocks keeps beside them, in rows of all heads. Source:
docs/measurements/attention.md, long texts."""
LONG_ROWS: Final = 8
"""The same of long texts in one piece. Source: as above."""
WINDOW_BYTES: Final = 6
"""Of each pair of tokens, while the mask of a sliding window is made. Source: as above."""


@dataclass(frozen=True)
class MemoryNeeds:
    """What a model takes, in bytes."""

    precision: str
    """In which, and what is excluded from it."""
    weights: int
    """In the precision that is computed in."""
    packed: int
    """Of them the matrices of linear layers, which are packed."""
    separate: int
    """All data, with one compiled model for each lane."""
    shared: int
    """All data, with one compiled model for both lanes."""
    files: int
    """Of mapped files, and of libraries' addresses."""
    copies: float
    """Packed copies of the matrices in a compiled model, at most."""
    second: int
    """Of a second compiled model, beside its matrices."""
    is_widened: bool = False
    """Whether weights in 16 bits are to be widened to float32 first, see `float32_copy`."""

    @property
    def is_large(self) -> bool:
        """Whether the matrices are too large for copies that can be saved."""
        return self.packed > SMALL_BYTES

    @property
    def may_be_separate(self) -> bool:
        """Whether a compiled model for each lane takes little more than the weights."""
        both = 2 * self.copies * self.packed + self.second
        return both <= (1 + SPARE_SHARE) * self.weights + SPARE_BYTES


def memory_needs(
    files: ModelFiles, precision: ChosenPrecision, config: Config, *, is_widened: bool = False
) -> MemoryNeeds:
    """Return an estimate of the memory a model takes on one device, an upper bound.

    Args:
        files: the model.
        precision: int8 takes one byte for each weight of a linear layer, and its scales, bf16 two,
            float32 four.
        config: says how many batches are computed at the same time, and their size. A text longer
            than that is a batch of its own, so the longest one counts.
        is_widened: whether weights in 16 bits are to be widened to float32 first.
    """
    encoder = files.spec.encoder
    linear = {f"{role}.weight" for role in linear_roles(encoder)}
    coded = linear - {f"{role}.weight" for role in precision.excluded}
    is_stored_narrow = stores_16_bits(files, precision.folder)
    is_narrow = is_stored_narrow and not is_widened
    numbers = number_type(precision.name)
    is_bf16 = numbers == "bf16"
    group = INT8_GROUPS.get(precision.name)
    is_float = not (is_narrow or is_bf16)
    weights = packed = by_mlas = 0
    for role, shape in encoder_shapes(encoder).items():
        is_coded = group is not None and role in coded
        size = 1 if is_coded else 2 if is_bf16 and role in linear else 4
        num_bytes = math.prod(shape) * size
        num_bytes += 4 * shape[0] * groups_of(shape[1], group) if group and is_coded else 0
        weights += num_bytes
        if role in linear or (is_expert(role) and role.endswith(".weight")):
            packed += num_bytes
            by_mlas += num_bytes if is_float and not is_coded else 0
    if files.spec.is_splade:  # the matrix of the head, often the one of the token embeddings
        rows = (2 if is_bf16 else 4) * files.spec.embedding_dim * encoder.table_width
        weights += rows
        packed += rows
        by_mlas += rows if is_float else 0
    by_onednn = packed - by_mlas
    is_large = packed > SMALL_BYTES
    copies = int(MLAS_COPIES * by_mlas) + by_onednn if is_large else int(SMALL_COPIES * packed)
    batch_tokens = config.max_batch_tokens or best_batch_tokens(numbers)
    longest = files.spec.max_seq_tokens
    batch = _activation_bytes(encoder, max(batch_tokens, longest), longest, is_bf16=is_bf16)
    num_stages = max_stages(encoder.num_layers, is_float32=precision.name == "float32")
    # A kept graph of float32 weights packs those of a stage before its pages are let go.
    # Packing float32 in two bytes reads twice as many pages as it writes.
    read = 2 if precision.name == "bf16" and not is_narrow else 1
    pages = min(read * packed, max(read * MAPPED_BYTES, by_mlas // num_stages))
    # Columns of MLPs that are cut are copied; a later start maps the copies and lets them go.
    has_tiles = multiplies_tiles(numbers, Machine().cpu_features())
    copied = copied_bytes(encoder) if has_tiles else 0
    both = LIBRARY_BYTES + copies + copied + min(weights - packed, TABLE_BYTES)
    both += 0 if is_large else CACHE_BYTES
    computing = batch + max_kept_bytes(files.spec, is_bf16=is_bf16)
    # Of a large model each stage keeps what a short batch takes.
    short_tokens = min(batch_tokens, MIN_TRIMMED_ROWS)
    short_longest = min(short_tokens, longest)
    short = _activation_bytes(encoder, short_tokens, short_longest, is_bf16=is_bf16)
    stages = (num_stages - 1) * short if is_large else 0
    of_lanes = computing + config.num_threads * batch + separate_bytes(config.num_threads)
    second = LANE_BYTES * encoder.num_layers if by_onednn > by_mlas else 0
    # A large model lets the pages go before it computes.
    at_once = max if is_large else operator.add
    return MemoryNeeds(
        precision=str(precision),
        weights=weights,
        packed=packed,
        separate=both + copies + second + at_once(pages, of_lanes),
        shared=both + at_once(pages, computing + stages + shared_bytes(num_stages)),
        files=2 * weights + LIBRARY_ADDRESSES,
        copies=copies / packed,
        second=second,
        is_widened=is_widened and is_stored_narrow,
    )


def best_batch_tokens(precision: str, *, shares_lanes: bool = False) -> int:
    """Return the token budget of a batch that was measured to be the best.

    Args:
        precision: of everything that is not int8.
        shares_lanes: whether the lanes share a compiled model.
    """
    if multiplies_tiles(precision, Machine().cpu_features()):
        return TILES_BATCH_TOKENS
    return SHARED_BATCH_TOKENS if shares_lanes else MAX_BATCH_TOKENS


def layerwise_needs(files: ModelFiles, config: Config) -> MemoryNeeds:
    """Return the same for a `LayerwiseEngine` in float32.

    The layer that is computed is packed, and its pages have been read; of every batch there is a
    row for each token.
    """
    encoder = files.spec.encoder
    whole = memory_needs(files, ChosenPrecision(name="float32"), config)
    layers: Counter[str] = Counter()
    tables = 0
    for role, shape in encoder_shapes(encoder).items():
        if role.startswith("layers."):
            layers[role.split(".")[1]] += 4 * math.prod(shape)
        else:
            tables += 4 * math.prod(shape)
    largest = max(layers.values())
    longest = files.spec.max_seq_tokens
    most_tokens = max(config.max_batch_tokens or MAX_BATCH_TOKENS, longest)
    batch = _activation_bytes(encoder, most_tokens, longest, is_bf16=False)
    rows = 4 * encoder.hidden_size * max(MAX_TOGETHER_TOKENS, most_tokens)
    packing = int(MLAS_COPIES * largest) + max(largest, MAPPED_BYTES)
    needed = LIBRARY_BYTES + packing + min(tables, TABLE_BYTES) + batch + rows
    return replace(whole, separate=needed, shared=needed)


def most_bytes(num_parameters: int, precision: str) -> int:
    """Return what a model takes at most, of which only the number of parameters is known.

    As `memory_needs`, with all of them in matrices, one compiled model for both lanes, and without
    the activations of a batch and copies of columns.

    Args:
        num_parameters: of the model.
        precision: int8 takes one byte for each, and its scales, bf16 two, float32 four.
    """
    sizes = {"bf16": 2.0, **{name: 1 + 4 / group for name, group in INT8_GROUPS.items()}}
    packed = int(num_parameters * sizes.get(precision, 4))
    if packed > SMALL_BYTES:
        copies = MLAS_COPIES if precision == "float32" else 1.0
    else:
        copies = SMALL_COPIES
    return LIBRARY_BYTES + int(copies * packed) + min(packed, MAPPED_BYTES)


def stores_16_bits(files: ModelFiles, folder: Path | None) -> bool:
    """Return whether matrices are stored in 16 bits; a table of tokens does not count.

    Args:
        files: the model.
        folder: its engine directory; None: its own weights.
    """
    try:
        if folder is None:
            paths = weight_files(files.transformer_dir, files.folder)
        else:
            paths = list_files(folder, "*.safetensors")
        tensors = (list_tensors(path, folder or files.folder).values() for path in paths)
        return any(
            tensor.dtype in ("F16", "BF16")
            and len(tensor.shape) > 1
            and tensor.shape[0] != files.spec.encoder.vocab_size
            for of_file in tensors
            for tensor in of_file
        )
    except ModelError:
        return False  # the engine raises it again, when it loads the weights


def _activation_bytes(encoder: Encoder, num_tokens: int, longest: int, *, is_bf16: bool) -> int:
    """Return what a batch of so many tokens takes, in sequences as long as the longest one."""
    width = LIVE_ROWS * encoder.hidden_size + 2 * encoder.intermediate_size
    windows = set(encoder.windows)
    in_blocks = {w for w in windows if is_in_blocks(encoder, w, longest, is_bf16=is_bf16)}
    if in_blocks:
        width += BLOCK_ROWS * encoder.num_heads * encoder.head_dim
        pairs = 16 * encoder.num_heads * num_scores(longest)
        has_whole_mask = encoder.is_causal and in_blocks != windows
        pairs += longest**2 if has_whole_mask else 0
    elif longest <= MAX_WHOLE_TOKENS:
        pairs = 4 * encoder.num_heads * longest**2
    elif scores_are_kept(encoder):  # in bf16: the scores, their bias, both, and the shares
        pairs = 16 * encoder.num_heads * longest**2
    else:
        width += LONG_ROWS * encoder.num_heads * encoder.head_dim
        narrow = [window for window in windows if window is not None and window < longest]
        pairs = (WINDOW_BYTES * len(narrow) + encoder.is_causal) * longest**2
    return 4 * num_tokens * width + pairs * -(-num_tokens // longest)
