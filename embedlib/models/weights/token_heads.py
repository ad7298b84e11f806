"""Heads that compute an output per token in addition to the pooled vector: those of bge-m3.

Each head is one linear layer in a separate file beside config.json, with the tensors `weight` and
`bias`.

Source: `EncoderOnlyEmbedderM3ModelForInference` in FlagEmbedding 1.3,
finetune/embedder/encoder_only/m3/modeling.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from embedlib.errors import ConfigError, ModelWeightsError
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.json_files import JsonObject, show
from embedlib.models.reading.model_file import has_file
from embedlib.models.weights.safetensors_files import STORED_DTYPES, list_tensors, map_file

TokenHeadName = Literal["sparse", "multi_vector"]

HEAD_STEMS: Final[Mapping[TokenHeadName, str]] = {
    "sparse": "sparse_linear",
    "multi_vector": "colbert_linear",
}
"""Name of an output's file, without `.safetensors`."""

IGNORED_TOKENS: Final = ("cls_token", "eos_token", "pad_token", "unk_token")
"""Keys of tokenizer_config.json for the tokens that get no lexical weight."""


@dataclass(frozen=True)
class TokenHead:
    """A linear layer: x @ weight.T + bias."""

    weight: NDArray[np.float32]
    """float32[D, H]."""
    bias: NDArray[np.float32]
    """float32[D]."""

    def __call__(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Apply the layer to float32[L, H]; return float32[L, D]."""
        applied: NDArray[np.float32] = vectors @ self.weight.T + self.bias
        return applied


def head_files(folder: Path) -> list[Path]:
    """Return the existing head files in the folder that holds config.json."""
    paths = [folder / f"{stem}.safetensors" for stem in HEAD_STEMS.values()]
    return [path for path in paths if has_file(path, folder)]


def has_token_head(files: ModelFiles, name: TokenHeadName) -> bool:
    """Return whether a model has a head; `load_token_head` says what is wrong with it."""
    return has_file(files.transformer_dir / f"{HEAD_STEMS[name]}.safetensors", files.folder)


def load_token_head(files: ModelFiles, name: TokenHeadName) -> TokenHead:
    """Read a head and check it against the model.

    Raises:
        ConfigError: if the model has no such head.
        ModelWeightsError: if its file is a pickle or damaged, or a tensor has the wrong shape or
            type, or a number that is not finite.
    """
    stem = HEAD_STEMS[name]
    path = files.transformer_dir / f"{stem}.safetensors"
    if not has_file(path, files.folder):
        raise _missing(files, name)
    file = path.relative_to(files.folder).as_posix()
    stored = list_tensors(path, files.folder)
    hidden = files.spec.encoder.hidden_size
    shape = stored["weight"].shape if "weight" in stored else ()
    num_rows = max(shape[0], 1) if name == "multi_vector" and shape else 1
    expected = {"weight": (num_rows, hidden), "bias": (num_rows,)}
    found = {key: tensor.shape for key, tensor in stored.items()}
    if found != expected:
        told = ", ".join(f"{show(key)} {list(value)}" for key, value in found.items()) or "nothing"
        wanted = ", ".join(f"{key} {list(value)}" for key, value in expected.items())
        raise ModelWeightsError(f"{file}: holds {told}; expected: {wanted}")
    for key, tensor in stored.items():
        if tensor.dtype not in STORED_DTYPES:
            raise tensor.refuse_type(key, STORED_DTYPES)
    data = map_file(path)
    head = TokenHead(stored["weight"].read(data), stored["bias"].read(data))
    if not (np.isfinite(head.weight).all() and np.isfinite(head.bias).all()):
        raise ModelWeightsError(
            f"{file}: holds a number that is not finite; take another copy of the model"
        )
    return head


def ignored_token_ids(files: ModelFiles, tokenizer: Tokenizer) -> frozenset[int]:
    """Return the ids of tokens that get no lexical weight.

    Raises:
        ModelUnsupportedError: if tokenizer_config.json does not name these tokens.
    """
    config = JsonObject.load(files.transformer_dir / "tokenizer_config.json", files.folder)
    ids = set()
    for key in IGNORED_TOKENS:
        value = config.values.get(key)
        content = value.get("content") if isinstance(value, dict) else value
        token_id = tokenizer.token_to_id(content) if isinstance(content, str) else None
        if token_id is None:
            raise config.refuse(key, "a token of tokenizer.json, since it gets no lexical weight")
        ids.add(token_id)
    return frozenset(ids)


def _missing(files: ModelFiles, name: TokenHeadName) -> ConfigError | ModelWeightsError:
    stem = HEAD_STEMS[name]
    pickle = files.transformer_dir / f"{stem}.pt"
    if pickle.is_file():
        return ModelWeightsError(
            f"{stem}.pt: is a pickle, which can run code when it is read; convert it without "
            f"running it: embedlib convert {files.transformer_dir}"
        )
    return ConfigError(
        f"output_value = {name!r}: this model has no {stem}.safetensors beside its config.json; "
        f"BAAI/bge-m3 has such a head as {stem}.pt, which embedlib convert makes safetensors of"
    )
