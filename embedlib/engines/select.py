"""Chooses the engine of a model, its devices and its precision."""

from __future__ import annotations

import logging
from dataclasses import replace

from embedlib.config import Config
from embedlib.engines.candidates import check_compiled, find_candidates, log_skipped
from embedlib.engines.kind import ChosenPrecision, EngineChoice, EngineKind, EnginePlan
from embedlib.engines.machine import Machine
from embedlib.engines.precision import (
    REFERENCE,
    NeedsReportError,
    check_precision,
    choose_precision,
)
from embedlib.engines.profile import read_profile
from embedlib.engines.static.kind import KIND as STATIC
from embedlib.engines.worthwhile import worthwhile
from embedlib.errors import (
    ConfigError,
    EngineError,
    EngineUnavailableError,
    EngineUnsupportedError,
)
from embedlib.models.compiled.engine_folder import Manifest
from embedlib.models.reading.files import ModelFiles


def choose_engine(config: Config, machine: Machine) -> EngineChoice:
    """Return the engine that these options choose before the model is known.

    Args:
        config: the options.
        machine: what the machine has.

    Raises:
        ConfigError: there is no such engine, or it lacks the precision of the options.
        EngineUnavailableError: no engine that the options allow can run here.
    """
    return find_candidates(config, machine)[0][1]


def plan_engine(
    files: ModelFiles,
    config: Config,
    manifest: Manifest | None = None,
    *,
    machine: Machine | None = None,
) -> EnginePlan:
    """Return the engine, devices and precision for a model.

    With engine = "auto" it skips engines that cannot run this model.

    Args:
        files: the model, or an engine directory.
        config: the options.
        manifest: embedlib.json of the engine directory; None: a model.
        machine: what the machine has; None: this machine.

    Raises:
        ConfigError: there is no such engine, or it lacks the precision of the options.
        EngineUnavailableError: no engine for the model can run here.
        EngineUnsupportedError: the engine of the options cannot run this model.
    """
    try:
        return find_plan(files, config, manifest, machine or Machine())
    except NeedsReportError as error:
        raise EngineUnavailableError(str(error)) from error


def find_plan(
    files: ModelFiles,
    config: Config,
    manifest: Manifest | None,
    machine: Machine,
) -> EnginePlan:
    """Return what `plan_engine` does.

    Raises:
        NeedsReportError: an engine can run the model once a precision was measured.
        what `plan_engine` raises.
    """
    if files.spec.encoder.is_table:
        return _plan_static(files, config, machine)
    if manifest is not None:
        check_compiled(files, config, manifest, machine)
    candidates = find_candidates(config, machine, manifest)
    for kind, choice in candidates:
        try:
            check_model(kind, files, config)
            tried = _tried(kind, choice, files, config) if config.precision == "auto" else ()
            precision = choose_precision(kind, choice.hardware, files, config, manifest, tried)
            plan = _checked(plan_for(kind, choice, precision, tried), files, config)
            plan = _with_profile(plan, files, config, machine)
        except EngineError as error:
            if choice is candidates[-1][1]:
                raise
            log_skipped(kind.name, error)
        else:
            return plan
    raise AssertionError("the last candidate returns or raises")


def check_room(files: ModelFiles, config: Config, machine: Machine) -> None:
    """Check that some engine has room for a model in some precision; reads no weights.

    What passes may still be refused by `find_plan`, which knows what was measured.

    Args:
        files: a transformer, no engine directory.
        config: the options.
        machine: what the machine has.

    Raises:
        what `find_plan` raises.
    """
    refusal = None
    for kind, choice in find_candidates(config, machine):
        refusal = _refusal(kind, choice, files, config)
        if refusal is None:
            return
    assert refusal is not None, "there is at least one candidate"
    raise refusal


def _refusal(
    kind: EngineKind, choice: EngineChoice, files: ModelFiles, config: Config
) -> EngineError | None:
    """Return why an engine cannot run a model in any precision; None: it can in one."""
    try:
        check_model(kind, files, config)
    except EngineError as error:
        return error
    refusal = None  # where nothing fits, as a load does: of the last one, which needs no report
    names = kind.precisions if config.precision == "auto" else (config.precision,)
    for name in (REFERENCE,) if files.spec.is_splade else names:
        try:
            _checked(plan_for(kind, choice, ChosenPrecision(name=name)), files, config)
        except EngineError as error:
            refusal = error
        else:
            return None
    return refusal


