"""Opens a model: from its name to its files, and to the settings that belong to its name.

    opened = OpenedModel.find(name, config)       # the folder, and settings known by the name
    files = opened.read_files(with_head=False)    # the spec, and the places of the parts
    tokenizer = load_tokenizer(files)
    files = opened.limit_length(files, tokenizer)

This module reads no weights but their headers, and chooses no engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import tokenizers

from embedlib.checks import is_count
from embedlib.config import Config
from embedlib.errors import (
    ConfigError,
    ModelError,
    ModelUnsupportedError,
    ModelWeightsError,
    shown,
)
from embedlib.models.compiled.engine_folder import (
    Manifest,
    file_hashes,
    is_compiled,
    load_manifest,
    verify_engine_folder,
)
from embedlib.models.folders import read_folder
from embedlib.models.hub import ModelFolder, resolve
from embedlib.models.hub_outline import is_downloaded, missing_weights, outline
from embedlib.models.known_models import KnownModel, known_model
from embedlib.models.known_rerankers import template_of
from embedlib.models.packing.verify import verify_pack
from embedlib.models.reading.files import ModelFiles, is_scoring_model
from embedlib.models.reading.heads import own_head
from embedlib.models.reading.json_files import JsonObject
from embedlib.models.reading.model_file import has_file
from embedlib.models.reading.pack_file import is_pack
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.models.spec import ModelSpec
from embedlib.models.weights.weight_files import list_all


@dataclass(frozen=True, kw_only=True)
class OpenedModel:
    """A model or an engine directory that was found; its model files are not read yet."""

    folder: Path
    """A pack is a folder, too: see `reading.pack_file`."""
    name: str
    """The name that the caller passed; of an engine directory or pack the hub name, if known."""
    revision: str | None
    """The resolved commit of a hub model, also of the one a directory or pack was made from."""
    manifest: Manifest | None
    """The content of embedlib.json of an engine directory; None for a model."""
    config: Config
    has_weights: bool = True
    """False for a model of the hub of which settings alone were asked for."""

    @classmethod
    def find(cls, name: str | PathLike[str], config: Config) -> OpenedModel:
        """Find the folder of a model, downloading what is missing.

        Args:
            name: a folder, a pack, a hub name or `package:NAME`.
            config: the options.

        Raises:
            ModelError: there is no such model, or it is a damaged pack.
            ConfigError: `revision` is given for a model that is not on the hub.
            EngineBuildError: it is an engine directory whose embedlib.json cannot be read.
        """
        return cls._of(resolve(name, config), config)

    @classmethod
    @contextmanager
    def outlined(
        cls, name: str | PathLike[str], config: Config, min_bytes: int
    ) -> Iterator[OpenedModel | None]:
        """Yield a model of the hub as it is known before its weights are downloaded.

        Yields None where no weights of `min_bytes` would be, or the load itself has to tell.

        Raises:
            ModelError: there is no such model.
            EngineBuildError: it is an engine directory whose embedlib.json cannot be read.
        """
        if not is_downloaded(name, config):
            yield None
            return
        found = resolve(name, config, with_weights=False)
        missing = missing_weights(found, config) or {}
        if sum(missing.values()) < max(min_bytes, 1):
            yield None
            return
        with outline(found, missing, config) as made:
            yield None if made is None else cls._of(made, config)

    @classmethod
    @contextmanager
    def described(cls, name: str | PathLike[str], config: Config) -> Iterator[OpenedModel]:
        """Yield a model whose settings alone are to be read.

        Of one that is not in the cache no weights are downloaded, but for a table whose headers the
        hub does not give: it is read to know what it is.

        Raises:
            what `find` raises.
        """
        # Of one that is, settings alone would hide the weights: the cache would name a commit as
        # the latest that has none, and the model could not be loaded offline any more.
        if not is_downloaded(name, config):
            yield cls.find(name, config)
            return
        found = resolve(name, config, with_weights=False)
        missing = missing_weights(found, config)
        if missing is not None and not missing:  # the repository has none
            yield cls.find(name, config)
            return
        with outline(found, missing, config) if missing else nullcontext() as made:
            opened = replace(cls._of(made or found, config), has_weights=False)
            yield opened if made or opened._can_be_read() else cls.find(name, config)

    def _can_be_read(self) -> bool:
        try:
            self.read_files(with_head=self.has_head)
        except ModelWeightsError:
            return False
        except ModelError:  # the caller is told
            pass
        return True

    @classmethod
    def _of(cls, found: ModelFolder, config: Config) -> OpenedModel:
        if is_pack(found.path):
            pack = verify_pack(found.path, file_hashes(config))
            found = replace(found, name=pack.hub_name or found.name, revision=pack.hub_revision)
        manifest = load_manifest(found.path) if is_compiled(found.path) else None
        if manifest is not None and manifest.hub_name is not None:
            found = replace(found, name=manifest.hub_name, revision=manifest.hub_revision)
        return cls(
            folder=found.path,
            name=found.name,
            revision=found.revision,
            manifest=manifest,
            config=config,
        )

    @property
    def hub_name(self) -> str | None:
        """The hub name, by which settings are looked up; None for a plain folder."""
        return None if self.revision is None else self.name

    @property
    def known(self) -> KnownModel:
        """Settings of the model that its folder does not contain."""
        return KnownModel() if self.hub_name is None else known_model(self.hub_name)

    @property
    def template(self) -> str | None:
        """The name of a reranker's template: that of the options, or the known one."""
        return self.config.template or self._known_template

    @property
    def _known_template(self) -> str | None:
        return None if self.hub_name is None else template_of(self.hub_name)

    @property
    def has_head(self) -> bool:
        """Whether its files or its template make it a reranker or classifier.

        Raises:
            ModelUnsupportedError: a file is not JSON.
        """
        return self.template is not None or is_scoring_model(self.folder) or self._stores_a_head()

    def _stores_a_head(self) -> bool:
        """Whether the weights hold a head that config.json does not call the model's own."""
        if has_file(self.folder / "modules.json", self.folder):
            return False
        tensor = own_head(JsonObject.load(self.folder / "config.json", self.folder))
        if tensor is None:
            return False
        try:
            return tensor in list_all(self.folder, self.folder)[0]
        except ModelWeightsError:
            return False

    def check_bytes(self) -> None:
        """Read an engine directory in full and compare it with its embedlib.json.

        Raises:
            EngineBuildError: it is damaged.
        """
        if self.manifest is not None:
            verify_engine_folder(self.folder)

    def read_files(self, *, with_head: bool) -> ModelFiles:
        """Read the spec of the model and the places of its parts.

        Args:
            with_head: read it as a reranker or classifier.

        Raises:
            ModelError: the files are not supported, or the model is of the other kind.
            ConfigError: the option `template` is unknown or has no effect.
        """
        if self._known_template is not None and not with_head:
            # Its files look like those of any language model.
            raise ModelUnsupportedError(f"{self.name} is a reranker; use Reranker")
        if not with_head and self._stores_a_head():
            raise ModelUnsupportedError(
                f"{self.name} is a reranker or classifier; use Reranker or Classifier"
            )
        files = read_folder(
            self.folder,
            with_head=with_head,
            template=self.template,
            is_compiled=self.manifest is not None,
        )
        return replace(files, hub_name=self.hub_name, hub_revision=self.revision)

    def read_source(self) -> ModelFiles:
        """Read a model to compile or measure; its files decide whether it has a head.

        Raises:
            ConfigError: it is an engine directory in another precision than bf16, or
                `max_seq_tokens` is out of range.
            ModelError: the files are not supported, or the model has float32 alone.
        """
        if self.manifest is not None and self.manifest.precision != "bf16":
            raise ConfigError(
                f"{self.folder} was compiled to {self.manifest.precision}; give the model it was "
                "made from"
            )
        files = self.read_files(with_head=self.has_head)
        check_has_precisions(files.spec, self.name)
        if self.config.max_seq_tokens is None:
            return files  # saves the time to load the tokenizer
        return self.limit_length(files, load_tokenizer(files))

    def limit_length(self, files: ModelFiles, tokenizer: tokenizers.Tokenizer) -> ModelFiles:
        """Return the files with the length limit of the option `max_seq_tokens`, if it is given.

        Raises:
            ConfigError: the limit is out of the model's range.
            ModelUnsupportedError: the limit of the model's files leaves no room for text.
        """
        return replace(files, spec=limit_length(files.spec, tokenizer, self.config))


