"""A model's weights by role, such as `layers.3.q.weight`, independent of the names in its files.

Opening the files checks names, shapes and completeness. A tensor is read only when it is accessed.
`tensor_roles.py` lists the roles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import ModelWeightsError
from embedlib.models.families.row import Family, FusedSlice
from embedlib.models.families.table import ROWS
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.head_modules import AnswerRows, VocabularyRows
from embedlib.models.reading.json_files import show
from embedlib.models.spec import Dense, LayerNorm, SpladePooling
from embedlib.models.weights.safetensors_files import (
    STORED_DTYPES,
    RowDifference,
    StoredTensor,
    map_file,
)
from embedlib.models.weights.table import (
    TokenTable,
    TokenWeights,
    find_table,
    find_token_weights,
)
from embedlib.models.weights.tensor_roles import (
    RESIDUAL,
    Shapes,
    encoder_shapes,
    module_shapes,
    tensor_name,
    tensor_prefix,
    tensor_rows,
)
from embedlib.models.weights.weight_files import WEIGHTS_NAME, list_all

MODULE_TENSORS: Final = {Dense: "linear", LayerNorm: "norm"}
"""The name of a module's only layer in its files."""


_Stored = StoredTensor | RowDifference | TokenTable | TokenWeights


class Weights(Mapping[str, NDArray[np.float32]]):
    """Role to array. For float32 files, the arrays are views of the mapped file."""

    def __init__(self, tensors: Mapping[str, _Stored]) -> None:
        """Map the files, without reading a tensor.

        Args:
            tensors: role to stored tensor.
        """
        self._tensors = dict(tensors)
        # In the order of the roles, whatever the hashes of the paths: it is part of a cache's key.
        paths = dict.fromkeys(tensor.path for tensor in self._tensors.values())
        self.mapped_files = {path: map_file(path) for path in paths}
        """The bytes of each file, uint8[file size]."""

    def __getitem__(self, role: str) -> NDArray[np.float32]:
        """Return one tensor as float32; converts other types on every call."""
        tensor = self._tensors[role]
        return tensor.read(self.mapped_files[tensor.path])

    def stored(self, role: str) -> StoredTensor | None:
        """Return where a tensor is stored; None: it is computed when it is accessed."""
        tensor = self._tensors[role]
        return tensor if isinstance(tensor, StoredTensor) else None

    def __contains__(self, role: object) -> bool:
        """Return whether there is such a tensor; `Mapping` would read and convert it."""
        return role in self._tensors

    def __iter__(self) -> Iterator[str]:
        """Iterate over the roles."""
        return iter(self._tensors)

    def __len__(self) -> int:
        """Return the number of roles."""
        return len(self._tensors)


def load_weights(files: ModelFiles) -> Weights:
    """Open the weights of a model and check them against its spec.

    Raises:
        ModelWeightsError: as `find_tensors`.
    """
    return Weights(find_tensors(files))


def find_tensors(files: ModelFiles) -> dict[str, _Stored]:
    """Return where the weights of a model are, by role; of its files only headers are read.

    Raises:
        ModelWeightsError: if a file is missing, damaged or a pickle, or a tensor is missing, left
            over, or of the wrong shape or type.
    """
    tensors: dict[str, _Stored] = {}
    encoder: dict[str, StoredTensor] = {}
    if files.spec.encoder.is_table:
        find = find_token_weights if files.spec.is_sparse else find_table
        tensors["tokens"] = find(files.transformer_dir / WEIGHTS_NAME, files.folder)
    else:
        encoder = _load_encoder(files, ROWS[files.spec.encoder.family])
    tensors |= encoder
    for position, (module, path) in enumerate(
        zip(files.spec.modules, files.module_dirs, strict=True)
    ):
        place = files.module_tensors.get(position)
        if isinstance(module, SpladePooling):
            assert isinstance(place, VocabularyRows), "read_model_files sets it"
            tensors |= _load_vocabulary(files, position, module, place, encoder["tokens"])
            continue
        if not isinstance(module, (Dense, LayerNorm)):
            continue
        if isinstance(place, AnswerRows):
            tensors[f"modules.{position}.weight"] = _load_answer_rows(files, place, encoder)
        else:
            tensors |= _load_module(files, position, module, path)
    return tensors


def _load_encoder(files: ModelFiles, family: Family) -> dict[str, StoredTensor]:
    """Return the transformer's tensors by role."""
    stored, where = list_all(files.transformer_dir, files.folder)
    shapes = encoder_shapes(files.spec.encoder)
    prefix = tensor_prefix(family, stored)
    if prefix is None:
        anchor = tensor_name("tokens", family)
        raise ModelWeightsError(f"{where}: tensor {anchor} is missing")
    rows = {role: tensor_rows(role, family) for role in shapes}
    rows = {role: replace(block, name=prefix + block.name) for role, block in rows.items()}
    of_modules = (f"{stem}.*" for stem in files.module_tensors.values() if isinstance(stem, str))
    ignored = (*family.ignored_tensors, *of_modules)
    picked = _pick(stored, rows, shapes, ignored, where)
    if family.stores_norms_less_one:
        picked |= {
            role: replace(tensor, added=1.0)
            for role, tensor in picked.items()
            if role.endswith("norm.weight")
        }
    return picked


