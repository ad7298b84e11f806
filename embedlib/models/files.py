"""A model folder to a `ModelSpec`: the JSON files of transformers and sentence-transformers.

`modules.json` is the truth on what follows the transformer. What is not understood is refused by
file, key and value.

Source: what sentence-transformers 6.2 and transformers 5.5 read and write; older key names beside
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Final

from embedlib.errors import ModelNotFoundError, ModelUnsupportedError
from embedlib.models.config_file import positions_key, read_encoder
from embedlib.models.json_files import JsonObject, load_json, quote
from embedlib.models.module_files import read_module
from embedlib.models.spec import (
    SIMILARITIES,
    Dense,
    Encoder,
    LayerNorm,
    ModelSpec,
    Module,
    Normalize,
    Pooling,
    Similarity,
)

TRANSFORMER_CONFIG_NAMES: Final = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
"""Names the settings of the transformer module have had; the first that is there counts."""

TRANSFORMER_CONFIG_KEYS: Final[Mapping[str, tuple[object, ...] | None]] = MappingProxyType(
    {
        "max_seq_length": None,
        "do_lower_case": None,
        # since sentence-transformers 6
        "transformer_task": ("feature-extraction",),
        "modality_config": (
            {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
        ),
        "module_output_name": ("token_embeddings",),
        "unpad_inputs": None,
        "processing_kwargs": ({}, None),
        "query_length": (None,),
        "document_length": (None,),
        "query_expansion": (None,),
        # arguments for transformers, which could change anything
        "model_args": ({}, None),
        "tokenizer_args": ({}, None),
        "config_args": ({}, None),
        "model_kwargs": ({}, None),
        "processor_kwargs": ({}, None),
        "config_kwargs": ({}, None),
        "tokenizer_name_or_path": (None,),
    }
)
"""Keys of the transformer module's settings; a tuple holds the only values implemented."""

SIMILARITIES_BY_NAME: Final[Mapping[str, Similarity]] = MappingProxyType(
    {name: name for name in SIMILARITIES}
)


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """A model folder that was understood: what the model is and where its parts lie."""

    folder: Path
    spec: ModelSpec
    transformer_dir: Path
    """Holds config.json, the tokenizer and the weights of the transformer."""
    module_dirs: tuple[Path, ...]
    """For every module of the spec, the directory with its weights."""


def load_spec(folder: Path) -> ModelSpec:
    """Return what the model in a folder is.

    Raises:
        ModelNotFoundError: the folder holds no model.
        ModelUnsupportedError: a file holds what is not implemented.
    """
    return read_model_files(folder).spec


def read_model_files(folder: Path, *, with_head: bool = False) -> ModelFiles:
    """Return what the model in a folder is and where its parts lie.

    Args:
        folder: holds `modules.json`, or else `config.json`.
        with_head: read it as a reranker or classifier: `spec.head` is set.

    Raises:
        ModelNotFoundError: the folder holds no model.
        ModelUnsupportedError: a file holds what is not implemented.
    """
    if with_head:
        raise NotImplementedError
    has_modules = (folder / "modules.json").is_file()
    entries = _read_module_list(folder) if has_modules else []
    transformer_dir = entries[0][1] if entries else folder
    if not (transformer_dir / "config.json").is_file():
        raise ModelNotFoundError(f"{transformer_dir}: there is no config.json")
    config = JsonObject.load(transformer_dir / "config.json", folder)
    tokenizer_config = JsonObject.load(transformer_dir / "tokenizer_config.json", folder)
    encoder = read_encoder(config)
    # Without modules.json sentence-transformers reads neither of its two own files.
    settings = JsonObject("", {})
    general = JsonObject("", {})
    if has_modules:
        settings = _read_transformer_config(transformer_dir, folder)
        general = JsonObject.load(folder / "config_sentence_transformers.json", folder)
    dim = encoder.hidden_size
    modules: list[Module] = []
    for kind, path in entries[1:]:
        module = read_module(kind, JsonObject.load(path / "config.json", folder), dim)
        dim = _output_dim(module, dim)
        modules.append(module)
    module_dirs = tuple(path for _, path in entries[1:])
    if not has_modules:
        modules, module_dirs = [_default_pooling(config)], (folder,)
    max_seq_tokens, source = _max_seq_tokens(settings, tokenizer_config, config, encoder)
    spec = ModelSpec(
        encoder=encoder,
        modules=tuple(modules),
        embedding_dim=dim,
        max_seq_tokens=max_seq_tokens,
        max_seq_tokens_source=source,
        lowercase=settings.boolean("do_lower_case", False),
        **_read_general(general, dim),
    )
    return ModelFiles(
        folder=folder, spec=spec, transformer_dir=transformer_dir, module_dirs=module_dirs
    )