def check_model(kind: EngineKind, files: ModelFiles, config: Config) -> None:
    """Check that an engine, in the precision of the options, has what a model needs.

    Raises:
        EngineUnsupportedError: it has no such model.
        ConfigError: a sparse model is wanted in another precision than its own.
    """
    if files.spec.late_interaction is not None and not kind.can_per_token:
        raise EngineUnsupportedError(
            f"engine {kind.name} cannot run {files.folder}: it has no per-token vectors, which a "
            "late-interaction model consists of; leave engine out"
        )
    kind.check(files.spec)
    if not files.spec.is_splade:
        return
    if not kind.can_splade:
        raise EngineUnsupportedError(
            f"engine {kind.name} has no sparse models; leave engine and device out"
        )
    if config.precision not in ("auto", REFERENCE):
        raise ConfigError(
            f"precision = {config.precision!r}: a sparse model is computed in {REFERENCE}; leave "
            "precision out"
        )


def _plan_static(files: ModelFiles, config: Config, machine: Machine) -> EnginePlan:
    """Return the plan of a static model; it needs no engine of transformers."""
    if config.engine != "auto":
        raise ConfigError(
            f"engine = {config.engine!r} runs transformers, and {files.folder} is a table of token "
            "vectors, which needs none; leave engine out"
        )
    check_precision(STATIC, config)
    return plan_for(STATIC, STATIC.find(config, machine), ChosenPrecision(name="float32"))


def table_plan() -> EnginePlan:
    """Return the plan of a table that belongs to a model, whatever the options of that."""
    return EnginePlan(
        kind=STATIC,
        devices=("cpu",),
        hardware="",
        precision=ChosenPrecision(name=REFERENCE),
    )


def plan_again(plan: EnginePlan, files: ModelFiles, config: Config, machine: Machine) -> EnginePlan:
    """Return a plan for a second engine in the same precision, with the memory of now.

    Args:
        plan: of the first engine.
        files: the model.
        config: the options.
        machine: asked again for its memory.

    Raises:
        EngineUnavailableError: the engine cannot run here any more, or lacks the memory.
    """
    choice = plan.kind.find(config, machine)
    return _checked(plan_for(plan.kind, choice, plan.precision, plan.tried), files, config)


def _checked(plan: EnginePlan, files: ModelFiles, config: Config) -> EnginePlan:
    """Return a plan with what the model needs.

    Raises:
        EngineUnavailableError: a device lacks it.
    """
    if plan.kind.check_memory is None:
        return plan
    try:
        return replace(plan, needs=plan.kind.check_memory(plan, files, config))
    except EngineUnavailableError as error:
        if plan.tried[1:] and plan.precision.name == plan.tried[-1]:
            raise NeedsReportError(str(error), plan) from error
        raise


def _with_profile(
    plan: EnginePlan, files: ModelFiles, config: Config, machine: Machine
) -> EnginePlan:
    """Return a plan with how to compute: what `embedlib tune` has measured, or the rule."""
    kind = plan.kind
    if kind.profile_key is None or kind.choose_profile is None:
        return plan
    found = read_profile(kind.profile_key(plan, files, config, machine), config)
    profile = kind.choose_profile(plan, files, config, found)
    if found is not None and not profile.is_tuned:
        logging.getLogger(__name__).warning(
            "the tuned profile is not used: its batches or lanes need more memory"
        )
    logging.getLogger(__name__).info("engine %s, profile %s", kind.name, profile)
    return replace(plan, profile=profile)


def _tried(
    kind: EngineKind, choice: EngineChoice, files: ModelFiles, config: Config
) -> tuple[str, ...]:
    """Return what `auto` may take on an engine, best first; says why not the others."""

    def fits(precision: str) -> bool:
        plan = plan_for(kind, choice, ChosenPrecision(name=precision))
        try:
            _checked(plan, files, config)
        except EngineUnavailableError:
            return False
        return True

    if files.spec.is_splade:
        return (REFERENCE,)
    tried = worthwhile(kind, choice.cpu_features, fits)
    for precision in kind.precisions:
        if precision not in tried:
            logging.getLogger(__name__).info(
                "precision %s of engine %s is not taken automatically: on this machine it is not "
                "faster than %s, or does not fit into memory",
                precision,
                kind.name,
                kind.precisions[-1],
            )
    return tried


def plan_for(
    kind: EngineKind,
    choice: EngineChoice,
    precision: ChosenPrecision,
    tried: tuple[str, ...] = (),
) -> EnginePlan:
    """Return the plan of an engine and its devices in a precision; checks nothing."""
    return EnginePlan(
        kind=kind,
        devices=choice.devices,
        hardware=choice.hardware,
        precision=precision,
        gpus=choice.gpus,
        tried=tried,
        version=choice.version,
        memory=choice.memory,
        cpu_features=choice.cpu_features,
        warning=choice.warning,
    )
