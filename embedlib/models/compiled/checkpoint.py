"""Writes a model's checkpoint anew: linear layers in FP8 if wanted, all other numbers in bfloat16.

Every tensor and file keeps its name. Embeddings, norms, heads and the modules behind the
transformer are never in FP8.

Source: the JSON files are those that `export_hf_checkpoint` of nvidia-modelopt 0.47 writes with
`FP8_PER_CHANNEL_PER_TOKEN_CFG`, see tests/goldens/fp8.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from embedlib.errors import ConfigError
from embedlib.models.compiled.engine_folder import Precision
from embedlib.models.compiled.pooled_rows import POOLED_ROWS, pooled_modes
from embedlib.models.families.table import FAMILIES
from embedlib.models.reading.files import ModelFiles
from embedlib.models.spec import Dense, LayerNorm
from embedlib.models.weights.load import INDEX_NAME, WEIGHTS_NAME
from embedlib.models.weights.safetensors_files import list_tensors
from embedlib.models.weights.tensor_roles import encoder_shapes, tensor_name

if TYPE_CHECKING:
    from embedlib.models.compiled.jobs import Job
    from embedlib.models.compiled.tensor_blocks import WrittenTensor

CONFIG_NAME: Final = "config.json"
QUANT_CONFIG_NAME: Final = "hf_quant_config.json"
PRODUCER: Final[Mapping[str, str]] = {"name": "modelopt", "version": "0.47.0"}
"""Whose format it is, not who wrote it (embedlib.json says that): readers know it by this name."""
QUANT_ALGO: Final = "FP8_PER_CHANNEL_PER_TOKEN"

FUSED_LAYERS: Final = (("q", "k", "v"), ("gate", "up"))
"""Linear layers of one input, which engines compute as one and so in one precision.

Source: `apply_quant_config_exclude_modules` in TensorRT-LLM, _torch/models/modeling_utils.py.
"""


def quantized_layers(
    files: ModelFiles, precision: Precision, excluded: Collection[str]
) -> dict[str, str]:
    """Return the linear layers to write in 8 bits: role (`layers.3.q`) to name of the weight.

    Args:
        files: the model; `load_weights` has accepted its weights.
        precision: of the linear layers.
        excluded: roles of linear layers that are kept in more bits; with "fp8" also the word
            `pooled_rows`, which changes no file.

    Raises:
        ConfigError: `precision` or a name in `excluded` is wrong.
    """
    if precision not in get_args(Precision):
        raise ConfigError(
            f"precision = {precision!r}; it must be one of {', '.join(get_args(Precision))}"
        )
    layers = linear_layers(files)
    if precision == "fp8" and POOLED_ROWS in excluded:
        _check_pooled_rows(files)
        excluded = set(excluded) - {POOLED_ROWS}
    # The CPU engine, whose precision int8 is, computes every layer by itself.
    _check_excluded(excluded, layers, () if precision == "int8" else FUSED_LAYERS)
    if precision == "bf16":
        return {}
    return {role: name for role, name in layers.items() if role not in excluded}


def write_checkpoint(files: ModelFiles, folder: Path, quantized: Collection[str]) -> list[Job]:
    """Begin to write a checkpoint laid out as in the model; return what is to do.

    Written are config.json, hf_quant_config.json, the index of the weights, and what their files
    say of themselves. A job writes the numbers of one tensor, and raises ModelWeightsError where
    that holds NaN or infinity.

    Args:
        files: the model; `load_weights` has accepted its weights.
        folder: where to write.
        quantized: names of the transformer's tensors to write in FP8; none: all is bfloat16.

    Raises:
        ModelWeightsError: a tensor has a type that is not known.
    """
    from embedlib.models.compiled.fp8_file import rewrite_file

    jobs: list[Job] = []
    for directory, paths in weight_files(files).items():
        target = folder / directory.relative_to(files.folder)
        target.mkdir(parents=True, exist_ok=True)
        written: dict[str, WrittenTensor] = {}
        weight_map: dict[str, str] = {}
        for path in paths:
            tensors, to_do = rewrite_file(path, target / path.name, quantized)
            jobs += to_do
            written |= tensors
            weight_map |= dict.fromkeys(tensors, path.name)
        if (directory / INDEX_NAME).is_file():
            total = sum(tensor.num_bytes for tensor in written.values())
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            write_json(target / INDEX_NAME, index)
        if directory == files.transformer_dir:
            _write_configs(directory, target, written, bool(quantized))
    return jobs


def linear_layers(files: ModelFiles) -> dict[str, str]:
    """Return the linear layers of the transformer: role (`layers.3.q`) to name of the weight.

    They are the matrices among a layer's roles.
    """
    encoder = files.spec.encoder
    family = FAMILIES[encoder.family]
    paths = weight_files(files)[files.transformer_dir]
    stored = {name for path in paths for name in list_tensors(path, path.name)}
    anchor = tensor_name("tokens", family)
    prefix = next(prefix for prefix in family.prefixes if prefix + anchor in stored)
    return {
        role.removesuffix(".weight"): prefix + tensor_name(role, family)
        for role, shape in encoder_shapes(encoder).items()
        if role.startswith("layers.") and len(shape) == 2
    }


def weight_files(files: ModelFiles) -> dict[Path, list[Path]]:
    """Return the directories with weights and the safetensors files of each, the transformer first.

    `load_weights` has accepted them.
    """
    pairs = zip(files.spec.modules, files.module_dirs, strict=True)
    modules = [path for module, path in pairs if isinstance(module, (Dense, LayerNorm))]
    return {path: _weight_files(path) for path in (files.transformer_dir, *modules)}


def write_json(path: Path, content: object) -> None:
    """Write a JSON file that people can read as well."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _weight_files(directory: Path) -> list[Path]:
    if (directory / WEIGHTS_NAME).is_file():
        return [directory / WEIGHTS_NAME]
    index = json.loads((directory / INDEX_NAME).read_text(encoding="utf-8"))
    return [directory / name for name in sorted(set(index["weight_map"].values()))]


