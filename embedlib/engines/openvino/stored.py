"""What lies on disk of a model: its weights, and where its compiled graphs are kept."""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from embedlib.config import Config
from embedlib.engines.openvino.model_cache import ModelCache, WeightsFile
from embedlib.errors import EngineUnsupportedError
from embedlib.models.compiled.cache import int8_weights
from embedlib.models.compiled.engine_folder import file_hashes
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.head_modules import AnswerRows
from embedlib.models.reading.model_file import list_files
from embedlib.models.weights.file_hashes import file_state
from embedlib.models.weights.load import load_weights
from embedlib.models.weights.mapped import mapped_paths
from embedlib.models.weights.weight_files import weights_digest


def stored_weights(files: ModelFiles, folder: Path | None) -> Mapping[str, Any]:
    """Map the weights of a model, or those of an engine directory and what that lacks.

    Args:
        files: the model.
        folder: the engine directory; None: the model's own weights.

    Raises:
        EngineUnsupportedError: the engine directory lacks the head.
    """
    if folder is None:
        return load_weights(files)
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


def cache_of_models(
    place: Path, files: ModelFiles, folder: Path | None, config: Config
) -> ModelCache:
    """Return the cache in a place of models that are kept with their weights, which are hashed."""
    return ModelCache(place, _weights_key(files, folder, config))


def cache_of_graphs(
    place: Path, weights: Mapping[str, Any], *, is_packed_at_once: bool
) -> ModelCache:
    """Return the cache in a place of the graphs of a large model.

    Its files are known by their states, since hashing them takes longer than loading.
    """
    paths = mapped_paths(weights)
    states = json.dumps([file_state(path) for path in paths])
    return ModelCache(place, states, WeightsFile(paths[0], is_packed_at_once))


def _weights_key(files: ModelFiles, folder: Path | None, config: Config) -> str:
    """Return a digest of the weights that a graph is made of; large files are hashed once."""
    hashes = file_hashes(config)
    compiled = [] if folder is None else list_files(folder, "*.safetensors")
    # A head of answer words is read from the model even if the rest is compiled.
    own = [] if folder == files.folder else [weights_digest(files, hashes)]
    return " ".join([*own, *map(hashes.sha256, compiled)])
