"""Reads the modules after the transformer: modules.json, and the config.json of each module.

Source: the classes of sentence-transformers 6.2, and the keys that older releases wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final, Literal

from embedlib.errors import ModelUnsupportedError
from embedlib.models.reading.json_files import JsonObject, quote
from embedlib.models.reading.model_file import is_file_name, load_json
from embedlib.models.reading.refusals import explain_module
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

POOLING_MODES_BY_NAME: Final[Mapping[str, PoolingMode]] = MappingProxyType(
    {
        "cls": "cls",
        "max": "max",
        "mean": "mean",
        "mean_sqrt_len_tokens": "mean_sqrt_len",
        "weightedmean": "weighted_mean",
        "lasttoken": "last_token",
    }
)
"""`pooling_mode` to mode."""

POOLING_MODES_BY_FLAG: Final[Mapping[str, PoolingMode]] = MappingProxyType(
    {
        "pooling_mode_cls_token": "cls",
        "pooling_mode_max_tokens": "max",
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
        "pooling_mode_weightedmean_tokens": "weighted_mean",
        "pooling_mode_lasttoken": "last_token",
    }
)
"""The older flags to modes, in the order in which several are concatenated."""

DENSE_ACTIVATIONS: Final[Mapping[str, Activation]] = MappingProxyType(
    {
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
)
"""`activation_function` to activation; sentence-transformers calls the class without arguments."""

STATIC: Final = "StaticEmbedding"
"""The only module of an embedding model that stands in place of Transformer and Pooling."""

SPLADE: Final = "SpladePooling"
"""The only module of a sparse model behind its transformer."""

MASKED: Final = "MLMTransformer"
"""A Transformer with the head of a masked language model, before sentence-transformers 5.4."""

SPLADE_LOGS: Final[Mapping[str, Literal[1, 2]]] = MappingProxyType({"relu": 1, "log1p_relu": 2})
"""`activation_function` of a SpladePooling to the number of its logarithms."""

SPLADE_STRATEGIES: Final[Mapping[str, Literal["max", "sum"]]] = MappingProxyType(
    {"max": "max", "sum": "sum"}
)

AFTER_POOLING: Final = ("Dense", "LayerNorm", "Normalize", "Dropout")

QUANTIZER: Final = "st_quantize.FlexibleQuantizer"
"""The module of pplx-embed-v1, whose code is in its folder; computed here as `RoundTanh`."""

MAX_PATH_PARTS: Final = 8
"""Of a module's path; known models have at most 2."""

SENTENCE_EMBEDDING: Final = ("sentence_embedding", None)
"""The only input and output that a module may name: the pooled vector."""

SCORES: Final = ("scores",)
"""The output of the last Dense of a reranker or classifier."""

TOKEN_VECTORS: Final = ("token_embeddings", None)
"""The only input and output that a module of a late-interaction model may name."""

PYLATE_DENSE: Final = "pylate.models.Dense.Dense"

OF_TOKENS: Final = ("Dense", "Normalize", "MultiVectorMask", "Dropout")
"""The modules behind the Transformer of a late-interaction model."""


def read_module_list(
    folder: Path, with_head: bool, *, is_late: bool = False
) -> list[tuple[str, Path]]:
    """Return the class name and directory of every module that changes a vector, in order.

    An embedding model has a Transformer, a Pooling and others, or a StaticEmbedding and others; a
    sparse model has a Transformer and a SpladePooling. A reranker has a Transformer alone; or with
    a LogitScore, if it answers with a token; or with a Pooling and others, of which the last makes
    the scores. A late-interaction model (`is_late`) has a Transformer and others, none of which is
    a Pooling.
    """
    name = "modules.json"
    content = load_json(folder / name, folder)
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        raise ModelUnsupportedError(
            f"{name}: holds {quote(content)}; a list of objects is expected"
        )
    entries: list[tuple[str, Path]] = []
    names: set[str] = set()
    for position, values in enumerate(content):
        entry = JsonObject(f"{name}: [{position}]", values)
        entry.check_keys({"idx", "name", "path", "type", "kwargs"})
        # kwargs lists arguments of `encode` that the module receives; adapters use it.
        takes = (["quantization"],) if entry.values.get("type") == QUANTIZER else ()
        entry.check_fixed("kwargs", ([], {}, None, *takes))
        _check_own_name(entry, names)
        before = [kind for kind, _ in entries]
        accepted = OF_TOKENS if is_late and before else accepted_after(before, with_head)
        kind = module_kind(entry, accepted, is_late=is_late)
        path = PurePosixPath(entry.text("path") or "")
        if not all(is_file_name(part) for part in path.parts) or len(path.parts) > MAX_PATH_PARTS:
            raise entry.refuse("path", "a path inside the model folder")
        if kind == "Dropout":  # works only in training
            JsonObject.load(folder / path / "config.json", folder).check_keys({"dropout"})
            continue
        entries.append((kind, folder / path))
    if not entries or (entries[0][0] != STATIC and len(entries) < 2 - with_head):
        raise ModelUnsupportedError(
            f"{name}: has {len(entries)} modules; accepted: Transformer, Pooling, …"
        )
    return entries


