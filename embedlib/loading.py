"""From a model's name to the parts that run it: spec, tokenizer, engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path

import tokenizers

from embedlib.config import Config
from embedlib.engines.base import Engine
from embedlib.engines.engine_folder import (
    MANIFEST_NAME,
    Manifest,
    open_engine_folder,
)
from embedlib.engines.select import choose_engine, make_engine, plan_engine
from embedlib.errors import ConfigError
from embedlib.models.files import read_model_files
from embedlib.models.fingerprint import fingerprint
from embedlib.models.hub import resolve
from embedlib.models.known_prompts import KnownPrompts, known_prompts
from embedlib.models.known_rerankers import template_of
from embedlib.models.spec import ModelSpec
from embedlib.models.tokenizer_files import load_tokenizer


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model ready to run."""

    spec: ModelSpec
    tokenizer: tokenizers.Tokenizer
    engine: Engine
    fingerprint: Callable[[Mapping[str, object]], str]
    """From the settings that decide the vectors; reads all weights once."""
    known: KnownPrompts = field(default_factory=KnownPrompts)
    """Of a hub model."""
    precision: str = "float32"
    """What the vectors are computed in, and which layers are not, for the fingerprint."""


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
        fingerprint=partial(fingerprint, files, folder.revision),
        known=KnownPrompts() if folder.revision is None else known_prompts(folder.name),
        precision=str(plan.precision),
    )


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
