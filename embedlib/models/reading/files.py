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

from embedlib.errors import ConfigError, ModelNotFoundError, ModelUnsupportedError
from embedlib.models.hub_cache import MODULES, hub_name, is_snapshot, may_have
from embedlib.models.reading.config_file import architecture_of, check_own_code, family_of
from embedlib.models.reading.general_file import (
    is_cross_encoder,
    is_late,
    read_general,
    read_prompts,
)
from embedlib.models.reading.head_modules import AnswerRows, VocabularyRows, masked_modules
from embedlib.models.reading.heads import has_chat_template, is_scoring, read_head
from embedlib.models.reading.json_files import JsonObject
from embedlib.models.reading.late_interaction import read_late
from embedlib.models.reading.model_file import has_file
from embedlib.models.reading.module_files import output_dim, read_module
from embedlib.models.reading.module_list import SPLADE
from embedlib.models.reading.parts import (
    LATE_WAY,
    Parts,
    no_embedder,
    no_scorer,
    read_parts,
    transformer_fields,
)
from embedlib.models.reading.projection import check_commutes, read_projection
from embedlib.models.reading.stanford import STANFORD_CLASS, is_stanford, read_stanford
from embedlib.models.spec import ModelSpec, Module, Pooling


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
        return is_cross_encoder(general)
    return is_scoring(JsonObject.load(folder / "config.json", folder))


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
    parts = read_parts(folder, with_head, is_compiled, entries)
    return _read_scoring(parts, template) if with_head else _read_embedding(parts)


def _read_scoring(parts: Parts, template: str | None) -> ModelFiles:
    """Return the files of a reranker or classifier."""
    if not parts.has_modules and is_stanford(parts.config):
        raise no_scorer(parts.folder, f"config.json is of {STANFORD_CLASS}", LATE_WAY)
    head = read_head(parts, template)
    module_dirs = tuple(path for _, path, _ in parts.modules)
    has_own = not head.tensors  # modules with weights in folders of their own
    files = _files(
        parts,
        head.modules,
        module_dirs if has_own else (parts.transformer_dir,) * len(head.modules),
        head.tensors,
        embedding_dim=len(head.head.labels),
        head=head.head,
        # With a template, prompts are its instructions. CrossEncoder puts other prompts in front of
        # a pair.
        **(read_prompts(parts.general) if head.head.template is None else {}),
    )
    return replace(files, settings_dirs=() if has_own else module_dirs)


def _files(
    parts: Parts,
    modules: Sequence[Module],
    module_dirs: Sequence[Path],
    module_tensors: Mapping[int, str | AnswerRows | VocabularyRows],
    **fields: Any,
) -> ModelFiles:
    """Return the files of a transformer with these modules; the fields are those of its spec."""
    return ModelFiles(
        folder=parts.folder,
        spec=ModelSpec(modules=tuple(modules), **{**transformer_fields(parts), **fields}),
        transformer_dir=parts.transformer_dir,
        module_dirs=tuple(module_dirs),
        module_tensors=module_tensors,
    )


def _read_late(parts: Parts) -> ModelFiles:
    """Return the files of a late-interaction model."""
    found = read_late(parts) if parts.has_modules else read_stanford(parts)
    dim = parts.encoder.hidden_size
    for module in found.modules:
        dim = output_dim(module, dim)
    return _files(
        parts,
        found.modules,
        found.module_dirs,
        found.tensors,
        embedding_dim=dim,
        late_interaction=found.late,
        prompts=found.prompts,
        max_seq_tokens=max(found.late.query_tokens, found.late.document_tokens),
    )


