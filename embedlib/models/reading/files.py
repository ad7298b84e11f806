"""Reads a model folder (JSON of transformers and sentence-transformers) into a `ModelSpec`.

`modules.json` defines the modules after the transformer. The reader rejects what it does not
support; the error names the file, the key and the value.

Source: the files that sentence-transformers 6.2 and transformers 5.5 read and write, and older key
names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from embedlib.errors import ConfigError, ModelUnsupportedError
from embedlib.models.reading.config_file import (
    architecture_of,
    check_own_code,
    positions_key,
    positions_source,
    read_encoder,
)
from embedlib.models.reading.general_file import read_general, read_prompts
from embedlib.models.reading.head_modules import AnswerRows, VocabularyRows, masked_modules
from embedlib.models.reading.heads import (
    has_chat_template,
    is_modular,
    is_scoring,
    read_head,
)
from embedlib.models.reading.json_files import JsonObject, quote
from embedlib.models.reading.late_interaction import (
    is_late,
    is_stanford,
    mask_token,
    read_late,
    read_stanford,
)
from embedlib.models.reading.model_file import has_file
from embedlib.models.reading.module_files import (
    MASKED,
    SPLADE,
    output_dim,
    read_module,
    read_module_list,
)
from embedlib.models.reading.projection import check_commutes, projection_tensor, read_projection
from embedlib.models.reading.refusals import no_config
from embedlib.models.reading.settings_file import read_settings
from embedlib.models.spec import (
    Encoder,
    ModelSpec,
    Module,
    Pooling,
)


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """A model folder that the reader accepted: its spec, and where its files are."""

    folder: Path
    spec: ModelSpec
    transformer_dir: Path
    """Holds config.json, the tokenizer and the weights of the transformer."""
    module_dirs: tuple[Path, ...]
    """The directory with the weights of each module of the spec."""
    module_tensors: Mapping[int, str | AnswerRows | VocabularyRows] = field(default_factory=dict)
    """For modules whose weights are in the transformer's files: by position, the tensors there."""
    settings_dirs: tuple[Path, ...] = ()
    """Directories of modules of the head that have settings but no weights: LogitScore."""
    queries: ModelFiles | None = None
    """The table of weights that takes the model's place for queries; None: the model itself."""
    default_role: Literal["query", "document"] = "document"
    """Whose model computes texts that are neither of the two; with `queries`."""
    hub_name: str | None = None
    """The name by which the caller loaded the model from the hub; None for a local folder."""
    hub_revision: str | None = None
    """The resolved commit of a hub model; None for a local folder."""

    @property
    def directories(self) -> list[Path]:
        """All directories that hold files of the model, sorted."""
        found = {self.folder, self.transformer_dir, *self.module_dirs, *self.settings_dirs}
        return sorted(found | set(() if self.queries is None else self.queries.directories))


def is_scoring_model(folder: Path) -> bool:
    """Return whether a folder's files declare a reranker or classifier, not an embedding model.

    Raises:
        ModelUnsupportedError: if a file is not valid JSON.
    """
    if has_file(folder / "modules.json", folder):
        general = JsonObject.load(folder / "config_sentence_transformers.json", folder)
        return _is_cross_encoder(general)
    return is_scoring(JsonObject.load(folder / "config.json", folder))


def _is_cross_encoder(general: JsonObject) -> bool:
    return general.text("model_type") == "CrossEncoder"


def load_spec(folder: Path) -> ModelSpec:
    """Return the spec of the embedding model in a folder.

    Raises:
        ModelNotFoundError: if the folder holds no model.
        ModelUnsupportedError: if a file contains something that is not implemented.
    """
    return read_model_files(folder).spec


