"""Reads the weights of an engine directory as stored, FP8 and bfloat16, without conversion.

Tensors are views onto the mapped files, so that copying one to the GPU reads its pages once and
makes no copy on the host. `embedlib.models.compiled.checkpoint` defines what the files contain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch

from embedlib.engines.cuda.buffers import FP8
from embedlib.engines.cuda.device_weights import Fp8Matrix
from embedlib.errors import ModelWeightsError
from embedlib.models.compiled.row_scales import SCALE_SUFFIX
from embedlib.models.families.row import FusedSlice
from embedlib.models.families.table import ROWS
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.head_modules import AnswerRows
from embedlib.models.reading.model_file import list_files
from embedlib.models.spec import Dense, LayerNorm
from embedlib.models.weights.load import MODULE_TENSORS
from embedlib.models.weights.safetensors_files import StoredTensor, list_tensors, map_file
from embedlib.models.weights.tensor_roles import (
    encoder_shapes,
    module_shapes,
    tensor_name,
    tensor_prefix,
    tensor_rows,
)

TYPES: Final = {"F8_E4M3": FP8, "BF16": torch.bfloat16, "F32": torch.float32}
"""torch type by the name in a file's header."""

DirectoryWeights = Mapping[str, "torch.Tensor | Fp8Matrix"]


def open_weights(files: ModelFiles, folder: Path) -> DirectoryWeights:
    """Return the weights of an engine directory by role.

    Args:
        files: the model it was compiled from, or the engine directory itself.
        folder: the engine directory; it has passed `verify_engine_folder`.

    Raises:
        ModelWeightsError: a tensor is missing, or has a wrong type or shape.
    """
    transformer = _Folder(folder / files.transformer_dir.relative_to(files.folder))
    weights = _encoder(files, transformer)
    pairs = zip(files.spec.modules, files.module_dirs, strict=True)
    for position, (module, path) in enumerate(pairs):
        if not isinstance(module, (Dense, LayerNorm)):
            continue
        place = files.module_tensors.get(position)
        if isinstance(place, AnswerRows):
            weights[f"modules.{position}.weight"] = _answer_row(files, place, transformer)
            continue
        # The layers of a head are stored in the transformer's files.
        stem = place if place is not None else MODULE_TENSORS[type(module)]
        inside = _Folder(folder / path.relative_to(files.folder))
        for leaf, shape in module_shapes(module).items():
            rows = FusedSlice(f"{stem}.{leaf}", 0, 1)
            weights[f"modules.{position}.{leaf}"] = inside.read(rows, shape)
    return weights


def _encoder(files: ModelFiles, transformer: _Folder) -> dict[str, torch.Tensor | Fp8Matrix]:
    family = ROWS[files.spec.encoder.family]
    prefix = _prefix(files, transformer)
    weights: dict[str, torch.Tensor | Fp8Matrix] = {}
    for role, shape in encoder_shapes(files.spec.encoder).items():
        block = tensor_rows(role, family)
        rows = FusedSlice(prefix + block.name, block.index, block.count)
        tensor = transformer.read(rows, shape)
        if tensor.dtype == FP8:
            scales = FusedSlice(rows.name + SCALE_SUFFIX, rows.index, rows.count)
            weights[role] = Fp8Matrix(tensor, transformer.read(scales, shape[:1]))
        elif family.stores_norms_less_one and role.endswith("norm.weight"):
            weights[role] = tensor.float() + 1
        else:
            weights[role] = tensor
    return weights


def _prefix(files: ModelFiles, transformer: _Folder) -> str:
    """Return the prefix of the names of the transformer's tensors."""
    family = ROWS[files.spec.encoder.family]
    prefix = tensor_prefix(family, transformer.tensors)
    if prefix is None:
        anchor = tensor_name("tokens", family)
        raise ModelWeightsError(f"{transformer.path}: tensor {anchor} is missing")
    return prefix


def _answer_row(files: ModelFiles, place: AnswerRows, transformer: _Folder) -> torch.Tensor:
    """Return float32[1, H], which turns a vector into a score, computed as in `models.weights`."""
    encoder = files.spec.encoder
    anchor = tensor_name("tokens", ROWS[encoder.family])
    name = place.tensor or _prefix(files, transformer) + anchor
    matrix = transformer.read(FusedSlice(name, 0, 1), (encoder.vocab_size, encoder.hidden_size))
    row = matrix[place.true_token_id].float()
    if place.false_token_id is not None:
        row = row - matrix[place.false_token_id].float()
    return row[None] / place.divisor


class _Folder:
    """The safetensors files of one folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors: dict[str, StoredTensor] = {}
        for file in list_files(path, "*.safetensors"):
            self.tensors |= list_tensors(file, path)
        paths = {tensor.path for tensor in self.tensors.values()}
        self._data = {path: map_file(path) for path in paths}

    def read(self, rows: FusedSlice, shape: tuple[int, ...]) -> torch.Tensor:
        """Return one of several equal blocks of rows of a tensor, as a view onto the file."""
        stored = self.tensors.get(rows.name)
        whole = (rows.count * shape[0], *shape[1:])
        if stored is None:
            raise ModelWeightsError(f"{self.path}: tensor {rows.name} {list(whole)} is missing")
        if stored.shape != whole or stored.dtype not in TYPES:
            raise ModelWeightsError(
                f"{self.path}: tensor {rows.name} is {stored.dtype} {list(stored.shape)}; "
                f"expected: {list(whole)} of {', '.join(TYPES)}"
            )
        dtype = TYPES[stored.dtype]
        num_bytes = math.prod(shape) * dtype.itemsize
        start = stored.start + rows.index * num_bytes
        data = torch.from_numpy(self._data[stored.path])
        return data[start : start + num_bytes].view(dtype).view(shape)
