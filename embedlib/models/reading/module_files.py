"""Reads the modules after the transformer: the config.json of each.

Source: the classes of sentence-transformers 6.2, and the keys that older releases wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from embedlib.errors import ModelUnsupportedError
from embedlib.models.reading.json_files import JsonObject
from embedlib.models.reading.model_file import has_file, missing_file
from embedlib.models.spec import (
    Activation,
    Dense,
    LayerNorm,
    Module,
    Normalize,
    Pooling,
    PoolingMode,
    RoundTanh,
    SpladePooling,
)

POOLING_MODES_BY_NAME: Final[Mapping[str, PoolingMode]] = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weighted_mean",
    "lasttoken": "last_token",
}
"""`pooling_mode` to mode."""

POOLING_MODES_BY_FLAG: Final[Mapping[str, PoolingMode]] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weighted_mean",
    "pooling_mode_lasttoken": "last_token",
}
"""The older flags to modes, in the order in which several are concatenated."""

DENSE_ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.SiLU": "silu",
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    # Shorter names of the same classes; sentence-transformers saves the longer ones.
    "torch.nn.Identity": "identity",
    "torch.nn.Tanh": "tanh",
    "torch.nn.ReLU": "relu",
    "torch.nn.GELU": "gelu",
    "torch.nn.SiLU": "silu",
    "torch.nn.Sigmoid": "sigmoid",
}
"""`activation_function` to activation; sentence-transformers calls the class without arguments."""

SPLADE_LOGS: Final[Mapping[str, Literal[1, 2]]] = {"relu": 1, "log1p_relu": 2}
"""`activation_function` of a SpladePooling to the number of its logarithms."""

SPLADE_STRATEGIES: Final[Mapping[str, Literal["max", "sum"]]] = {"max": "max", "sum": "sum"}

NEED_CONFIG: Final = ("Pooling", "Dense", "LayerNorm", "LogitScore")
"""Classes of modules that do not load without a config.json."""

SENTENCE_EMBEDDING: Final = ("sentence_embedding", None)
"""The only input and output that a module may name: the pooled vector."""

SCORES: Final = ("scores",)
"""The output of the last Dense of a reranker or classifier."""

TOKEN_VECTORS: Final = ("token_embeddings", None)
"""The only input and output that a module of a late-interaction model may name."""


def load_config(kind: str, directory: Path, folder: Path) -> JsonObject:
    """Return the config.json of a module; may be empty for a class that needs none.

    Args:
        kind: its class in sentence-transformers.
        directory: the module's.
        folder: the model folder.

    Raises:
        ModelUnsupportedError: it is missing, or no JSON object.
    """
    path = directory / "config.json"
    if kind == "FlexibleQuantizer" and directory == folder:  # the transformer's; it has none
        return JsonObject(path.name, {})
    if kind in NEED_CONFIG and not has_file(path, folder):
        raise ModelUnsupportedError(missing_file(path, folder))
    return JsonObject.load(path, folder)


def read_module(
    kind: str,
    config: JsonObject,
    dim: int,
    *,
    makes_scores: bool = False,
    inputs: tuple[str | None, ...] = SENTENCE_EMBEDDING,
) -> Module:
    """Return one module after the transformer.

    Args:
        kind: its class in sentence-transformers: Pooling, Dense, LayerNorm, Normalize, or
            FlexibleQuantizer.
        config: its config.json; may be empty for the last two.
        dim: width of its input vectors.
        makes_scores: it is the Dense at the end of a reranker or classifier.
        inputs: the names that its input may have, and its output unless it makes scores.

    Raises:
        ModelUnsupportedError: if a key is unknown or missing, or its value is not implemented.
    """
    match kind:
        case "Pooling":
            return _read_pooling(config, dim)
        case "Dense":
            return _read_dense(config, dim, inputs, SCORES if makes_scores else inputs)
        case "LayerNorm":
            config.check_keys({"dimension"})
            if config.integer("dimension") != dim:
                raise config.refuse("dimension", f"{dim}, the width of its input")
            return LayerNorm(dim=dim)
        case "Normalize":
            config.check_keys({"module_input_name", "module_output_name"})
            config.check_fixed("module_input_name", inputs)
            config.check_fixed("module_output_name", inputs)
            return Normalize()
        case "FlexibleQuantizer":
            config.check_keys(())
            return RoundTanh()
    raise AssertionError(f"{kind}: read_module_list refuses it; this is a bug in embedlib")


def read_splade(config: JsonObject, vocab_size: int, has_bias: bool) -> SpladePooling:
    """Return the pooling of a sparse model.

    Args:
        config: its config.json.
        vocab_size: rows of the head's matrix.
        has_bias: whether the head has one.
    """
    config.check_keys(
        {
            "pooling_strategy", "activation_function", "embedding_dimension",
            "word_embedding_dimension",
        }
    )  # fmt: skip
    for key in ("embedding_dimension", "word_embedding_dimension"):
        config.check_fixed(key, (vocab_size, None))
    return SpladePooling(
        vocab_size=vocab_size,
        strategy=config.choice("pooling_strategy", SPLADE_STRATEGIES, "max"),
        num_logs=config.choice("activation_function", SPLADE_LOGS, "relu"),
        has_bias=has_bias,
    )


def output_dim(module: Module, dim: int) -> int:
    """Return the width of a module's output for an input of width `dim`."""
    if isinstance(module, Pooling):
        return dim * len(module.modes)
    if isinstance(module, Dense):
        return module.out_features
    assert isinstance(module, (LayerNorm, Normalize, RoundTanh))
    return dim