def check_has_precisions(spec: ModelSpec, name: str) -> None:
    """Refuse a model of a kind that is computed in one precision, and so in one way.

    Raises:
        ModelUnsupportedError: it is a late-interaction, a sparse or a static model.
    """
    kinds = {
        "late-interaction": spec.late_interaction is not None,
        "sparse": spec.is_sparse,
        "static": spec.encoder.is_table,
    }
    for kind, is_kind in kinds.items():
        if is_kind:
            raise ModelUnsupportedError(
                f"{name} is a {kind} model, which is computed in float32 alone: there is nothing "
                "to compile, to verify or to tune"
            )


def limit_length(spec: ModelSpec, tokenizer: tokenizers.Tokenizer, config: Config) -> ModelSpec:
    """Return the spec with the length limit of the option `max_seq_tokens`, if it is given.

    Raises:
        ConfigError: the limit is out of the model's range.
        ModelUnsupportedError: the limit of the model's files leaves no room for text.
    """
    num_special_tokens = tokenizer.num_special_tokens_to_add(is_pair=False)
    if config.max_seq_tokens is None:
        if spec.max_seq_tokens <= num_special_tokens:
            raise ModelUnsupportedError(
                f"{spec.max_seq_tokens_source} = {spec.max_seq_tokens} leaves no room for text "
                f"beside {num_special_tokens} special tokens; accepted: at least "
                f"{num_special_tokens + 1}"
            )
        return spec
    limit = spec.encoder.max_tokens
    check_length("max_seq_tokens", config.max_seq_tokens, limit, num_special_tokens)
    late = spec.late_interaction
    if late is not None:  # the length of a query is part of the model
        longest = max(late.query_tokens, config.max_seq_tokens)
        late = replace(late, document_tokens=config.max_seq_tokens)
        return replace(spec, late_interaction=late, max_seq_tokens=longest)
    return replace(
        spec,
        max_seq_tokens=config.max_seq_tokens,
        max_seq_tokens_source="option max_seq_tokens",
    )


def check_length(option: str, max_seq_tokens: int, limit: int, num_special_tokens: int) -> None:
    """Check a length limit; the error calls it by the name of the option.

    Raises:
        ConfigError: it exceeds the model's positions or leaves no room for text.
    """
    if not is_count(max_seq_tokens) or not num_special_tokens < max_seq_tokens <= limit:
        raise ConfigError(
            f"{option} = {shown(max_seq_tokens)}; this model allows {num_special_tokens + 1} to "
            f"{limit}"
        )


def longest_sequence(spec: ModelSpec) -> int:
    """Return the maximum length limit of an engine that was made from this spec."""
    if spec.encoder.rope is not None:
        return spec.max_seq_tokens  # the engine was built for these positions
    return spec.encoder.max_tokens
