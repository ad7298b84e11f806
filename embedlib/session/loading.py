"""From a model's name to the parts that run it: spec, tokenizer, engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any

import tokenizers
from numpy.typing import NDArray

from embedlib.config import Config, PrecisionName
from embedlib.engines.base import Engine
from embedlib.engines.kind import ChosenPrecision, EngineKind
from embedlib.engines.machine import Machine
from embedlib.engines.make import make_engine
from embedlib.engines.precision import NOT_COMPILED
from embedlib.engines.registry import OWN_KINDS
from embedlib.engines.select import choose_engine, plan_engine
from embedlib.errors import ConfigError, EngineError, EngineUnsupportedError, ModelUnsupportedError
from embedlib.models.compiled.cache import int8_weights
from embedlib.models.compiled.engine_folder import (
    MANIFEST_NAME,
    Manifest,
    file_hashes,
    model_fingerprint,
    open_engine_folder,
    source_on_hub,
)
from embedlib.models.hub import find_model
from embedlib.models.known_models import KnownModel, known_model
from embedlib.models.known_rerankers import template_of
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.models.spec import ModelSpec
from embedlib.models.weights.file_hashes import FileHashes
from embedlib.models.weights.fingerprint import fingerprint
from embedlib.models.weights.load import load_weights


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model ready to run."""

    spec: ModelSpec
    tokenizer: tokenizers.Tokenizer
    engine: Engine
    fingerprint: Callable[[Mapping[str, object]], str]
    """From the settings that decide the vectors; reads all weights once."""
    fingerprint_in: Callable[[PrecisionName, Mapping[str, object]], str] | None = None
    """As `fingerprint`, for another option `precision`; None: the engine is the caller's own."""
    known: KnownModel = field(default_factory=KnownModel)
    """Of a hub model, or of one that a compiled model was made from."""
    precision: str = "float32"
    """What the vectors are computed in, and which layers are not, for the fingerprint."""
    files: ModelFiles | None = None
    """None: the engine is the caller's own."""
    open_weights: Callable[[], Mapping[str, NDArray[Any]]] = dict
    """By role, those of the modules behind the pooling in float32; maps the files."""
    lower_tokens: Callable[[], Engine] | None = None
    """Makes a second engine, which gives the transformer's vector of every token; the weights are
    mapped, not read again. None: the engine is the caller's own."""


def load_model(
    name: str | PathLike[str],
    config: Config,
    *,
    with_head: bool = False,
    machine: Machine | None = None,
) -> LoadedModel:
    """Find a model, or an engine directory, read its files and build its engine.

    Args:
        name: a folder, a hub name or `package:NAME`.
        config: the options.
        with_head: load the head that makes scores: a reranker or classifier.
        machine: answers what is here, once for the whole load; None: this machine.

    Raises:
        ConfigError: `name` is none, or `max_seq_tokens` is beyond what the model allows.
        ModelError, EngineError: as `Embedder` says.
    """
    if not isinstance(name, str | PathLike) or not str(name):  # a variable that is not set
        raise ConfigError(f"model = {name!r:.60}; it must be a folder, a hub name or package:NAME")
    machine = machine or Machine()
    choose_engine(config, machine)  # nothing is fetched for an engine that is not here
    found = find_model(name, config)
    manifest = _read_compiled(found.path)
    folder = source_on_hub(found)
    hub_name = None if folder.revision is None else folder.name
    known_template = None if hub_name is None else template_of(hub_name)
    if known_template is not None and not with_head:  # its files are those of any language model
        raise ModelUnsupportedError(f"{folder.name} is a reranker; use Reranker")
    template = config.template or known_template
    files = read_model_files(
        folder.path,
        with_head=with_head,
        template=template,
        is_compiled=manifest is not None,
    )
    tokenizer = load_tokenizer(files)
    files = replace(
        files,
        spec=limit_length(files.spec, tokenizer, config),
        hub_name=hub_name,
        hub_revision=folder.revision,
    )
    plan = plan_engine(files, config, manifest, machine=machine)
    return LoadedModel(
        spec=files.spec,
        tokenizer=tokenizer,
        engine=make_engine(plan, files, config),
        fingerprint=partial(
            _fingerprint, files, folder.revision, manifest, plan.precision, file_hashes(config)
        ),
        fingerprint_in=partial(_fingerprint_in, files, folder.revision, manifest, config),
        known=KnownModel() if hub_name is None else known_model(hub_name),
        precision=str(plan.precision),
        files=files,
        open_weights=partial(load_weights, files)
        if manifest is None or manifest.precision != "int8"
        else partial(int8_weights, folder.path),
        lower_tokens=partial(_lower_tokens, plan.kind, files, config, manifest),
    )


def _lower_tokens(
    kind: EngineKind, files: ModelFiles, config: Config, manifest: Manifest | None
) -> Engine:
    """Make an engine without what follows the transformer.

    Raises:
        EngineUnsupportedError: this kind of engine cannot.
        EngineBuildError: compiling failed.
    """
    if not kind.can_per_token:
        able = " or ".join(f"engine={own.name!r}" for own in OWN_KINDS if own.can_per_token)
        raise EngineUnsupportedError(
            f"engine {kind.name} gives one vector for a text and none for its tokens; pass {able} "
            "for these"
        )
    # Planned anew, since the first engine may have compiled what this one is to run.
    plan = plan_engine(files, replace(config, engine=kind.name), manifest)
    spec = replace(files.spec, modules=(), embedding_dim=files.spec.encoder.hidden_size)
    return make_engine(plan, replace(files, spec=spec, module_dirs=()), config)


def _fingerprint(
    files: ModelFiles,
    revision: str | None,
    manifest: Manifest | None,
    precision: ChosenPrecision,
    hashes: FileHashes,
    settings: Mapping[str, object],
) -> str:
    """Return `REVISION:DIGEST`; of a compiled model DIGEST is the same however it was opened."""
    if manifest is not None:
        made = (manifest.fingerprint, str(manifest.precision), manifest.excluded)
    elif precision.name != NOT_COMPILED:
        made = (model_fingerprint(files, hashes), precision.name, precision.excluded)
    else:
        return fingerprint(files, revision, settings, hashes)
    content = json.dumps([made, dict(settings)], sort_keys=True)
    digest = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    return f"{revision or 'folder'}:{digest}"


def _fingerprint_in(
    files: ModelFiles,
    revision: str | None,
    manifest: Manifest | None,
    config: Config,
    precision: PrecisionName,
    settings: Mapping[str, object],
) -> str:
    """Return what `_fingerprint` would be with another option `precision`; compiles nothing."""
    try:
        chosen = plan_engine(files, replace(config, precision=precision), manifest).precision
    except (ConfigError, EngineError):  # not on this machine, but maybe where the rows were made
        chosen = ChosenPrecision(name=precision)
    settings = {**settings, "precision": str(chosen)}
    return _fingerprint(files, revision, manifest, chosen, file_hashes(config), settings)


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
    is_number = isinstance(max_seq_tokens, Integral)
    if not is_number or not num_special_tokens < max_seq_tokens <= limit:
        raise ConfigError(
            f"max_seq_length = {max_seq_tokens!r}; this model allows {num_special_tokens + 1} to "
            f"{limit}"
        )