def read_model_files(
    folder: Path,
    *,
    with_head: bool = False,
    template: str | None = None,
    is_compiled: bool = False,
    entries: Sequence[tuple[str, Path]] | None = None,
) -> ModelFiles:
    """Return the spec of the model in a folder, and where its files are.

    Args:
        folder: holds `modules.json`, or else `config.json`.
        with_head: read it as a reranker or classifier: `spec.head` is set.
        template: only with a head: the name of a template in `known_rerankers.json`, for a folder
            that does not contain the model's prompt.
        is_compiled: the folder is an engine directory, whose config.json may describe quantization.
        entries: class and directory of each module; None: those of modules.json.

    Raises:
        ModelNotFoundError: if the folder holds no model.
        ConfigError: if the template is unknown, or given without a head.
        ModelUnsupportedError: if a file contains something that is not implemented, or the model is
            not of the kind that `with_head` says.
    """
    if template is not None and not with_head:
        raise ConfigError(f"template = {template!r} is for rerankers only; leave it out")
    parts = _read_parts(folder, with_head, is_compiled, entries)
    return _read_scoring(parts, template) if with_head else _read_embedding(parts)


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """The files and parts that embedding models and models with a head have in common."""

    folder: Path
    has_modules: bool
    """Whether the folder has modules.json, and so the files of sentence-transformers."""
    general: JsonObject
    """config_sentence_transformers.json; may be empty."""
    transformer_dir: Path
    config: JsonObject
    encoder: Encoder
    tokenizer_config: JsonObject
    settings: JsonObject
    """Settings of the transformer module of sentence-transformers; may be empty."""
    modules: list[tuple[str, Path]]
    """Class name and directory of each module after the transformer."""
    is_masked: bool
    """Whether the class of the transformer has the head of a masked language model."""

    def module_config(self, directory: Path) -> JsonObject:
        """Return a module's config.json; may be empty."""
        return JsonObject.load(directory / "config.json", self.folder)


def _read_parts(
    folder: Path,
    with_head: bool,
    is_compiled: bool,
    entries: Sequence[tuple[str, Path]] | None,
) -> _Parts:
    """Read the transformer, and list the modules after it."""
    has_modules = has_file(folder / "modules.json", folder)
    # Without modules.json, sentence-transformers reads neither of its own two files.
    general = JsonObject("", {})
    if has_modules:
        general = JsonObject.load(folder / "config_sentence_transformers.json", folder)
        _check_kind(folder, general, with_head)
    is_late_model = is_late(general)
    if entries is None:
        entries = read_module_list(folder, with_head, is_late=is_late_model) if has_modules else []
    kinds = [kind for kind, _ in entries]
    transformer_dir = entries[0][1] if entries else folder
    config = _read_config(transformer_dir, folder, is_compiled)
    return _Parts(
        folder=folder,
        has_modules=has_modules,
        general=general,
        transformer_dir=transformer_dir,
        config=config,
        encoder=read_encoder(config),
        tokenizer_config=JsonObject.load(transformer_dir / "tokenizer_config.json", folder),
        settings=read_settings(
            transformer_dir,
            folder,
            # A modular head stands on the same transformer as an embedding.
            with_head=with_head and not is_modular(kinds),
            is_late=is_late_model,
            is_masked=SPLADE in kinds,
        )
        if has_modules
        else JsonObject("", {}),
        modules=list(entries[1:]),
        is_masked=MASKED in kinds,
    )


def _read_config(transformer_dir: Path, folder: Path, is_compiled: bool) -> JsonObject:
    """Return config.json; that of an engine directory without its `quantization_config`."""
    if not has_file(transformer_dir / "config.json", folder):
        raise no_config(transformer_dir, folder)
    config = JsonObject.load(transformer_dir / "config.json", folder)
    if not is_compiled:
        return config
    # embedlib.json describes the weights.
    values = {key: config.values[key] for key in config.values if key != "quantization_config"}
    return replace(config, values=values)


