"""What lies on disk of a model: its weights, and where its compiled graphs are kept."""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from embedlib.config import Config
from embedlib.engines.kind import ChosenPrecision
from embedlib.engines.openvino.kept.float32_copy import copied_weights, widened_weights
from embedlib.engines.openvino.kept.model_cache import ModelCache, WeightsFile
from embedlib.engines.openvino.plans.memory import MemoryNeeds
from embedlib.errors import EngineUnsupportedError
from embedlib.models.compiled.cache import int8_weights
from embedlib.models.compiled.engine_folder import file_hashes
from embedlib.models.compiled.int8 import INT8_GROUPS
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.head_modules import AnswerRows
from embedlib.models.reading.model_file import list_files
from embedlib.models.spec import Encoder
from embedlib.models.weights.file_hashes import file_state
from embedlib.models.weights.load import load_weights
from embedlib.models.weights.mapped import mapped_paths, stored_bits
from embedlib.models.weights.tensor_roles import linear_roles
from embedlib.models.weights.weight_files import weights_digest

MOST_KEPT_BYTES: Final = 1 << 30
"""Of int8 matrices that are kept with a graph."""


def own_weights(
    files: ModelFiles, needs: MemoryNeeds, place: Path, config: Config
) -> Mapping[str, Any]:
    """Map the weights of a model, as they are stored or in float32.

    Args:
        files: the model.
        needs: whether it is large, and whether float32 is wanted in place of 16 bits.
        place: the folder of the copies of all models.
        config: the options.
    """
    own = load_weights(files)
    if not (needs.is_widened and multiplies_16_bits(own, files.spec.encoder)):
        return own
    if not needs.is_large:
        return widened_weights(own)
    copy = copied_weights(files, own, place, config)
    return own if copy is None else copy


def compiled_weights(files: ModelFiles, folder: Path) -> Mapping[str, Any]:
    """Map the weights of an engine directory, and those of the model that it lacks.

    Raises:
        EngineUnsupportedError: the engine directory lacks the head.
    """
    weights = int8_weights(folder)
    if files.folder != folder:
        # The directory lacks a head that is made of the rows of the answer words.
        return ChainMap(cast(Any, weights), cast(Any, load_weights(files)))
    if any(isinstance(place, AnswerRows) for place in files.module_tensors.values()):
        raise EngineUnsupportedError(
            f"{folder} has no head, a compiled model that answers in words has none; give the "
            "model it was made from, with precision = 'int8'"
        )
    return weights


def multiplies_16_bits(weights: Mapping[str, Any], encoder: Encoder) -> bool:
    """Return whether any matrix of a linear layer is stored in 16 bits."""
    roles = (f"{role}.weight" for role in linear_roles(encoder))
    return any(stored_bits(weights, role) is not None for role in roles)


def model_cache(
    place: Path,
    files: ModelFiles,
    weights: Mapping[str, Any],
    precision: ChosenPrecision,
    needs: MemoryNeeds,
    config: Config,
    *,
    is_narrow: bool,
    shares_lanes: bool,
) -> ModelCache | None:
    """Return where compiled models are kept; None: nowhere.

    Of a large model the graph alone, since a copy of its weights would be as slow to load; its
    files are known by their states, since hashing them takes longer than loading. What is stored in
    float32 is packed by the import: if the graph has one stage, file and packed copy would be in
    memory. Matrices in int8 are kept with the graph, so it is not kept where they would fill the
    disk.

    Args:
        place: the folder of the compiled models of all models.
        files: the model.
        weights: its weights.
        precision: in which it is computed.
        needs: whether it is large.
        config: the options.
        is_narrow: whether its matrices are stored in 16 bits.
        shares_lanes: whether both lanes use one compiled model, which is in stages.
    """
    if not needs.is_large:
        return ModelCache(place, _weights_key(files, precision.folder, config))
    is_float32 = precision.name == "float32" and not is_narrow
    fills_disk = precision.name in INT8_GROUPS and needs.packed > MOST_KEPT_BYTES
    if fills_disk or (is_float32 and not shares_lanes):
        return None
    paths = mapped_paths(weights)
    states = json.dumps([*map(file_state, paths), *_head_rows(files)])
    return ModelCache(place, states, WeightsFile(paths[0], is_packed_at_once=is_float32))


def _weights_key(files: ModelFiles, folder: Path | None, config: Config) -> str:
    """Return a digest of the weights that a graph is made of; large files are hashed once."""
    hashes = file_hashes(config)
    compiled = [] if folder is None else list_files(folder, "*.safetensors")
    # A head of answer words is read from the model even if the rest is compiled.
    own = [] if folder == files.folder else [weights_digest(files, hashes)]
    return " ".join([*own, *map(hashes.sha256, compiled), *_head_rows(files)])


def _head_rows(files: ModelFiles) -> list[str]:
    """Return which tensors and rows of the transformer's files are the weights of modules, if any.

    Neither the spec nor the files of the weights tell which tokens a reranker answers with.
    """
    return [repr(sorted(files.module_tensors.items()))] if files.module_tensors else []
