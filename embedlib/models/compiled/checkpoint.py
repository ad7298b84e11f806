"""Rewrites a model's checkpoint: linear layers optionally in FP8, all other numbers in bfloat16.

Every tensor and file keeps its name. Embeddings, norms, heads and the modules after the transformer
are never in FP8.

Source: the JSON files are those that `export_hf_checkpoint` of nvidia-modelopt 0.47 writes with
`FP8_PER_CHANNEL_PER_TOKEN_CFG`, see tests/goldens/fp8.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from embedlib.errors import ConfigError
from embedlib.models.compiled.engine_folder import CompiledPrecision
from embedlib.models.compiled.int8 import INT8_GROUPS
from embedlib.models.compiled.jobs import CompileJob
from embedlib.models.compiled.pooled_rows import POOLED_ROWS, pooled_modes
from embedlib.models.families.table import ROWS
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.model_file import has_file, load_json
from embedlib.models.weights.safetensors_files import StoredTensor, list_tensors
from embedlib.models.weights.tensor_roles import (
    fused_roles,
    linear_roles,
    tensor_name,
    tensor_prefix,
)
from embedlib.models.weights.weight_files import INDEX_NAME, weight_folders

CONFIG_NAME: Final = "config.json"
QUANT_CONFIG_NAME: Final = "hf_quant_config.json"
PRODUCER: Final[Mapping[str, str]] = {"name": "modelopt", "version": "0.47.0"}
"""The name by which readers recognize the format; embedlib.json names the program that wrote it."""
QUANT_ALGO: Final = "FP8_PER_CHANNEL_PER_TOKEN"


def quantized_layers(
    files: ModelFiles, precision: CompiledPrecision, excluded: Collection[str]
) -> dict[str, str]:
    """Map the linear layers to write in 8 bits from role (`layers.3.q`) to weight name.

    Args:
        files: the model; its weights have passed `load_weights`.
        precision: of the linear layers.
        excluded: roles of linear layers to keep in 16 or 32 bits; with "fp8" also the word
            `pooled_rows`, which changes no file.

    Raises:
        ConfigError: a name in `excluded` is not valid for this model.
    """
    layers = linear_layers(files)
    if precision == "fp8" and POOLED_ROWS in excluded:
        if not pooled_modes(files.spec):
            raise ConfigError(
                f"excluded: {POOLED_ROWS!r} requires a model that pools the first or the last "
                f"token; {files.folder} pools otherwise; name linear layers"
            )
        excluded = set(excluded) - {POOLED_ROWS}
    # Only the CPU engine runs int8, and it computes every layer separately.
    _check_excluded(excluded, layers, is_fused=precision not in INT8_GROUPS)
    if precision == "bf16":
        return {}
    return {role: name for role, name in layers.items() if role not in excluded}


def write_checkpoint(
    files: ModelFiles, folder: Path, quantized: Collection[str]
) -> list[CompileJob]:
    """Start a checkpoint with the model's file layout, and return the jobs that complete it.

    This call writes config.json, hf_quant_config.json, the index of the weights and the headers of
    the weight files. Each job writes the numbers of one tensor, and raises ModelWeightsError if the
    tensor contains NaN or infinity.

    Args:
        files: the model; its weights have passed `load_weights`.
        folder: where to write.
        quantized: names of the transformer's tensors to write in FP8; if empty, everything is
            written in bfloat16.

    Raises:
        ModelWeightsError: a tensor has an unknown type.
    """
    from embedlib.models.compiled.fp8_file import rewrite_file

    jobs: list[CompileJob] = []
    for directory, paths in weight_folders(files).items():
        target = folder / directory.relative_to(files.folder)
        target.mkdir(parents=True, exist_ok=True)
        written: dict[str, StoredTensor] = {}
        weight_map: dict[str, str] = {}
        for path in paths:
            tensors, to_do = rewrite_file(path, target / path.name, quantized)
            jobs += to_do
            written |= tensors
            weight_map |= dict.fromkeys(tensors, path.name)
        if has_file(directory / INDEX_NAME, directory):
            total = sum(tensor.num_bytes for tensor in written.values())
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            write_json(target / INDEX_NAME, index)
        if directory == files.transformer_dir:
            _write_configs(directory, target, written, bool(quantized))
    return jobs


def linear_layers(files: ModelFiles) -> dict[str, str]:
    """Map the linear layers of the transformer from role (`layers.3.q`) to weight name.

    A role within a layer is a linear layer if its weight is a matrix.
    """
    encoder = files.spec.encoder
    family = ROWS[encoder.family]
    paths = weight_folders(files)[files.transformer_dir]
    stored = {name for path in paths for name in list_tensors(path, path.parent)}
    prefix = tensor_prefix(family, stored)
    assert prefix is not None, "load_weights checks this first; this is a bug in embedlib"
    return {role: prefix + tensor_name(f"{role}.weight", family) for role in linear_roles(encoder)}


def write_json(path: Path, content: object) -> None:
    """Write an indented JSON file; names of files that are no Unicode become escapes."""
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def _check_excluded(excluded: Collection[str], layers: Collection[str], *, is_fused: bool) -> None:
    """Reject unknown roles, and with `is_fused` a fused group that is excluded only in part."""
    for role in excluded:
        if role not in layers:
            raise ConfigError(
                f"excluded: {role!r} is not a linear layer of this model; its layers are named "
                f"{', '.join(list(layers)[:7])}, …"
            )
        missing = sorted(set(fused_roles(role, layers)) - set(excluded))
        if is_fused and missing:
            raise ConfigError(
                f"excluded: {role!r} without {', '.join(missing)}; engines compute them as "
                "one matrix, so name all of them or none"
            )


def _write_configs(
    source: Path, target: Path, written: Mapping[str, StoredTensor], is_fp8: bool
) -> None:
    """Write config.json and, for FP8, hf_quant_config.json."""
    config: dict[str, Any] = load_json(source / CONFIG_NAME, source)
    # transformers 5 writes "dtype" and reads both keys; older readers know only "torch_dtype".
    config["dtype" if "dtype" in config else "torch_dtype"] = "bfloat16"
    if is_fp8:
        kept = _kept_modules(written, config)
        quantization = {
            "quant_algo": QUANT_ALGO,
            "kv_cache_quant_algo": None,
            "exclude_modules": kept,
        }
        content = {"producer": PRODUCER, "quantization": quantization}
        write_json(target / QUANT_CONFIG_NAME, content)
        config["quantization_config"] = {
            "ignore": kept,
            "quant_algo": QUANT_ALGO,
            "producer": PRODUCER,
            "quant_method": "modelopt",
        }
    write_json(target / CONFIG_NAME, config)


def _kept_modules(written: Mapping[str, StoredTensor], config: Mapping[str, Any]) -> list[str]:
    """Return the names of the modules whose weight is a matrix and not in FP8."""
    kept = {
        name.removesuffix(".weight")
        for name, tensor in written.items()
        if name.endswith(".weight") and len(tensor.shape) > 1 and tensor.dtype != "F8_E4M3"
    }
    # When tied to the token embeddings, lm_head has no tensor but is still a linear layer.
    if str((config.get("architectures") or [""])[0]).endswith("ForCausalLM"):
        kept.add("lm_head")
    return sorted(kept)
