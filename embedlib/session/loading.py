"""A running model from its files: found by name, planned, and lowered to an engine."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Final

import tokenizers

from embedlib.config import Config, PrecisionName
from embedlib.engines.base import Engine
from embedlib.engines.kind import ChosenPrecision, EnginePlan
from embedlib.engines.machine import Machine
from embedlib.engines.make import make_engine
from embedlib.engines.precision import (
    REFERENCE,
    NeedsReportError,
    describe_missed,
    faithful_versions,
    known_versions,
)
from embedlib.engines.registry import OWN_KINDS, check_devices
from embedlib.engines.select import (
    check_room,
    choose_engine,
    find_plan,
    plan_again,
    plan_engine,
    table_plan,
)
from embedlib.errors import (
    ConfigError,
    EngineBuildError,
    EngineError,
    EngineUnavailableError,
    EngineUnsupportedError,
)
from embedlib.models.compiled.cache import int8_weights
from embedlib.models.compiled.engine_folder import file_hashes, model_fingerprint
from embedlib.models.compiled.int8 import INT8_GROUPS
from embedlib.models.known_models import KnownModel
from embedlib.models.opening import OpenedModel
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.models.spec import ModelSpec
from embedlib.models.weights.file_hashes import FileHashes
from embedlib.models.weights.fingerprint import fingerprint
from embedlib.models.weights.load import find_tensors, load_weights
from embedlib.models.weights.memory import float32_bytes, no_memory
from embedlib.models.weights.tensor_roles import ArraysByRole
from embedlib.session.ending import Close
from embedlib.session.late_interaction import without_choice
from embedlib.session.preparing import prepare_needed, prepare_now, start_later

LARGE_BYTES: Final = 1 << 30
"""Of weights that are not downloaded before the model was found to be supported and to fit into
memory. What is less comes in seconds, and asking before would make that longer."""


@dataclass(frozen=True, kw_only=True)
class ModelFromFiles:
    """A `RunningModel` that was loaded by name: a model folder or an engine directory."""

    opened: OpenedModel
    files: ModelFiles
    tokenizer: tokenizers.Tokenizer
    machine: Machine
    """This machine as it was before the engine was loaded, without those that could not be started;
    its answers are kept."""
    plan: EnginePlan
    engine: Engine
    hashes: FileHashes
    """Kept as long as the model: where the cache cannot be written, nothing else knows them."""

    @property
    def spec(self) -> ModelSpec:
        """What the model is, with the length limit of the options."""
        return self.files.spec

    @property
    def known(self) -> KnownModel:
        """Settings of the model that its folder does not contain."""
        return self.opened.known

    @property
    def precision(self) -> str:
        """The precision of the vectors and the layers excluded from it, for the fingerprint."""
        return str(self.plan.precision)

    @property
    def profile(self) -> str:
        """How the engine computes, for `Stats`."""
        return "" if self.plan.profile is None else str(self.plan.profile)

    def fingerprint(self, settings: Mapping[str, object]) -> str:
        """Return a string that changes whenever the vectors may change; reads all weights once."""
        return self._fingerprint_of(self._class, settings)

    def fingerprints(self, settings: Mapping[str, object]) -> tuple[str, ...]:
        """Return `fingerprint`, and others of stored vectors that may stand beside this model's.

        Those are of precisions that passed the gate, each by its own name: so vectors are stored in
        a precision that was forced before its report was made.
        """
        kind, config = self.plan.kind, self.opened.config
        versions = known_versions(kind, self.plan.hardware, self.files, config)
        alike = [
            precision
            for precision in faithful_versions(kind, self.plan.hardware, self.files, versions)
            if precision.faithful_to == self._class.name and not self._class.excluded
        ]
        found = [self._class, self.plan.precision, *alike]
        return tuple(dict.fromkeys(self._fingerprint_of(each, settings) for each in found))

    @property
    def _class(self) -> ChosenPrecision:
        """The precision that stands for all that may stand beside the planned one."""
        precision = self.plan.precision
        if precision.faithful_to is None:
            return precision
        return ChosenPrecision(name=precision.faithful_to)

    def _fingerprint_of(self, precision: ChosenPrecision, settings: Mapping[str, object]) -> str:
        settings = {"precision": str(precision), **settings}
        return model_and_settings_fingerprint(
            self.opened, self.files, precision, settings, self.hashes
        )

    def start_preparing(self) -> Close | None:
        """Start to measure faster precisions for later loads; return what ends it."""
        return start_later(self.opened, self.files, self.plan)

    def fingerprint_in(self, precision: PrecisionName, settings: Mapping[str, object]) -> str:
        """Return the fingerprint of another precision by its own name; compiles nothing."""
        config = replace(self.opened.config, precision=precision)
        try:
            plan = plan_engine(self.files, config, self.opened.manifest, machine=self.machine)
            chosen = plan.precision
        except (ConfigError, EngineError):  # the destination may be of another machine
            chosen = ChosenPrecision(name=precision)
        return self._fingerprint_of(chosen, settings)

    def open_weights(self) -> ArraysByRole:
        """Map the weights; those of the modules after the pooling are float32."""
        manifest = self.opened.manifest
        if manifest is not None and manifest.precision in INT8_GROUPS:
            return int8_weights(self.files.folder)
        return load_weights(self.files)

    def lower_tokens(self) -> Engine:
        """Make a second engine of the transformer alone; maps the weights again.

        Raises:
            EngineUnsupportedError: this kind of engine has no per-token vectors.
            EngineBuildError: compiling failed.
        """
        kind = self.plan.kind
        if not kind.can_per_token:
            able = " or ".join(f"engine={own.name!r}" for own in OWN_KINDS if own.can_per_token)
            raise EngineUnsupportedError(
                f"engine {kind.name} has no per-token vectors; pass {able}"
            )
        config = self.opened.config
        # With a copy of the machine, which has no answers yet: the first engine has taken memory.
        plan = plan_again(self.plan, self.files, config, replace(self.machine))
        spec = replace(self.spec, modules=(), embedding_dim=self.spec.encoder.hidden_size)
        return make_engine(plan, replace(self.files, spec=spec, module_dirs=()), config)

    def lower_queries(self) -> Engine:
        """Make the engine of the table that sparse queries are looked up in.

        Raises:
            ModelWeightsError: the table cannot be read.
        """
        assert self.files.queries is not None, "only a Router has a table"
        return make_engine(table_plan(), self.files.queries, self.opened.config)


def load_model(
    name: str | PathLike[str],
    config: Config,
    *,
    with_head: bool = False,
    machine: Machine | None = None,
) -> ModelFromFiles:
    """Find a model, or an engine directory, read its files and build its engine.

    Args:
        name: a folder, a pack, a hub name or `package:NAME`.
        config: the options.
        with_head: load it as a reranker or classifier, with the head that computes scores.
        machine: what the machine has, asked once for the whole load; None: this machine.

    Raises:
        ConfigError: `name` is empty or not a name, or `max_seq_tokens` is out of range.
        ModelError, EngineError: as in `Embedder`.
    """
    if not isinstance(name, str | PathLike) or not str(name):  # a variable that is not set
        raise ConfigError(f"model = {name!r:.60}; it must be a folder, a hub name or package:NAME")
    machine = machine or Machine()
    choose_engine(config, machine)  # first: an engine that cannot run needs no download
    with OpenedModel.outlined(name, config, LARGE_BYTES) as outlined:
        if outlined is not None and outlined.manifest is None:
            _check_outline(outlined, with_head, replace(machine))
    opened = OpenedModel.find(name, config)
    opened.check_bytes()
    opened, files, tokenizer = _read(opened, with_head)
    try:
        plan, engine, machine = _started(opened, files, machine)
    except MemoryError as error:
        raise no_memory(str(name), float32_bytes(files.spec)) from error
    return ModelFromFiles(
        opened=opened,
        files=files,
        tokenizer=tokenizer,
        machine=machine,
        plan=plan,
        engine=engine,
        hashes=file_hashes(config),
    )


def _check_outline(outlined: OpenedModel, with_head: bool, machine: Machine) -> None:
    """Check what can be known of a model before its weights are downloaded.

    Args:
        outlined: the model.
        with_head: as in `load_model`.
        machine: no other one keeps its answers: there may be other memory after the download.

    Raises:
        ModelError, EngineError: as in `load_model`.
    """
    outlined, files, _ = _read(outlined, with_head)
    if not files.spec.encoder.is_table:  # a table has values that are read to find it
        find_tensors(files)
        check_room(files, outlined.config, machine)


def _read(
    opened: OpenedModel, with_head: bool
) -> tuple[OpenedModel, ModelFiles, tokenizers.Tokenizer]:
    """Return the model with the options that apply to its kind, its files, and its tokenizer."""
    files = opened.read_files(with_head=with_head)
    if files.spec.late_interaction is not None:
        opened = replace(opened, config=without_choice(opened.config))
    tokenizer = load_tokenizer(files)
    return opened, opened.limit_length(files, tokenizer), tokenizer


def _started(
    opened: OpenedModel, files: ModelFiles, machine: Machine
) -> tuple[EnginePlan, Engine, Machine]:
    """Return the plan and the engine of a model, and the machine without engines that failed.

    Where the options leave the choice open, a GPU's engine that cannot be started is skipped: the
    driver lists GPUs that torch may be too new for, and who brings torch brings no compiler.

    Raises:
        EngineUnavailableError: no engine can run the model; the message says what was skipped.
        what `make_engine` raises.
    """
    config = opened.config
    while True:
        try:
            plan = prepared_plan(opened, files, machine)
        except EngineUnavailableError as error:
            skipped = [f"{name}: {why}" for name, why in machine.refused.items()]
            untold = [each for each in skipped if each not in str(error)]
            if not untold:
                raise
            raise EngineUnavailableError(f"{error}; skipped was {'; '.join(untold)}") from error
        try:
            check_devices(plan.kind, plan.devices, plan.gpus, machine)
            return plan, make_engine(plan, files, config), machine
        except (EngineUnavailableError, EngineUnsupportedError, EngineBuildError) as error:
            if config.engine != "auto" or config.devices or "cpu" in plan.kind.device_types:
                raise
            reason = str(error).removeprefix(f"engine {plan.engine}: ")
        logging.getLogger(__name__).warning("engine %s is not used: %s", plan.engine, reason)
        machine = machine.without(plan.engine, reason)


def prepared_plan(opened: OpenedModel, files: ModelFiles, machine: Machine) -> EnginePlan:
    """Return the plan of a model, after what must be measured for it or can be in seconds.

    Args:
        opened: the model.
        files: its files.
        machine: what the machine has.

    Raises:
        EngineUnavailableError: as `plan_engine`; the message says what was measured.
    """
    find = partial(find_plan, files, opened.config, opened.manifest, machine)
    try:
        plan = find()
        return find() if prepare_now(opened, files, plan) else plan
    except NeedsReportError as error:
        needed = error
    found = prepare_needed(opened, files, needed.plan)
    try:
        return find()
    except NeedsReportError as error:
        told = describe_missed(needed.plan, files, opened.config) or found
        raise EngineUnavailableError(f"{error}; {told}" if told else str(error)) from error


def model_and_settings_fingerprint(
    opened: OpenedModel,
    files: ModelFiles,
    precision: ChosenPrecision,
    settings: Mapping[str, object],
    hashes: FileHashes,
) -> str:
    """Return `REVISION:DIGEST`.

    A model in a lower precision that passed no gate and its engine directory have the same DIGEST.

    Args:
        opened: the model.
        files: its files.
        precision: the precision of its vectors.
        settings: all settings, besides the model, that the vectors depend on, as JSON values.
        hashes: the stored digests of its files.
    """
    if opened.manifest is not None:
        manifest = opened.manifest
        made = (manifest.fingerprint, str(manifest.precision), manifest.excluded)
    elif precision.name != REFERENCE:
        made = (model_fingerprint(files, hashes), precision.name, precision.excluded)
    else:
        return fingerprint(files, opened.revision, settings, hashes)
    content = json.dumps([made, dict(settings)], sort_keys=True)
    digest = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    return f"{opened.revision or 'folder'}:{digest}"
