"""A model folder to a `ModelSpec`: the JSON files of transformers and sentence-transformers.

`modules.json` is the truth on what follows the transformer. What is not understood is refused by
file, key and value.

Source: what sentence-transformers 6.2 and transformers 5.5 read and write; older key names beside
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Final

from embedlib.errors import ConfigError, ModelNotFoundError, ModelUnsupportedError
from embedlib.models.config_file import positions_key, read_encoder
from embedlib.models.heads import AnswerRows, is_scoring, read_head
from embedlib.models.json_files import JsonObject, load_json, quote
from embedlib.models.module_files import read_module
from embedlib.models.settings_file import read_settings
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
    module_tensors: Mapping[int, str | AnswerRows] = field(default_factory=dict)
    """By position of a module whose weights lie among the transformer's: what they are there."""


def is_scoring_model(folder: Path) -> bool:
    """Whether a folder says that it holds a reranker or classifier and not an embedding model.

    Raises:
        ModelUnsupportedError: a file is not JSON.
    """
    if (folder / "modules.json").is_file():
        general = JsonObject.load(folder / "config_sentence_transformers.json", folder)
        return _is_cross_encoder(general)
    return is_scoring(JsonObject.load(folder / "config.json", folder))


def _is_cross_encoder(general: JsonObject) -> bool:
    return general.text("model_type") == "CrossEncoder"


def load_spec(folder: Path) -> ModelSpec:
    """Return what the model in a folder is.

    Raises:
        ModelNotFoundError: the folder holds no model.
        ModelUnsupportedError: a file holds what is not implemented.
    """
    return read_model_files(folder).spec


def read_model_files(
    folder: Path,
    *,
    with_head: bool = False,
    template: str | None = None,
    is_compiled: bool = False,
) -> ModelFiles:
    """Return what the model in a folder is and where its parts lie.

    Args:
        folder: holds `modules.json`, or else `config.json`.
        with_head: read it as a reranker or classifier: `spec.head` is set.
        template: with a head, the name of a template in `known_rerankers.json` where the folder
            does not say how the model is asked.
        is_compiled: it is an engine directory: config.json may say how its weights are quantized.

    Raises:
        ModelNotFoundError: the folder holds no model.
        ConfigError: the template is not known.
        ModelUnsupportedError: a file holds what is not implemented, or the model is of the other
            kind.
    """
    if template is not None and not with_head:
        raise ConfigError(f"template = {template!r} is for rerankers; leave it out")
    has_modules = (folder / "modules.json").is_file()
    # Without modules.json sentence-transformers reads neither of its two own files.
    general = JsonObject("", {})
    if has_modules:
        general = JsonObject.load(folder / "config_sentence_transformers.json", folder)
        _check_kind(general, with_head)
    entries = _read_module_list(folder, with_head) if has_modules else []
    transformer_dir = entries[0][1] if entries else folder
    if not (transformer_dir / "config.json").is_file():
        raise ModelNotFoundError(f"{transformer_dir}: there is no config.json")
    config = JsonObject.load(transformer_dir / "config.json", folder)
    if is_compiled:  # what the weights are is in embedlib.json
        values = {key: config.values[key] for key in config.values if key != "quantization_config"}
        config = replace(config, values=values)
    tokenizer_config = JsonObject.load(transformer_dir / "tokenizer_config.json", folder)
    encoder = read_encoder(config)
    settings = JsonObject("", {})
    if has_modules:
        settings = read_settings(transformer_dir, folder, with_head=with_head)
    max_seq_tokens, source = _max_seq_tokens(settings, tokenizer_config, config, encoder)
    if with_head:
        scoring = [JsonObject.load(path / "config.json", folder) for _, path in entries[1:]]
        head = read_head(
            config,
            encoder,
            transformer_dir,
            tokenizer_config=tokenizer_config,
            settings=settings,
            general=general,
            logit_score=scoring[0] if scoring else None,
            template=template,
        )
        spec = ModelSpec(
            encoder=encoder,
            modules=head.modules,
            embedding_dim=len(head.head.labels),
            max_seq_tokens=max_seq_tokens,
            max_seq_tokens_source=source,
            lowercase=settings.boolean("do_lower_case", False),
            head=head.head,
        )
        return ModelFiles(
            folder=folder,
            spec=spec,
            transformer_dir=transformer_dir,
            module_dirs=(transformer_dir,) * len(head.modules),
            module_tensors=head.tensors,
        )
    if not has_modules and is_scoring(config):
        raise _is_scoring(config, "architectures")
    dim = encoder.hidden_size
    modules: list[Module] = []
    for kind, path in entries[1:]:
        module = read_module(kind, JsonObject.load(path / "config.json", folder), dim)
        dim = _output_dim(module, dim)
        modules.append(module)
    module_dirs = tuple(path for _, path in entries[1:])
    if not has_modules:
        modules, module_dirs = [_default_pooling(config)], (folder,)
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


def _check_kind(general: JsonObject, with_head: bool) -> None:
    """Refuse a model of sentence-transformers that is of the other kind."""
    is_reranker = _is_cross_encoder(general)
    if is_reranker and not with_head:
        raise _is_scoring(general, "model_type")
    if with_head and not is_reranker:
        raise ModelUnsupportedError(
            f"{general.name}: model_type = {quote(general.values.get('model_type'))} makes "
            "embeddings; use Embedder"
        )


def _is_scoring(file: JsonObject, key: str) -> ModelUnsupportedError:
    """Return the error of an Embedder whose model is not one."""
    return ModelUnsupportedError(
        f"{file.name}: {key} = {quote(file.values[key])} is a reranker or classifier; "
        "use Reranker or Classifier"
    )


def _read_module_list(folder: Path, with_head: bool) -> list[tuple[str, Path]]:
    """Return kind and directory of every module, in order.

    They are Transformer, Pooling, others; of a reranker Transformer and, if it answers with a
    token, LogitScore.
    """
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
        kind = _module_kind(entry, position, with_head)
        path = PurePosixPath(entry.text("path") or "")
        if path.is_absolute() or ".." in path.parts:
            raise entry.refuse("path", "a path inside the model folder")
        entries.append((kind, folder / path))
    if len(entries) < 2 - with_head:
        raise ModelUnsupportedError(
            f"{name}: has {len(entries)} modules; accepted: Transformer, Pooling, …"
        )
    return entries


def _module_kind(entry: JsonObject, position: int, with_head: bool) -> str:
    """Return the class name of a module.

    Releases have spelled its package differently: `sentence_transformers.models.Pooling`,
    `sentence_transformers.sentence_transformer.modules.pooling.Pooling`.
    """
    first, _, rest = (entry.text("type") or "").partition(".")
    kind = rest.rpartition(".")[2]
    accepted: tuple[str, ...] = ("Dense", "LayerNorm", "Normalize")
    if with_head:
        accepted = ()
    if position < 2:
        accepted = ("Transformer", "LogitScore" if with_head else "Pooling")[
            position : position + 1
        ]
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