def _read_embedding(parts: Parts) -> ModelFiles:
    """Return the files of an embedding model."""
    if is_late(parts.general) or (not parts.has_modules and is_stanford(parts.config)):
        return _read_late(parts)
    if not parts.has_modules and is_scoring(parts.config):
        raise no_embedder(parts.config, "architectures")
    own_end = _library_end(parts)
    if has_chat_template(parts) and not (parts.has_modules or own_end):
        raise ModelUnsupportedError(
            f"{parts.folder} has a chat template and no modules.json: there sentence-transformers "
            "5.4 and later write every text into the template, a program that embedlib does not "
            "run; for plain texts, delete the template, or add the model's modules.json"
        )
    if any(kind == SPLADE for kind, *_ in parts.modules):
        return _read_splade(parts)
    projection = read_projection(parts.config, parts.encoder.hidden_size)
    dim = parts.encoder.hidden_size if projection is None else projection[0].out_features
    modules: list[Module] = []
    for kind, _, config in parts.modules:
        module = read_module(kind, config, dim)
        dim = output_dim(module, dim)
        modules.append(module)
    module_dirs = [path for _, path, _ in parts.modules]
    if not parts.has_modules:
        modules = own_end or [_default_pooling(parts)]
        module_dirs = [parts.folder] * len(modules)
    module_tensors: dict[int, str | AnswerRows] = {}
    if projection is not None:
        check_commutes(modules[0], parts.config)
        modules.insert(1, projection[0])
        module_dirs.insert(1, parts.transformer_dir)
        module_tensors[1] = projection[1]
    general = read_general(parts.general, dim)
    return _files(parts, modules, module_dirs, module_tensors, embedding_dim=dim, **general)


def _read_splade(parts: Parts) -> ModelFiles:
    """Return the files of a sparse model."""
    if not parts.is_masked and "transformer_task" not in parts.settings:
        raise parts.settings.refuse("transformer_task", '"fill-mask"')
    check_own_code(parts.config, "AutoModelForMaskedLM")
    [(_, splade_dir, strategy)] = parts.modules
    modules, tensors = masked_modules(parts.config, parts.encoder, strategy)
    dim = parts.encoder.vocab_size
    module_dirs = (*(parts.transformer_dir for _ in modules[1:]), splade_dir)
    general = read_general(parts.general, dim, is_sparse=True)
    return _files(parts, modules, module_dirs, tensors, embedding_dim=dim, **general)


def _library_end(parts: Parts) -> list[Module]:
    """Return what the model's own library computes behind the transformer; empty: it has none.

    Raises:
        ModelUnsupportedError: the folder is one of sentence-transformers, which calls the class
            otherwise.
    """
    end = family_of(parts.config).library_end
    if end and parts.has_modules:
        raise ModelUnsupportedError(
            "modules.json: sentence-transformers runs the class in auto_map from left to right, "
            "its authors' library both ways; delete modules.json to get what the latter computes"
        )
    return [*end]


def _default_pooling(parts: Parts) -> Pooling:
    """Return the pooling of a folder without modules.json.

    Source: `_load_default_modules` in sentence-transformers, sentence_transformer/model.py.

    Raises:
        ModelNotFoundError: the folder is of the hub's cache, which may only lack the file.
        ModelUnsupportedError: the folder has a pooling of its own, which the file would name.
    """
    config, folder = parts.config, parts.folder.absolute()
    is_cached = is_snapshot(folder)
    if is_cached and may_have(folder, MODULES):
        raise ModelNotFoundError(
            f"{folder} in the hub's cache has no {MODULES}, which the repository may have; it says "
            "how vectors are pooled, and libraries that load the transformer alone do not cache "
            f"it; load {hub_name(folder.parent.parent)} once online"
        )
    if not is_cached and has_file(folder / "1_Pooling" / "config.json", folder):
        raise ModelUnsupportedError(
            f"{parts.folder} has 1_Pooling/config.json but no {MODULES}, which says what follows "
            "the transformer; sentence-transformers would not read the pooling either; copy all "
            "files of the model, or delete 1_Pooling for the pooling of a folder without one"
        )
    is_causal_lm = architecture_of(config).endswith("ForCausalLM") and config.boolean(
        "is_causal", True
    )
    return Pooling(modes=("last_token",) if is_causal_lm else ("mean",))
