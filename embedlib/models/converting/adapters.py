"""What the adapter of a task adds to the matrices of a model (LoRA).

An adapter has two narrow matrices for each matrix that it changes: W becomes W + s B A. They are
stored in one of two ways: in a folder for each task, as peft writes it, or in the model's own file,
those of all tasks stacked.

Source: Hu et al., LoRA (arXiv:2106.09685), section 4.1; `LoraLayer` of peft 0.17,
tuners/lora/layer.py, for names and shapes; modeling_lora.py of
huggingface.co/jinaai/xlm-roberta-flash-implementation for stacked ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import ModelWeightsError
from embedlib.models.families.row import FusedSlice
from embedlib.models.reading.json_files import JsonObject, show
from embedlib.models.weights.safetensors_files import (
    STORED_DTYPES,
    StoredTensor,
    list_tensors,
    map_file,
)

CONFIG_NAME: Final = "adapter_config.json"
WEIGHTS_NAME: Final = "adapter_model.safetensors"
PEFT_PREFIX: Final = "base_model.model."

_NOTHING: Final[tuple[object, ...]] = (None, {}, [], False)
PEFT_KEYS: Final[Mapping[str, tuple[object, ...] | None]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    **dict.fromkeys(
        (
            "alpha_pattern", "rank_pattern", "corda_config", "eva_config", "exclude_modules",
            "fan_in_fan_out", "layer_replication", "layers_pattern", "layers_to_transform",
            "loftq_config", "lora_bias", "megatron_config", "modules_to_save",
            "trainable_token_indices", "use_dora", "use_rslora", "use_qalora", "target_parameters",
        ),
        _NOTHING,
    ),
    **dict.fromkeys(
        (
            "r", "lora_alpha", "target_modules", "lora_dropout", "auto_mapping", "task_type",
            "base_model_name_or_path", "inference_mode", "init_lora_weights", "megatron_core",
            "revision", "peft_version", "runtime_config", "qalora_group_size",
        )
    ),
}  # fmt: skip
"""Keys of adapter_config.json. A tuple holds the only values implemented; None: any value."""

_PEFT_NAME: Final = re.compile(r"(.+)\.lora_(embedding_)?([AB])(?:\.weight)?")
_STACKED_NAME: Final = re.compile(r"(.+)\.parametrizations\.weight\.(original|0\.lora_[AB])")


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is added to a matrix, or to a block of its rows: factor left @ right."""

    left: Callable[[], NDArray[np.float32]]
    """Returns float32[rows, r]."""
    right: Callable[[], NDArray[np.float32]]
    """Returns float32[r, columns]."""
    shape: tuple[int, int]
    """Rows and columns."""
    factor: float
    index: int = 0
    count: int = 1
    """Which of so many equal blocks of rows it is for."""


Changes = dict[str, list[Change]]
"""By the name of the stored matrix, without `.weight`."""


def read_peft(directory: Path, folder: Path, find: Callable[[str], FusedSlice | None]) -> Changes:
    """Read an adapter in a folder of its own.

    Args:
        directory: has adapter_config.json and adapter_model.safetensors.
        folder: the model folder, for messages.
        find: returns where the model stores the matrix of a module of the class; None: it does not
            use that module.

    Raises:
        ModelUnsupportedError: a key is unknown, or its value is not implemented.
        ModelWeightsError: a tensor is missing, or of the wrong shape.
    """
    config = JsonObject.load(directory / CONFIG_NAME, folder)
    config.check_keys(PEFT_KEYS.keys())
    for key, accepted in PEFT_KEYS.items():
        if accepted is not None:
            config.check_fixed(key, accepted)
    rank = config.integer("r")
    factor = config.number("lora_alpha") / rank
    stored = list_tensors(directory / WEIGHTS_NAME, folder)  # refuses what is no file to map
    data = map_file(directory / WEIGHTS_NAME)
    pairs: dict[tuple[str, bool], dict[str, StoredTensor]] = {}
    for name, tensor in stored.items():
        found = _PEFT_NAME.fullmatch(name)
        if found is None:
            raise ModelWeightsError(f"{tensor.file}: tensor {show(name)} is not one of LoRA's")
        module, is_embedding, letter = found.groups()
        pairs.setdefault((module, is_embedding is not None), {})[letter] = tensor
    changes: Changes = {}
    for (module, is_table), pair in pairs.items():
        place = find(module.removeprefix(PEFT_PREFIX))
        if place is not None:
            change = _peft_change(module, pair, data, rank, factor, is_table=is_table)
            change = replace(change, index=place.index, count=place.count)
            changes.setdefault(place.name, []).append(change)
    return changes