def _read_pooling(config: JsonObject, dim: int) -> Pooling:
    config.check_keys(
        {
            "embedding_dimension", "word_embedding_dimension", "pooling_mode", "include_prompt",
            *POOLING_MODES_BY_FLAG,
        }
    )  # fmt: skip
    key = "embedding_dimension" if "embedding_dimension" in config else "word_embedding_dimension"
    if config.integer(key) != dim:
        raise config.refuse(key, f"the transformer's hidden_size = {dim}")
    config.check_fixed("include_prompt", (True, False))  # null leaves the prompt out, unseen
    return Pooling(
        modes=_named_modes(config) if "pooling_mode" in config else _flagged_modes(config),
        include_prompt=config.boolean("include_prompt", True),
    )


def _named_modes(config: JsonObject) -> tuple[PoolingMode, ...]:
    """Return the modes of a newer file: one name or a list of them."""
    names = config.values["pooling_mode"]
    names = [names] if isinstance(names, str) else names
    accepted = list(POOLING_MODES_BY_NAME)  # a list takes names that have no hash
    if not isinstance(names, list) or not names or any(name not in accepted for name in names):
        raise config.refuse("pooling_mode", ", ".join(accepted))
    return tuple(POOLING_MODES_BY_NAME[name] for name in names)


def _flagged_modes(config: JsonObject) -> tuple[PoolingMode, ...]:
    """Return the modes of an older file: one flag for each."""
    modes = tuple(
        mode for flag, mode in POOLING_MODES_BY_FLAG.items() if config.boolean(flag, False)
    )
    # Releases of sentence-transformers differ. If the flag is missing, 5 adds the mean and 6 does
    # not. If it is false and no other flag is on, 6 still takes the mean and 5 fails.
    if modes and "pooling_mode_mean_tokens" not in config:
        raise ModelUnsupportedError(
            f"{config.name}: pooling_mode_mean_tokens is missing beside pooling mode {modes[0]}; "
            "releases of sentence-transformers differ on the default; set it to true or false"
        )
    if not modes and "pooling_mode_mean_tokens" in config:
        raise config.refuse("pooling_mode_mean_tokens", "true if no other pooling mode is on")
    return modes or ("mean",)


def _read_dense(
    config: JsonObject,
    dim: int,
    inputs: tuple[str | None, ...],
    outputs: tuple[str | None, ...],
) -> Dense:
    config.check_keys(
        {
            "in_features", "out_features", "bias", "activation_function", "use_residual",
            "module_input_name", "module_output_name",
        }
    )  # fmt: skip
    if inputs is not TOKEN_VECTORS:
        config.check_fixed("use_residual", (False, None))
    config.check_fixed("module_input_name", inputs)
    config.check_fixed("module_output_name", outputs)
    if config.integer("in_features") != dim:
        raise config.refuse("in_features", f"{dim}, the width of its input")
    return Dense(
        in_features=dim,
        out_features=config.integer("out_features"),
        has_bias=config.boolean("bias", True),
        activation=config.choice(
            "activation_function", DENSE_ACTIVATIONS, "torch.nn.modules.activation.Tanh"
        ),
        has_residual=config.boolean("use_residual", False),
    )
