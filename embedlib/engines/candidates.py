"""Which engines the options and the machine leave to choose from."""

from __future__ import annotations

import logging

from embedlib.config import Config
from embedlib.engines.kind import EngineChoice, EngineKind
from embedlib.engines.machine import Machine, package_of
from embedlib.engines.precision import check_precision
from embedlib.engines.registry import OWN_KINDS, find_devices, find_kind
from embedlib.errors import ConfigError, EngineUnavailableError
from embedlib.models.compiled.engine_folder import Manifest
from embedlib.models.compiled.pooled_rows import POOLED_ROWS
from embedlib.models.reading.files import ModelFiles

Candidate = tuple[EngineKind, EngineChoice]


def find_candidates(
    config: Config, machine: Machine, manifest: Manifest | None = None
) -> list[Candidate]:
    """Return the engines that these options allow and that can run here; at least one.

    Args:
        config: the options.
        machine: what the machine has.
        manifest: embedlib.json of an engine directory; None: a model.

    Raises:
        ConfigError: there is no such engine, or it lacks the precision of the options.
        EngineUnavailableError: none can run here.
    """
    what = f"engine = {config.engine!r}"
    kinds = _wanted_kinds(config, machine)
    if manifest is not None and not is_model(manifest):
        kinds = [kind for kind in kinds if manifest.precision in kind.precisions]
        what = f"a model compiled to {manifest.precision}"
    found = [(kind, find_devices(kind, config, machine)) for kind in kinds]
    usable = [(kind, choice) for kind, choice in found if choice.is_available]
    if usable:
        for _, choice in found[: found.index(usable[0])]:
            log_skipped(choice.name, choice.reason)
        return usable
    reasons = "; ".join(f"{choice.name}: {choice.reason}" for _, choice in found)
    if config.precision != "auto":
        what += f", precision = {config.precision!r}"
    if config.devices:
        what += f", device = {','.join(config.devices)!r}"
    raise EngineUnavailableError(f"{what} cannot be used here: {reasons}")


def _wanted_kinds(config: Config, machine: Machine) -> list[EngineKind]:
    """Return the rows that the options `engine` and `precision` allow."""
    if config.engine != "auto":
        kind = _named(config, machine)
        check_precision(kind, config)
        return [kind]
    logger = logging.getLogger(__name__)
    # Looking for them reads the metadata of every installed package, at each load of a model.
    for point in machine.plugins if logger.isEnabledFor(logging.INFO) else ():
        logger.info(
            "engine %s of the package %s is used only where it is named: engine = %r",
            point.name,
            package_of(point),
            point.name,
        )
    return [kind for kind in OWN_KINDS if config.precision in ("auto", *kind.precisions)]


def _named(config: Config, machine: Machine) -> EngineKind:
    try:
        return find_kind(config.engine, machine)
    except EngineUnavailableError as error:
        raise EngineUnavailableError(
            f"engine = {config.engine!r} cannot be used here: {error}"
        ) from error


def check_compiled(files: ModelFiles, config: Config, manifest: Manifest, machine: Machine) -> None:
    """Check that no option contradicts an engine directory.

    Raises:
        ConfigError: one does.
        EngineUnavailableError: the engine of the options is of a package that cannot be used.
    """
    if is_model(manifest):
        return
    if POOLED_ROWS in manifest.excluded:
        raise ConfigError(
            f"{files.folder} was compiled with {POOLED_ROWS}, which take the model's own weights "
            "as well; give the model it was made from"
        )
    if config.precision not in ("auto", manifest.precision):
        raise ConfigError(
            f"precision = {config.precision!r}: {files.folder} was compiled to "
            f"{manifest.precision}; give the model it was made from, or leave precision out"
        )
    if config.engine == "auto":
        return
    if manifest.precision not in _named(config, machine).precisions:
        raise ConfigError(
            f"engine = {config.engine!r} cannot run {files.folder}, which was compiled to "
            f"{manifest.precision}; give the model it was made from, or leave engine out"
        )


def is_model(manifest: Manifest) -> bool:
    """Whether an engine directory is an ordinary model folder, with its weights in bfloat16."""
    return manifest.precision == "bf16"


def log_skipped(name: str, reason: object) -> None:
    """Say at INFO why an engine is not used."""
    logging.getLogger(__name__).info("engine %s is not used: %s", name, reason)
