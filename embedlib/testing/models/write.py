"""Writes tiny models to disk, complete and reproducible, for tests without downloads.

Each variant is a model folder in the format that sentence-transformers saves. The weights come from
our own random number generator, so they do not change with the version of a library.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedlib.models.families.table import ROWS
from embedlib.models.reading.files import read_model_files
from embedlib.models.reading.head_modules import AnswerRows, VocabularyRows
from embedlib.models.spec import Dense, LayerNorm, ModelSpec
from embedlib.models.weights.load import MODULE_TENSORS
from embedlib.models.weights.tensor_roles import (
    RESIDUAL,
    encoder_shapes,
    module_shapes,
    tensor_rows,
)
from embedlib.testing.models.table import LATE_VARIANTS, SCORING_VARIANTS, VARIANTS
from embedlib.testing.models.tokenizers import build_tokenizer
from embedlib.testing.models.variant import ST5, TinyModule, TinyVariant

Array = NDArray[np.float32]


def write_tiny_model(folder: Path, variant: str) -> Path:
    """Write a model folder and return it.

    Args:
        folder: where to write; created if missing.
        variant: a key of `VARIANTS`, `SCORING_VARIANTS` or `LATE_VARIANTS` in `table`.
    """
    rows = {**VARIANTS, **SCORING_VARIANTS, **LATE_VARIANTS}
    return write_variant(folder, variant, rows[variant])


def write_variant(folder: Path, name: str, row: TinyVariant) -> Path:
    """Write a model folder and return it.

    Args:
        folder: where to write; created if missing.
        name: seeds the values of the weights.
        row: everything else.
    """
    transformer = folder / row.transformer_path
    transformer.mkdir(parents=True, exist_ok=True)
    tokenizer, special = build_tokenizer(row.tokenizer)
    tokenizer.save(str(transformer / "tokenizer.json"))
    tokenizer_config = {"tokenizer_class": "PreTrainedTokenizerFast"} | special
    write_json(transformer / "tokenizer_config.json", tokenizer_config | row.tokenizer_config)
    # A few more rows than tokens, since real models round their vocabulary size up.
    vocab_size = tokenizer.get_vocab_size() + 3
    write_json(transformer / "config.json", row.config | {"vocab_size": vocab_size})
    if row.settings is not None:
        write_json(transformer / row.settings_name, row.settings)
    if row.general is not None:
        write_json(folder / "config_sentence_transformers.json", row.general)
    if row.modules or row.has_module_list:
        write_modules(folder, row.modules, (row.transformer_type, row.transformer_path))
    if row.metadata is not None:
        write_json(folder / "artifact.metadata", row.metadata)
    _write_weights(folder, name, row)
    return folder


def write_modules(
    folder: Path,
    modules: Sequence[TinyModule],
    transformer: tuple[str, str] = (ST5 + "Transformer", ""),
) -> None:
    """Write modules.json and the config.json of every module.

    Args:
        folder: of the model.
        modules: those behind the transformer.
        transformer: its type and path.
    """
    entries = [transformer]
    for module in modules:
        entries.append((module.type, module.path))
        (folder / module.path).mkdir(exist_ok=True)
        if module.config is not None:
            write_json(folder / module.path / "config.json", module.config)
    listed = [
        {"idx": position, "name": str(position), "path": path, "type": kind}
        for position, (kind, path) in enumerate(entries)
    ]
    write_json(folder / "modules.json", listed)


def _write_weights(folder: Path, variant: str, row: TinyVariant) -> None:
    """Write the weights of the transformer and of the modules."""
    files = read_model_files(folder, with_head=row.with_head, template=row.template)
    family = ROWS[files.spec.encoder.family]
    blocks: dict[str, dict[int, Array]] = {}
    for role, shape in encoder_shapes(files.spec.encoder).items():
        values = _values(variant, role, shape)
        if family.stores_norms_less_one and role.endswith("norm.weight"):
            values -= 1
        rows = tensor_rows(role, family)
        blocks.setdefault(row.prefix + rows.name, {})[rows.index] = values
    arrays = {
        name: np.concatenate([parts[index] for index in sorted(parts)])
        for name, parts in blocks.items()
    }
    for position, place in files.module_tensors.items():
        arrays |= _head_values(variant, files.spec, position, place)
    names = list(arrays)
    if row.num_shards == 1:
        _write_safetensors(files.transformer_dir / "model.safetensors", arrays, row.dtype)
    else:
        table: dict[str, str] = {}
        for shard in range(row.num_shards):
            file = f"model-{shard + 1:05}-of-{row.num_shards:05}.safetensors"
            part = {name: arrays[name] for name in names[shard :: row.num_shards]}
            _write_safetensors(files.transformer_dir / file, part, row.dtype)
            table |= dict.fromkeys(part, file)
        index = {"metadata": {}, "weight_map": table}
        write_json(files.transformer_dir / "model.safetensors.index.json", index)
    for position, module in enumerate(files.spec.modules):
        if isinstance(module, (Dense, LayerNorm)) and position not in files.module_tensors:
            stem = MODULE_TENSORS[type(module)]
            part = {
                leaf if leaf == RESIDUAL else f"{stem}.{leaf}": _values(
                    variant, f"modules.{position}.{leaf}", shape
                )
                for leaf, shape in module_shapes(module).items()
            }
            _write_safetensors(files.module_dirs[position] / "model.safetensors", part, "F32")


def _head_values(
    variant: str, spec: ModelSpec, position: int, place: str | AnswerRows | VocabularyRows
) -> dict[str, Array]:
    """Return the tensors of a module whose weights are stored with the transformer's."""
    if isinstance(place, AnswerRows):
        shape = (spec.encoder.vocab_size, spec.encoder.hidden_size)
        return {place.tensor: _values(variant, "lm_head.weight", shape)} if place.tensor else {}
    if isinstance(place, VocabularyRows):
        size, width = spec.encoder.vocab_size, spec.encoder.table_width
        bias = place.bias or f"{place.matrix}.bias"
        found = {bias: _values(variant, "lm_head.bias", (size,))}
        if not place.is_tied:
            found[f"{place.matrix}.weight"] = _values(variant, "lm_head.weight", (size, width))
        return found
    module = spec.modules[position]
    assert isinstance(module, (Dense, LayerNorm))
    return {
        f"{place}.{leaf}": _values(variant, f"modules.{position}.{leaf}", shape)
        for leaf, shape in module_shapes(module).items()
    }


