"""From a model's name to the parts that run it: spec, tokenizer, engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Final, cast

import tokenizers

from embedlib.config import Config, EngineName
from embedlib.engines.base import Engine
from embedlib.engines.engine_folder import (
    MANIFEST_NAME,
    Manifest,
    file_hashes,
    open_engine_folder,
)
from embedlib.engines.select import choose_engine, make_engine, plan_engine
from embedlib.errors import ConfigError, EngineUnsupportedError
from embedlib.models.files import ModelFiles, read_model_files
from embedlib.models.fingerprint import fingerprint
from embedlib.models.hub import resolve
from embedlib.models.known_models import KnownModel, known_model
from embedlib.models.known_rerankers import template_of
from embedlib.models.spec import ModelSpec
from embedlib.models.tokenizer_files import load_tokenizer

PER_TOKEN_ENGINES: Final[tuple[EngineName, ...]] = ("openvino",)
"""Engines that can give a vector for every token."""


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model ready to run."""

    spec: ModelSpec
    tokenizer: tokenizers.Tokenizer
    engine: Engine
    fingerprint: Callable[[Mapping[str, object]], str]
    """From the settings that decide the vectors; reads all weights once."""
    known: KnownModel = field(default_factory=KnownModel)
    """Of a hub model."""
    precision: str = "float32"
    """What the vectors are computed in, and which layers are not, for the fingerprint."""
    files: ModelFiles | None = None
    """None: the engine is the caller's own."""
    lower_tokens: Callable[[], Engine] | None = None
    """Makes a second engine, which gives the transformer's vector of every token; the weights are
    mapped, not read again. None: the engine is the caller's own."""


def load_model(
    name: str | PathLike[str], config: Config, *, with_head: bool = False
) -> LoadedModel:
    """Find a model, or an engine directory, read its files and build its engine.

    Args:
        name: a folder, a hub name or `package:NAME`.
        config: the options.
        with_head: load the head that makes scores: a reranker or classifier.

    Raises:
        ConfigError: `max_seq_tokens` is beyond what the model allows.
        ModelError, EngineError: as `Embedder` says.
    """
    choose_engine(config)  # nothing is fetched for an engine that is not here
    folder = resolve(
        name,
        revision=config.revision,
        token=config.token,
        cache_folder=config.cache_folder,
        local_files_only=config.local_files_only,
    )
    manifest = _read_compiled(folder.path)
    template = config.template
    if template is None and with_head and folder.revision is not None:
        template = template_of(folder.name)
    files = read_model_files(
        folder.path,
        with_head=with_head,
        template=template,
        is_compiled=manifest is not None,
    )
    tokenizer = load_tokenizer(files)
    files = replace(files, spec=limit_length(files.spec, tokenizer, config))
    plan = plan_engine(files, config, manifest)
    return LoadedModel(
        spec=files.spec,
        tokenizer=tokenizer,
        engine=make_engine(plan, files, config),
        fingerprint=partial(fingerprint, files, folder.revision, hashes=file_hashes(config))
        if manifest is None
        else partial(_compiled_fingerprint, manifest),
        known=KnownModel() if folder.revision is None else known_model(folder.name),
        precision=str(plan.precision),
        files=files,
        lower_tokens=partial(_lower_tokens, cast(EngineName, plan.engine), files, config, manifest),
    )


def _lower_tokens(
    engine: EngineName, files: ModelFiles, config: Config, manifest: Manifest | None
) -> Engine:
    """Make an engine without what follows the transformer.

    Raises:
        EngineUnsupportedError: this kind of engine cannot.
        EngineBuildError: compiling failed.
    """
    if engine not in PER_TOKEN_ENGINES:
        raise EngineUnsupportedError(
            f"engine {engine} gives one vector for a text and none for its tokens; pass "
            "engine='openvino' for these"
        )
    # Planned anew, since the first engine may have compiled what this one is to run.
    plan = plan_engine(files, replace(config, engine=engine), manifest)
    spec = replace(files.spec, modules=(), embedding_dim=files.spec.encoder.hidden_size)
    return make_engine(plan, replace(files, spec=spec, module_dirs=()), config)


def _compiled_fingerprint(manifest: Manifest, settings: Mapping[str, object]) -> str:
    """Return `folder:DIGEST` of the model that was compiled, of how, and of the settings."""
    made = (manifest.fingerprint, manifest.precision, manifest.excluded)
    content = json.dumps([made, dict(settings)], sort_keys=True)
    return f"folder:{hashlib.blake2b(content.encode(), digest_size=16).hexdigest()}"


def _read_compiled(folder: Path) -> Manifest | None:
    """Return what an engine directory says of itself after checking every byte; None: a model."""
    if not (folder / MANIFEST_NAME).is_file():
        return None
    return open_engine_folder(folder)


def num_positions(spec: ModelSpec) -> int:
    """Tokens the model has positions for."""
    return spec.encoder.num_positions - spec.encoder.position_offset


def limit_length(spec: ModelSpec, tokenizer: tokenizers.Tokenizer, config: Config) -> ModelSpec:
    """Return the spec with the length limit of the option `max_seq_tokens`, if it is given.

    Raises:
        ConfigError: the model cannot keep it.
    """
    if config.max_seq_tokens is None:
        return spec
    num_special_tokens = tokenizer.num_special_tokens_to_add(is_pair=False)
    check_length(config.max_seq_tokens, num_positions(spec), num_special_tokens)
    return replace(
        spec,
        max_seq_tokens=config.max_seq_tokens,
        max_seq_tokens_source="option max_seq_tokens",
    )


def check_length(max_seq_tokens: int, limit: int, num_special_tokens: int) -> None:
    """Refuse a length limit the model cannot keep.

    Raises:
        ConfigError: it is beyond the model's positions or leaves no room for text.
    """
    if not num_special_tokens < max_seq_tokens <= limit:
        raise ConfigError(
            f"max_seq_length = {max_seq_tokens}; this model allows {num_special_tokens + 1} to "
            f"{limit}"
        )