def _load_module(
    files: ModelFiles, position: int, module: Dense | LayerNorm, path: Path
) -> dict[str, StoredTensor]:
    """Return the tensors of one module after the transformer, by role."""
    leaves = module_shapes(module)
    shapes = {f"modules.{position}.{leaf}": shape for leaf, shape in leaves.items()}
    stored, where = list_all(path, files.folder)
    place = files.module_tensors.get(position)
    stem = MODULE_TENSORS[type(module)]
    if isinstance(place, str):
        # The files also contain the transformer.
        prefix = tensor_prefix(ROWS[files.spec.encoder.family], stored) or ""
        stem = next((name for name in (place, prefix + place) if f"{name}.weight" in stored), place)
        stored = {name: stored[name] for name in stored if name.startswith(f"{stem}.")}
    names = {leaf: leaf if leaf == RESIDUAL else f"{stem}.{leaf}" for leaf in leaves}
    rows = {f"modules.{position}.{leaf}": FusedSlice(names[leaf]) for leaf in leaves}
    return _pick(stored, rows, shapes, (), where)


def _load_vocabulary(
    files: ModelFiles,
    position: int,
    module: SpladePooling,
    place: VocabularyRows,
    tokens: StoredTensor,
) -> dict[str, StoredTensor]:
    """Return the matrix of a masked language model's head, and its bias, by role.

    Source: `tie_weights` of transformers 5, which keeps a matrix of its own that a file stores.
    """
    stored, where = list_all(files.transformer_dir, files.folder)
    role, num_tokens = f"modules.{position}", module.vocab_size
    own = f"{place.matrix}.weight"
    names: dict[str, str] = {}
    shapes: Shapes = {}
    found: dict[str, StoredTensor] = {}
    if own in stored or not place.is_tied:
        names[f"{role}.weight"] = own
        shapes[f"{role}.weight"] = (num_tokens, files.spec.encoder.table_width)
    else:
        found[f"{role}.weight"] = tokens
    if module.has_bias:
        first = f"{place.matrix}.bias"
        names[f"{role}.bias"] = first if first in stored or place.bias is None else place.bias
        shapes[f"{role}.bias"] = (num_tokens,)
    rows = {part: FusedSlice(name) for part, name in names.items()}
    wanted = {name: stored[name] for name in names.values() if name in stored}
    return found | _pick(wanted, rows, shapes, (), where)


def _load_answer_rows(
    files: ModelFiles, place: AnswerRows, encoder: Mapping[str, StoredTensor]
) -> RowDifference:
    """Return the row whose product with the last token's vector is the score.

    Raises:
        ModelWeightsError: as `_pick` and `_check_tied`.
    """
    num_tokens, hidden = files.spec.encoder.vocab_size, files.spec.encoder.hidden_size
    matrix = encoder["tokens"]
    stored, where = list_all(files.transformer_dir, files.folder)
    name = place.tensor or ROWS[files.spec.encoder.family].lm_head
    if name is not None and (name == place.tensor or name in stored):
        found = {name: stored[name]} if name in stored else {}
        rows = {"lm_head": FusedSlice(name)}
        own = _pick(found, rows, {"lm_head": (num_tokens, hidden)}, (), where)["lm_head"]
        if place.tensor is None:
            _check_tied(place, matrix, own)
        matrix = own
    subtracted = place.false_token_id
    return RowDifference(
        matrix.block(place.true_token_id, num_tokens),
        None if subtracted is None else matrix.block(subtracted, num_tokens),
        place.divisor,
    )


def _check_tied(place: AnswerRows, tokens: StoredTensor, own: StoredTensor) -> None:
    """Refuse an LM head whose rows of the answers are not those of the matrix of tokens.

    Source: `tie_weights` of transformers 5, which does not tie matrices that differ; 4 does.
    """
    matrices = [(matrix, map_file(matrix.path)) for matrix in (tokens, own)]
    for token_id in (place.true_token_id, place.false_token_id):
        if token_id is None:
            continue
        first, second = (
            matrix.block(token_id, matrix.shape[0]).read(data) for matrix, data in matrices
        )
        if not np.array_equal(first, second):
            raise ModelWeightsError(
                f"{own.file}: the LM head differs from the embeddings of the tokens, and "
                "tie_word_embeddings of config.json says that they are one matrix: transformers 5 "
                "scores with the first, 4 with the second; set tie_word_embeddings to false for "
                "the first, or take the LM head out of the file"
            )


def _pick(
    stored: Mapping[str, StoredTensor],
    rows: Mapping[str, FusedSlice],
    shapes: Shapes,
    ignored: tuple[str, ...],
    where: str,
) -> dict[str, StoredTensor]:
    """Return the tensors by role.

    Raises:
        ModelWeightsError: if a tensor is missing, left over, or of the wrong shape or type.
    """
    picked = {}
    for role, block in rows.items():
        tensor = stored.get(block.name)
        shape = (block.count * shapes[role][0], *shapes[role][1:])
        if tensor is None:
            raise ModelWeightsError(f"{where}: tensor {block.name} {list(shape)} is missing")
        tensor.check(block.name, shape, STORED_DTYPES)
        picked[role] = tensor.block(block.index, block.count)
    used = {block.name for block in rows.values()}
    for name, tensor in stored.items():
        if name not in used and not any(fnmatchcase(name, pattern) for pattern in ignored):
            raise ModelWeightsError(
                f"{tensor.file}: tensor {show(name)} {list(tensor.shape)} is left over; "
                "config.json describes a model without it"
            )
    return picked