def _values(variant: str, role: str, shape: tuple[int, ...]) -> Array:
    """Return a tensor's values, scaled so that activations stay in the non-linear range."""
    noise = uniform(f"{variant}/{role}", shape)
    if role.endswith(".bias"):
        return noise * np.float32(0.2)
    if len(shape) == 1:
        return 1 + noise * np.float32(0.25)
    if role in ("tokens", "positions", "token_types", "task_types", "position_bias"):
        return noise
    # Uniform numbers in [-1, 1) have variance 1/3, so a row of n weights scales its input by 1.3.
    return noise * np.float32(1.3 * math.sqrt(3 / shape[1]))


def uniform(seed: str, shape: tuple[int, ...]) -> Array:
    """Return float32[shape], uniform in [-1, 1); a seed gives the same values on every machine."""
    start = int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=8).digest(), "little")
    # 24 bits fit a float32 exactly.
    top = (splitmix64(start, math.prod(shape)) >> np.uint64(40)).astype(np.float32)
    return (top / np.float32(2**23) - np.float32(1)).reshape(shape)


def splitmix64(start: int, count: int) -> NDArray[np.uint64]:
    """Return uint64[count]: the first numbers of the generator seeded with `start`.

    Source: G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators",
    OOPSLA 2014; constants as in https://prng.di.unimi.it/splitmix64.c.
    """
    steps = np.arange(1, count + 1, dtype=np.uint64)
    mixed = np.uint64(start) + steps * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _write_safetensors(path: Path, arrays: Mapping[str, Array], dtype: str) -> None:
    """Write arrays as F32, F16 or BF16; the layout is described in `safetensors_files`."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, array in arrays.items():
        start = len(body)
        if dtype == "F16":
            body += array.astype("<f2").tobytes()
        elif dtype == "BF16":
            body += (array.view(np.uint32) >> np.uint32(16)).astype("<u2").tobytes()
        else:
            body += array.astype("<f4").tobytes()
        offsets = [start, len(body)]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    # Spaces align the tensors to a multiple of 8 bytes.
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def write_json(path: Path, content: object) -> None:
    """Write an indented JSON file."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