def _read_scoring(parts: _Parts, template: str | None) -> ModelFiles:
    """Return the files of a reranker or classifier."""
    head = read_head(
        parts.config,
        parts.encoder,
        parts.transformer_dir,
        tokenizer_config=parts.tokenizer_config,
        settings=parts.settings,
        general=parts.general,
        modules=[(kind, parts.module_config(path)) for kind, path in parts.modules],
        template=template,
    )
    spec = ModelSpec(
        modules=head.modules,
        embedding_dim=len(head.head.labels),
        head=head.head,
        # With a template, prompts are its instructions. CrossEncoder puts other prompts in front of
        # a pair.
        **(read_prompts(parts.general) if head.head.template is None else {}),
        **_read_transformer(parts),
    )
    module_dirs = tuple(path for _, path in parts.modules)
    has_own = not head.tensors  # modules with weights in folders of their own
    return ModelFiles(
        folder=parts.folder,
        spec=spec,
        transformer_dir=parts.transformer_dir,
        module_dirs=module_dirs if has_own else (parts.transformer_dir,) * len(head.modules),
        module_tensors=head.tensors,
        settings_dirs=() if has_own else module_dirs,
    )


def _read_late(parts: _Parts) -> ModelFiles:
    """Return the files of a late-interaction model."""
    limit, source = _max_seq_tokens(parts)
    mask = mask_token(parts.tokenizer_config, parts.config)
    if parts.has_modules:
        modules = [(kind, path, parts.module_config(path)) for kind, path in parts.modules]
        found = read_late(
            parts.folder, parts.general, parts.settings, modules, parts.encoder, limit, mask
        )
    else:
        found = read_stanford(parts.folder, parts.config, parts.encoder, limit, mask)
    dim = parts.encoder.hidden_size
    for module in found.modules:
        dim = output_dim(module, dim)
    late = found.late
    spec = ModelSpec(
        modules=found.modules,
        embedding_dim=dim,
        late_interaction=late,
        prompts=found.prompts,
        **_read_transformer(parts),
    )
    longest = max(late.query_tokens, late.document_tokens)
    return ModelFiles(
        folder=parts.folder,
        spec=replace(spec, max_seq_tokens=longest, max_seq_tokens_source=source),
        transformer_dir=parts.transformer_dir,
        module_dirs=found.module_dirs,
        module_tensors=found.tensors,
    )


def _read_embedding(parts: _Parts) -> ModelFiles:
    """Return the files of an embedding model."""
    if is_late(parts.general) or (not parts.has_modules and is_stanford(parts.config)):
        return _read_late(parts)
    if not parts.has_modules and is_scoring(parts.config):
        raise _is_scoring(parts.config, "architectures")
    if not parts.has_modules and has_chat_template(parts.transformer_dir, parts.tokenizer_config):
        raise ModelUnsupportedError(
            f"{parts.folder} has a chat template and no modules.json: there sentence-transformers "
            "5.4 and later write every text into the template, a program that embedlib does not "
            "run; for plain texts, delete the template, or add the model's modules.json"
        )
    if any(kind == SPLADE for kind, _ in parts.modules):
        return _read_splade(parts)
    projection = read_projection(parts.config, parts.encoder.hidden_size)
    dim = parts.encoder.hidden_size if projection is None else projection.out_features
    modules: list[Module] = []
    for kind, path in parts.modules:
        module = read_module(kind, parts.module_config(path), dim)
        dim = output_dim(module, dim)
        modules.append(module)
    module_dirs = [path for _, path in parts.modules]
    if not parts.has_modules:
        modules, module_dirs = [_default_pooling(parts.config)], [parts.folder]
    module_tensors: dict[int, str | AnswerRows] = {}
    if projection is not None:
        check_commutes(modules[0], parts.config)
        modules.insert(1, projection)
        module_dirs.insert(1, parts.transformer_dir)
        module_tensors[1] = projection_tensor(parts.config)
    spec = ModelSpec(
        modules=tuple(modules),
        embedding_dim=dim,
        **_read_transformer(parts),
        **read_general(parts.general, dim),
    )
    return ModelFiles(
        folder=parts.folder,
        spec=spec,
        transformer_dir=parts.transformer_dir,
        module_dirs=tuple(module_dirs),
        module_tensors=module_tensors,
    )