def _read_module_list(folder: Path) -> list[tuple[str, Path]]:
    """Return kind and directory of every module, in order: Transformer, Pooling, others."""
    name = "modules.json"
    content = load_json(folder / name, folder)
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        raise ModelUnsupportedError(
            f"{name}: holds {quote(content)}; a list of objects is expected"
        )
    entries = []
    for position, values in enumerate(content):
        entry = JsonObject(f"{name}: [{position}]", values)
        entry.check_keys({"idx", "name", "path", "type", "kwargs"})
        # They name arguments of `encode` that the module wants to see, as adapters do.
        entry.check_fixed("kwargs", ([], {}, None))
        kind = _module_kind(entry, position)
        path = PurePosixPath(entry.text("path") or "")
        if path.is_absolute() or ".." in path.parts:
            raise entry.refuse("path", "a path inside the model folder")
        entries.append((kind, folder / path))
    if len(entries) < 2:
        raise ModelUnsupportedError(
            f"{name}: has {len(entries)} modules; accepted: Transformer, Pooling, …"
        )
    return entries


def _module_kind(entry: JsonObject, position: int) -> str:
    """Return the class name of a module.

    Releases have spelled its package differently: `sentence_transformers.models.Pooling`,
    `sentence_transformers.sentence_transformer.modules.pooling.Pooling`.
    """
    first, _, rest = (entry.text("type") or "").partition(".")
    kind = rest.rpartition(".")[2]
    accepted = {0: ("Transformer",), 1: ("Pooling",)}.get(
        position, ("Dense", "LayerNorm", "Normalize")
    )
    if first != "sentence_transformers" or kind not in accepted:
        names = ", ".join(f"sentence_transformers.….{name}" for name in accepted)
        raise entry.refuse("type", names)
    return kind


def _output_dim(module: Module, dim: int) -> int:
    """Return the width a module makes of `dim`."""
    if isinstance(module, Pooling):
        return dim * len(module.modes)
    if isinstance(module, Dense):
        return module.out_features
    assert isinstance(module, (LayerNorm, Normalize))
    return dim


def _default_pooling(config: JsonObject) -> Pooling:
    """Return how a folder without modules.json is pooled.

    Source: `_load_default_modules` in sentence-transformers, sentence_transformer/model.py.
    """
    names = config.values.get("architectures") or [""]
    is_causal_lm = str(names[0]).endswith("ForCausalLM") and config.boolean("is_causal", True)
    return Pooling(modes=("last_token",) if is_causal_lm else ("mean",))


def _read_transformer_config(transformer_dir: Path, folder: Path) -> JsonObject:
    """Return the settings of the transformer module, checked; empty where there are none."""
    for name in TRANSFORMER_CONFIG_NAMES:
        settings = JsonObject.load(transformer_dir / name, folder)
        if settings.values:
            settings.check_keys(TRANSFORMER_CONFIG_KEYS)
            for key, accepted in TRANSFORMER_CONFIG_KEYS.items():
                if accepted is not None:
                    settings.check_fixed(key, accepted)
            return settings
    return JsonObject(TRANSFORMER_CONFIG_NAMES[0], {})


def _max_seq_tokens(
    settings: JsonObject, tokenizer_config: JsonObject, config: JsonObject, encoder: Encoder
) -> tuple[int, str]:
    """Return the longest sequence and the file and key that set it.

    The transformer module's `max_seq_length` takes the place of the tokenizer's limit. Neither may
    pass the positions the model was trained for.

    Source: `Transformer.__init__` in sentence-transformers, base/modules/transformer.py. It lets
    `max_seq_length` pass the positions, and where they are learned fails on the first such text.
    """
    positions = encoder.num_positions - encoder.position_offset
    limits: list[tuple[float, str]] = [(positions, f"{config.name}: {positions_key(config)}")]
    # transformers once called it max_len.
    key = "model_max_length" if "model_max_length" in tokenizer_config else "max_len"
    if "max_seq_length" in settings:
        source = f"{settings.name}: max_seq_length"
        limits.insert(0, (settings.integer("max_seq_length"), source))
    elif key in tokenizer_config:
        # transformers writes 10**30 for "no limit", which loses against the positions.
        limits.insert(0, (tokenizer_config.number(key), f"{tokenizer_config.name}: {key}"))
    tokens, source = min(limits, key=lambda limit: limit[0])
    if tokens < 1:
        raise config.refuse(positions_key(config), "room for at least one token")
    return int(tokens), source


def _read_general(general: JsonObject, dim: int) -> dict[str, Any]:
    """Return the fields of `ModelSpec` that config_sentence_transformers.json sets."""
    general.check_keys(
        {
            "__version__", "requirements", "model_type", "prompts", "default_prompt_name",
            "similarity_fn_name", "truncate_dim",
        }
    )  # fmt: skip
    general.check_fixed("model_type", ("SentenceTransformer", None))
    table = general.child("prompts")
    # A prompt that is null is a name without a text.
    prompts = {name: table.text(name) or "" for name in table.values}
    default = general.text("default_prompt_name")
    if default is not None and default not in prompts:
        raise general.refuse("default_prompt_name", f"a name in prompts ({', '.join(prompts)})")
    truncate_dim = general.optional_integer("truncate_dim", None, minimum=1)
    if truncate_dim is not None and truncate_dim > dim:
        raise general.refuse("truncate_dim", f"at most the embedding's {dim} dimensions")
    return {
        "prompts": prompts,
        "default_prompt_name": default,
        "similarity": general.choice("similarity_fn_name", SIMILARITIES_BY_NAME, "cosine"),
        "truncate_dim": truncate_dim,
    }
