"""Writes a model with the adapter of one task merged into its weights: a plain model folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copy2
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import ConfigError, ModelNotFoundError, ModelWeightsError, shown
from embedlib.models.compiled.checkpoint import write_json
from embedlib.models.compiled.new_folder import new_folder, place_lock
from embedlib.models.converting.adapters import (
    CONFIG_NAME,
    Change,
    Changes,
    read_peft,
    read_stacked,
    unstacked_name,
)
from embedlib.models.converting.safetensors_writer import Writable, write_safetensors
from embedlib.models.converting.torch_file import CheckpointTensor
from embedlib.models.folders import read_folder
from embedlib.models.new_file import not_written
from embedlib.models.reading.adapted import AdaptedModel, files_of, find_adapted
from embedlib.models.reading.json_files import JsonObject, show
from embedlib.models.reading.model_file import has_file
from embedlib.models.reading.vocabulary_files import vocabulary_files
from embedlib.models.weights.load import load_weights
from embedlib.models.weights.safetensors_files import (
    NUMPY_TYPES,
    STORED_DTYPES,
    StoredTensor,
    list_tensors,
    map_file,
)
from embedlib.models.weights.weight_files import WEIGHTS_NAME

BLOCK_ROWS: Final = 1 << 14
PREFIXES: Final = ("", "model.", "roberta.")
"""In front of the names that an adapter uses, by the class that wrote the model's file."""


@dataclass(frozen=True, kw_only=True)
class Merged:
    """What was done."""

    folder: Path
    adapter: str
    num_tensors: int
    num_changed: int


@dataclass(frozen=True)
class ChangedTensor:
    """A matrix with what an adapter adds to it; computed when it is written, in float32."""

    stored: StoredTensor
    data: NDArray[np.uint8]
    changes: Sequence[Change]
    dtype: str = "F32"

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.stored.shape

    @property
    def num_bytes(self) -> int:
        """Its size in the file."""
        return 4 * int(np.prod(self.shape))

    @property
    def values(self) -> NDArray[np.float32]:
        """Its numbers, float32[rows, columns]."""
        values = np.array(self.stored.read(self.data))
        for change in self.changes:
            rows = self.shape[0] // change.count
            part = values[change.index * rows : (change.index + 1) * rows]
            left, right = change.left(), np.float32(change.factor) * change.right()
            for start in range(0, rows, BLOCK_ROWS):  # a product of a whole table takes 1 GB
                part[start : start + BLOCK_ROWS] += left[start : start + BLOCK_ROWS] @ right
        return values


def merge_adapter(
    folder: Path, adapter: str, out: Path, report: Callable[[int, int], None]
) -> Merged:
    """Write a model with the adapter of a task merged.

    Args:
        folder: a model folder with adapters.
        adapter: the name of the task, as config.json has it.
        out: a new folder.
        report: called with the bytes written, and those of all tensors.

    Raises:
        ModelNotFoundError: the folder has no adapters.
        ConfigError: `out` is there already, or the model has no such task.
        ModelError: a file is damaged or cannot be written, or has something that is not
            implemented.
    """
    config = JsonObject.load(folder / "config.json", folder)
    model = find_adapted(config)
    if model is None:
        raise ModelNotFoundError(
            f"{folder}: config.json is that of no model with an adapter for each task; leave out "
            "--adapter"
        )
    task = model.check_task(config, adapter)
    if os.path.exists(out):
        raise ConfigError(f"{shown(str(out))} is there already; give a new folder")
    out = out.resolve()  # its lock and its part stand beside it
    stored = list_tensors(folder / WEIGHTS_NAME, folder)
    data = map_file(folder / WEIGHTS_NAME)
    changes = _changes(folder, model, config, adapter, task, stored, data)
    tensors = _tensors(stored, data, changes)
    total = sum(tensor.num_bytes for tensor in tensors.values())
    num_written = 0

    def count(num_bytes: int) -> None:
        nonlocal num_written
        num_written += num_bytes
        report(num_written, total)

    try:
        with place_lock(out), new_folder(out) as part:
            _write_files(folder, part, model, config, adapter, stored)
            write_safetensors(part / WEIGHTS_NAME, tensors, count)
            load_weights(read_folder(part))  # refuses what is left over, missing or not known
    except OSError as error:
        raise ModelWeightsError(not_written(out, error)) from error
    return Merged(
        folder=out,
        adapter=adapter,
        num_tensors=len(tensors),
        num_changed=sum(isinstance(tensor, ChangedTensor) for tensor in tensors.values()),
    )


