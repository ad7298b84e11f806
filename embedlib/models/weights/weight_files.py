"""Which files hold a model's weights, the tensors in them, and the digest of their content."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from embedlib.errors import ModelWeightsError
from embedlib.models.hub_cache import how_to_convert, hub_name, is_snapshot
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.json_files import JsonObject, show
from embedlib.models.reading.model_file import has_file, is_file_name, name_in
from embedlib.models.spec import Dense, LayerNorm
from embedlib.models.weights.file_hashes import FileHashes
from embedlib.models.weights.safetensors_files import StoredTensor, list_tensors
from embedlib.models.weights.token_heads import head_files

WEIGHTS_NAME: Final = "model.safetensors"
INDEX_NAME: Final = "model.safetensors.index.json"
PICKLE_NAME: Final = "pytorch_model.bin"
PICKLE_INDEX: Final = "pytorch_model.bin.index.json"
PICKLE_SUFFIXES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
FOREIGN_SUFFIXES: Final = (".onnx", ".gguf", ".h5", ".msgpack", ".tflite", ".mlpackage")
"""Of ONNX, llama.cpp, TensorFlow, Flax, TensorFlow Lite and Core ML; exports lie beside a model."""
_SHARD: Final = re.compile(r".+-\d{5}-of-\d{5}\.safetensors")
_PICKLED_SHARD: Final = re.compile(r"pytorch_model-.+\.bin")


def weights_digest(files: ModelFiles, hashes: FileHashes) -> str:
    """Return a digest of the content of all weight files: 32 hexadecimal digits.

    The digest depends only on the bytes, not on the folder.
    """
    total = hashlib.blake2b(digest_size=16)
    for path in weight_paths(files):
        total.update(bytes.fromhex(hashes.sha256(path)))
    return total.hexdigest()


def weight_paths(files: ModelFiles) -> list[Path]:
    """Return all weight files of a model.

    Raises:
        ModelWeightsError: there are none.
    """
    paths = [path for paths in weight_folders(files).values() for path in paths]
    if files.queries is not None:
        paths += weight_files(files.queries.transformer_dir, files.folder)
    return paths + head_files(files.transformer_dir)


def weight_folders(files: ModelFiles) -> dict[Path, list[Path]]:
    """Return the directories with weights and the safetensors files of each, the transformer first.

    Raises:
        ModelWeightsError: there are none.
    """
    pairs = zip(files.spec.modules, files.module_dirs, strict=True)
    modules = [path for module, path in pairs if isinstance(module, (Dense, LayerNorm))]
    return {path: weight_files(path, files.folder) for path in (files.transformer_dir, *modules)}


def list_all(directory: Path, folder: Path) -> tuple[dict[str, StoredTensor], str]:
    """Return the tensors of a directory's weights, and its files, for messages.

    The tensors are by name, with old spellings replaced.
    """
    paths = weight_files(directory, folder)
    stored: dict[str, StoredTensor] = {}
    for path in paths:
        for name, tensor in list_tensors(path, folder).items():
            # Checkpoints converted from TensorFlow call the two vectors of a norm gamma and beta.
            modern = name.replace("LayerNorm.gamma", "LayerNorm.weight")
            modern = modern.replace("LayerNorm.beta", "LayerNorm.bias")
            if modern in stored:
                raise ModelWeightsError(f"{tensor.file}: tensor {show(name)} is stored twice")
            stored[modern] = tensor
    return stored, ", ".join(path.relative_to(folder).as_posix() for path in paths)


def weight_files(directory: Path, folder: Path) -> list[Path]:
    """Return the safetensors files of the transformer or of a module, sorted by name.

    Raises:
        ModelWeightsError: if there are none.
    """
    if has_file(directory / WEIGHTS_NAME, folder):
        return [directory / WEIGHTS_NAME]
    if has_file(directory / INDEX_NAME, folder):
        names = shard_names(JsonObject.load(directory / INDEX_NAME, folder))
        return [directory / name for name in names]
    pickle = next(
        (name for name in (PICKLE_NAME, PICKLE_INDEX) if has_file(directory / name, folder)), None
    )
    if pickle is not None:
        name = name_in(directory / pickle, folder).removesuffix(".index.json")
        model = hub_name(folder.parent.parent) if is_snapshot(folder) else folder
        raise ModelWeightsError(
            f"{name}: is a pickle, which can run code when it is read; convert it without running "
            f"it: embedlib convert {model}"
        )
    others = sorted(path for path in directory.glob("*") if path.suffix in PICKLE_SUFFIXES)
    told = ""
    if others:
        told = f"; {other_pickles([name_in(path, folder) for path in others])}"
    elif named := _other_names(directory):
        told = f"; {name_in(directory / named[0], folder)} "
        if _SHARD.fullmatch(named[0]):
            told += f"is a part of the weights: copy {INDEX_NAME}, which names all parts, too"
        else:
            told += (
                "has a name that transformers does not look for either; if it holds all weights "
                f"of the model, call it {WEIGHTS_NAME}"
            )
    elif foreign := min(
        (path for path in directory.rglob("*") if path.suffix in FOREIGN_SUFFIXES), default=None
    ):
        told = (
            f"; {name_in(foreign, folder)} has weights for another runtime; load the model that it "
            "was made from"
        )
    elif is_snapshot(folder):
        told = (
            "; either its download was interrupted (load the model once online), or its weights "
            "are a pickle, which embedlib does not download because it can run code; "
            f"{how_to_convert(hub_name(folder.parent.parent))}"
        )
    raise ModelWeightsError(f"{directory}: there is no {WEIGHTS_NAME} and no {INDEX_NAME}{told}")


def shard_names(index: JsonObject) -> list[str]:
    """Return the files that an index of weights names, sorted.

    Raises:
        ModelUnsupportedError: they are no names of files in the same folder.
    """
    table = index.child("weight_map")
    names = sorted({table.text(key) or "" for key in table.values})
    if not names or not all(map(is_file_name, names)):
        raise index.refuse("weight_map", "names of files in the same folder")
    return names


def _other_names(directory: Path) -> list[str]:
    """Return files that may hold weights, under names that are not looked for; sorted."""
    heads = [path.name for path in head_files(directory)]
    names = sorted(path.name for path in directory.glob("*.safetensors"))
    return [name for name in names if name not in heads and not name.startswith("adapter_")]


def other_pickles(names: Sequence[str]) -> str:
    """Return what to do with pickles of which none is known to hold a model's weights."""
    shard = next((name for name in names if _PICKLED_SHARD.fullmatch(name.split("/")[-1])), None)
    if shard is not None:
        return f"{shard} is there without {PICKLE_INDEX}; download that, too, then convert them"
    return (
        f"{names[0]} is none of the files that `embedlib convert` takes; if it is the state dict "
        f"of the whole model, rename it to {PICKLE_NAME} and convert it"
    )