def _read_splade(parts: _Parts) -> ModelFiles:
    """Return the files of a sparse model."""
    if not parts.is_masked and "transformer_task" not in parts.settings:
        raise parts.settings.refuse("transformer_task", '"fill-mask"')
    check_own_code(parts.config, "AutoModelForMaskedLM")
    [(_, splade_dir)] = parts.modules
    strategy = parts.module_config(splade_dir)
    modules, tensors = masked_modules(parts.config, parts.encoder, strategy)
    dim = parts.encoder.vocab_size
    spec = ModelSpec(
        modules=modules,
        embedding_dim=dim,
        **_read_transformer(parts),
        **read_general(parts.general, dim, is_sparse=True),
    )
    return ModelFiles(
        folder=parts.folder,
        spec=spec,
        transformer_dir=parts.transformer_dir,
        module_dirs=(*(parts.transformer_dir for _ in modules[1:]), splade_dir),
        module_tensors=tensors,
    )


def _read_transformer(parts: _Parts) -> dict[str, Any]:
    """Return the fields of `ModelSpec` that describe the transformer and its tokenizer."""
    tokens, source = _max_seq_tokens(parts)
    return {
        "encoder": parts.encoder,
        "max_seq_tokens": tokens,
        "max_seq_tokens_source": source,
        "lowercase": parts.settings.boolean("do_lower_case", False),
    }


def _check_kind(folder: Path, general: JsonObject, with_head: bool) -> None:
    """Reject a sentence-transformers model of the wrong kind."""
    is_reranker = _is_cross_encoder(general)
    if is_reranker and not with_head:
        raise _is_scoring(general, "model_type")
    if with_head and not is_reranker:
        said = "no model_type"
        if "model_type" in general:
            said = f"model_type = {quote(general.values['model_type'])}"
        raise ModelUnsupportedError(
            f"{folder} makes embeddings, not scores ({general.name} has {said}); "
            "use Embedder, or embedlib encode"
        )


def _is_scoring(file: JsonObject, key: str) -> ModelUnsupportedError:
    """Return the error for a reranker or classifier that is loaded as an embedding model."""
    return ModelUnsupportedError(
        f"{file.name}: {key} = {quote(file.values[key])} is a reranker or classifier; "
        "use Reranker or Classifier"
    )


def _default_pooling(config: JsonObject) -> Pooling:
    """Return the pooling of a folder without modules.json.

    Source: `_load_default_modules` in sentence-transformers, sentence_transformer/model.py.
    """
    is_causal_lm = architecture_of(config).endswith("ForCausalLM") and config.boolean(
        "is_causal", True
    )
    return Pooling(modes=("last_token",) if is_causal_lm else ("mean",))


def _max_seq_tokens(parts: _Parts) -> tuple[int, str]:
    """Return the maximum length of a sequence, and the file and key that set it.

    The transformer module's `max_seq_length` overrides the tokenizer's limit. Neither may exceed
    the positions that the model was trained for.

    Source: `Transformer.__init__` in sentence-transformers, base/modules/transformer.py. It lets
    `max_seq_length` exceed the positions; if they are learned, it fails on the first such text.
    """
    config, settings, tokenizer_config = parts.config, parts.settings, parts.tokenizer_config
    positions = parts.encoder.num_positions - parts.encoder.position_offset
    limits: list[tuple[float, str]] = [(positions, f"{config.name}: {positions_source(config)}")]
    # Older releases of transformers called it max_len.
    key = "model_max_length" if "model_max_length" in tokenizer_config else "max_len"
    if "max_seq_length" in settings:
        source = f"{settings.name}: max_seq_length"
        limits.insert(0, (settings.integer("max_seq_length"), source))
    elif key in tokenizer_config:
        # transformers writes 10**30 for "no limit"; the number of positions is then the smaller.
        limits.insert(0, (tokenizer_config.number(key), f"{tokenizer_config.name}: {key}"))
    tokens, source = min(limits, key=lambda limit: limit[0])
    if tokens < 1:
        raise config.refuse(positions_key(config), "room for at least one token")
    return int(tokens), source