def _check_pooled_rows(files: ModelFiles) -> None:
    """Refuse a model whose vectors are made of all rows."""
    if not pooled_modes(files.spec):
        raise ConfigError(
            f"excluded: {POOLED_ROWS!r} goes with models that pool the first or the last token; "
            f"{files.folder} pools otherwise; name linear layers"
        )


def _check_excluded(
    excluded: Collection[str], layers: Mapping[str, str], fused_layers: Sequence[Sequence[str]]
) -> None:
    """Refuse what is no linear layer, and a part of what engines compute as one."""
    for role in excluded:
        if role not in layers:
            raise ConfigError(
                f"excluded: {role!r} is no linear layer of this model; its layers are called "
                f"{', '.join(list(layers)[:7])}, …"
            )
        stem, _, leaf = role.rpartition(".")
        for group in fused_layers:
            fused = {f"{stem}.{other}" for other in group} & layers.keys()
            missing = sorted(fused - set(excluded))
            if leaf in group and missing:
                raise ConfigError(
                    f"excluded: {role!r} without {', '.join(missing)}; engines compute them as "
                    "one, so name all of them or none"
                )


def _write_configs(
    source: Path, target: Path, written: Mapping[str, WrittenTensor], is_fp8: bool
) -> None:
    """Write config.json and, for FP8, hf_quant_config.json."""
    config: dict[str, Any] = json.loads((source / CONFIG_NAME).read_text(encoding="utf-8"))
    # transformers 5 writes the first and reads both; the second is all that older readers know.
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


def _kept_modules(written: Mapping[str, WrittenTensor], config: Mapping[str, Any]) -> list[str]:
    """Return the modules with a matrix that is not in FP8."""
    kept = {
        name.removesuffix(".weight")
        for name, tensor in written.items()
        if name.endswith(".weight") and len(tensor.shape) > 1 and tensor.dtype != "F8_E4M3"
    }
    # Tied to the token embeddings it has no tensor of its own, and still is a linear layer.
    if str((config.get("architectures") or [""])[0]).endswith("ForCausalLM"):
        kept.add("lm_head")
    return sorted(kept)