def _check_own_name(entry: JsonObject, names: set[str]) -> None:
    """Refuse a name that an earlier module has, and add it to the names.

    Source: `_load_config_modules` of sentence-transformers 6.2, which keeps only the last of them.
    """
    name = entry.text("name")
    if name in names:
        raise entry.refuse("name", "a name that no other module has")
    if name is not None:
        names.add(name)


def module_kind(
    entry: JsonObject, accepted: Sequence[str], *, is_late: bool = False, key: str = "type"
) -> str:
    """Return the class name of a module.

    Its package differs between releases: `sentence_transformers.models.Pooling`,
    `sentence_transformers.sentence_transformer.modules.pooling.Pooling`.

    Args:
        entry: its entry in modules.json.
        accepted: the classes that it may have.
        is_late: whether a Dense of PyLate is accepted, which is like that of sentence-transformers;
            else the module of pplx-embed-v1 is.
        key: where the entry names the class.

    Raises:
        ModelUnsupportedError: there is no such class, or it may not stand there.
    """
    name = entry.text(key) or ""
    first, _, rest = name.partition(".")
    kind = rest.rpartition(".")[2]
    others = (PYLATE_DENSE,) if is_late else (QUANTIZER,)
    is_own = kind == QUANTIZER.rpartition(".")[2]
    is_known = name in others or (first == "sentence_transformers" and not is_own)
    if not is_known or kind not in accepted:
        reason = explain_module(kind, first)
        if reason is not None:
            raise ModelUnsupportedError(f"{entry.name}: {key} = {quote(kind)} {reason}")
        names = ", ".join(
            f"sentence_transformers.….{name}" for name in accepted if name != "FlexibleQuantizer"
        )
        raise entry.refuse(key, names or "nothing behind it")
    return kind


def accepted_after(before: Sequence[str], with_head: bool) -> tuple[str, ...]:
    """Return the classes that a module may have behind these."""
    if not before:
        return ("Transformer",) if with_head else ("Transformer", MASKED, STATIC)
    if before[-1] == "Transformer":
        return ("Pooling", "LogitScore") if with_head else ("Pooling", SPLADE)
    if before[-1] == MASKED:
        return (SPLADE,)
    if before[-1] == "Pooling" and not with_head:
        return (*AFTER_POOLING, "FlexibleQuantizer")
    return () if before[-1] in ("LogitScore", SPLADE, "FlexibleQuantizer") else AFTER_POOLING


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
        kind: its class in sentence-transformers: Pooling, Dense, LayerNorm or Normalize.
        config: its config.json; may be empty for Normalize.
        dim: width of its input vectors.
        makes_scores: it is the Dense at the end of a reranker or classifier.
        inputs: the names that its input may have, and its output unless it makes scores.

    Raises:
        ModelUnsupportedError: if a key is unknown or missing, or its value is not implemented.
    """
    outputs = SCORES if makes_scores else inputs
    readers: dict[str, Callable[[JsonObject, int], Module]] = {
        "Pooling": _read_pooling,
        "Dense": partial(_read_dense, inputs=inputs, outputs=outputs),
        "LayerNorm": _read_layer_norm,
        "Normalize": partial(_read_normalize, inputs=inputs),
        "FlexibleQuantizer": _read_quantizer,
    }
    return readers[kind](config, dim)


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
    return Pooling(
        modes=_named_modes(config) if "pooling_mode" in config else _flagged_modes(config),
        include_prompt=config.boolean("include_prompt", True),
    )


def _named_modes(config: JsonObject) -> tuple[PoolingMode, ...]:
    """Return the modes of a newer file: one name or a list of them."""
    names = config.values["pooling_mode"]
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not names:
        raise config.refuse("pooling_mode", ", ".join(POOLING_MODES_BY_NAME))
    for name in names:
        if not isinstance(name, str) or name not in POOLING_MODES_BY_NAME:
            raise config.refuse("pooling_mode", ", ".join(POOLING_MODES_BY_NAME))
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


def _read_layer_norm(config: JsonObject, dim: int) -> LayerNorm:
    config.check_keys({"dimension"})
    if config.integer("dimension") != dim:
        raise config.refuse("dimension", f"{dim}, the width of its input")
    return LayerNorm(dim=dim)


def _read_normalize(config: JsonObject, dim: int, inputs: tuple[str | None, ...]) -> Normalize:
    del dim  # vectors of any width have a length
    config.check_keys({"module_input_name", "module_output_name"})
    config.check_fixed("module_input_name", inputs)
    config.check_fixed("module_output_name", inputs)
    return Normalize()


def _read_quantizer(config: JsonObject, dim: int) -> RoundTanh:
    del dim  # every number on its own
    config.check_keys(())
    return RoundTanh()