def _changes(
    folder: Path,
    model: AdaptedModel,
    config: JsonObject,
    adapter: str,
    task: int,
    stored: Mapping[str, StoredTensor],
    data: NDArray[np.uint8],
) -> Changes:
    directory = folder / model.directory(adapter)
    if has_file(directory / CONFIG_NAME, folder):
        found = read_peft(directory, folder, model.stored)
    else:
        factor = config.number("lora_alpha") / config.integer("lora_rank")
        found = read_stacked(stored, data, task, factor)
    if not found:
        raise ModelWeightsError(f"{folder}: has no weights of an adapter {adapter}")
    return found


def _tensors(
    stored: Mapping[str, StoredTensor], data: NDArray[np.uint8], changes: Changes
) -> dict[str, Writable]:
    """Return the tensors of the merged model by name.

    Raises:
        ModelWeightsError: the adapter changes a matrix that the model lacks, or of another shape.
    """
    plain = {unstacked_name(name): tensor for name, tensor in stored.items()}
    tensors: dict[str, Writable] = {
        name: _as_stored(tensor, data) for name, tensor in plain.items() if name is not None
    }
    for stem, added in changes.items():
        name = next(
            (name for prefix in PREFIXES if (name := f"{prefix}{stem}.weight") in plain), None
        )
        if name is None:
            raise ModelWeightsError(
                f"the adapter changes {show(stem)}, which the model does not have"
            )
        tensor = plain[name]
        for change in added:
            if (tensor.shape[0] // change.count, *tensor.shape[1:]) != change.shape:
                raise ModelWeightsError(
                    f"{tensor.file}: {show(name)} has shape {list(tensor.shape)}; the adapter "
                    f"changes {list(change.shape)}"
                )
        if tensor.dtype not in STORED_DTYPES:
            raise ModelWeightsError(f"{tensor.file}: {show(name)} has type {tensor.dtype}")
        tensors[name] = ChangedTensor(tensor, data, added)
    return tensors


def _as_stored(tensor: StoredTensor, data: NDArray[np.uint8]) -> CheckpointTensor:
    """Return a tensor as it is.

    Raises:
        ModelWeightsError: its type is none of a model.
    """
    if tensor.dtype not in NUMPY_TYPES:
        raise ModelWeightsError(f"{tensor.file}: has a tensor of type {tensor.dtype}")
    return CheckpointTensor(tensor.dtype, tensor.stored(data))


def _write_files(
    folder: Path,
    part: Path,
    model: AdaptedModel,
    config: JsonObject,
    adapter: str,
    stored: Mapping[str, StoredTensor],
) -> None:
    """Write everything but the weights."""
    base = model.base(config, {name for name in map(unstacked_name, stored) if name is not None})
    written: dict[str, Any] = {"config.json": base, **files_of(model, config)}
    general = model.general(config, adapter)
    if general is not None:
        written["config_sentence_transformers.json"] = general
    for path in sorted([*folder.glob("*.json"), *vocabulary_files(folder, folder)]):
        if path.is_file() and path.name not in written and not path.name.endswith(".index.json"):
            copy2(path, part / path.name)
    for name, content in written.items():
        (part / name).parent.mkdir(exist_ok=True)
        write_json(part / name, content)