def read_stacked(
    stored: Mapping[str, StoredTensor], data: NDArray[np.uint8], task: int, factor: float
) -> Changes:
    """Read the adapter of a task from the model's own file.

    Args:
        stored: the tensors of the file.
        data: uint8[file size], the mapped file.
        task: its place among the tasks.
        factor: alpha / r.

    Raises:
        ModelWeightsError: a tensor is missing, or of the wrong shape.
    """
    changes: Changes = {}
    for name in stored:
        found = _STACKED_NAME.fullmatch(name)
        if found is None:
            continue
        stem = f"{found[1]}.parametrizations.weight.0.lora_"
        down, up = stored.get(f"{stem}A"), stored.get(f"{stem}B")
        if down is None or up is None or not task < min(_tasks(down), _tasks(up)):
            raise ModelWeightsError(
                f"{stored[name].file}: {show(found[1])} lacks lora_A or lora_B of the task"
            )
        # Of an embedding, A is the wide one.
        first, second = (down, up) if "embeddings" in found[1] else (up, down)
        first, second = (_of_task(tensor, task) for tensor in (first, second))
        changes[found[1]] = [_change(found[1], first, second, data, factor)]
    return changes


def unstacked_name(name: str) -> str | None:
    """Return the plain name of a tensor with stacked adapters; None for one of an adapter."""
    found = _STACKED_NAME.fullmatch(name)
    if found is None:
        return name
    return f"{found[1]}.weight" if found[2] == "original" else None


def _peft_change(
    module: str,
    pair: Mapping[str, StoredTensor],
    data: NDArray[np.uint8],
    rank: int,
    factor: float,
    *,
    is_table: bool,
) -> Change:
    down, up = pair.get("A"), pair.get("B")
    if down is None or up is None or rank not in down.shape:
        raise ModelWeightsError(f"{show(module)} lacks lora_A or lora_B of rank {rank}")
    change = _change(module, up, down, data, factor)
    if not is_table:
        return change
    # Stored for the transposed table.
    return replace(
        change,
        left=lambda: change.right().T,
        right=lambda: change.left().T,
        shape=change.shape[::-1],
    )


def _change(
    name: str, left: StoredTensor, right: StoredTensor, data: NDArray[np.uint8], factor: float
) -> Change:
    shapes = (left.shape, right.shape)
    if not all(len(shape) == 2 for shape in shapes) or left.shape[1] != right.shape[0]:
        raise ModelWeightsError(
            f"{left.file}: the matrices of {show(name)} are {list(left.shape)} and "
            f"{list(right.shape)}, which cannot be multiplied"
        )
    return Change(
        left=lambda: _read(left, data),
        right=lambda: _read(right, data),
        shape=(left.shape[0], right.shape[1]),
        factor=factor,
    )


def _read(tensor: StoredTensor, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    if tensor.dtype not in STORED_DTYPES:
        raise ModelWeightsError(f"{tensor.file}: has type {tensor.dtype} in an adapter")
    return tensor.read(data)


def _tasks(tensor: StoredTensor) -> int:
    return tensor.shape[0] if len(tensor.shape) == 3 else 0


def _of_task(tensor: StoredTensor, task: int) -> StoredTensor:
    block = tensor.block(task, _tasks(tensor))
    return replace(block, shape=block.shape[1:])
