"""Chooses the precision of a model, and finds or compiles its weights.

`auto` takes the fastest precision with a stored fidelity report that passes the gate and was made
on the same engine and on hardware that rounds alike. It skips a precision that was never measured.
The last precision of an engine needs no report.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from embedlib.config import Config
from embedlib.engines.kind import ChosenPrecision, EngineKind
from embedlib.errors import ConfigError
from embedlib.models.compiled.engine_folder import CompiledPrecision, Manifest
from embedlib.models.compiled.fidelity_report import MIN_TEXTS, Gate, template_facts
from embedlib.models.compiled.pooled_rows import POOLED_ROWS
from embedlib.models.reading.files import ModelFiles

if TYPE_CHECKING:
    from embedlib.models.compiled.cache import Compiled

ListCompiled: TypeAlias = "Callable[[ModelFiles, Config], list[Compiled]]"

REFERENCE: Final = "float32"
"""The precision that others are compared with: what the model's own files say."""


def check_precision(kind: EngineKind, config: Config) -> None:
    """Check that an engine has the precision of the options.

    Raises:
        ConfigError: it has only others.
    """
    allowed = ("auto", *kind.precisions)
    if config.precision not in allowed:
        raise ConfigError(
            f"precision = {config.precision!r}: the engine {kind.name} has {', '.join(allowed)}"
        )


def choose_precision(
    kind: EngineKind,
    hardware: str,
    files: ModelFiles,
    config: Config,
    manifest: Manifest | None = None,
    list_compiled: ListCompiled | None = None,
) -> ChosenPrecision:
    """Return the precision to compute a model in; compiles nothing.

    Args:
        kind: the engine.
        hardware: its hardware, as in `EngineChoice`.
        files: the model, or an engine directory.
        config: the options, with the precision and the cache folder.
        manifest: embedlib.json of the engine directory; None: a model.
        list_compiled: returns the engine directories of a model, and its own files in the other
            computed precisions that were measured; None: reads the cache.

    Raises:
        ConfigError: the engine does not have the precision.
    """
    check_precision(kind, config)
    is_model = manifest is None or manifest.precision in kind.computed_precisions
    if manifest is not None and not is_model and manifest.precision in kind.precisions:
        return ChosenPrecision(
            name=manifest.precision, excluded=manifest.excluded, folder=files.folder
        )
    wanted = config.precision
    if wanted in kind.computed_precisions:
        return ChosenPrecision(name=wanted)
    if list_compiled is None:
        list_compiled = partial(_versions, kind, hardware)
    versions = _usable(kind, list_compiled(files, config))
    if wanted == "auto":
        return _fastest_faithful(kind, hardware, files, versions)
    versions = [version for version in versions if version.precision == wanted]
    # Prefer a version that is measured to be faithful, then the fewest excluded layers.
    versions.sort(key=lambda v: (bool(_doubt(v, kind, hardware, files)), len(v.excluded)))
    return _chosen(versions[0]) if versions else ChosenPrecision(name=wanted)


def compiled_weights(chosen: ChosenPrecision, files: ModelFiles, config: Config) -> Path:
    """Return the engine directory of a chosen precision; compiles it if there is none.

    Raises:
        EngineUnavailableError: a package that compiling needs is missing.
        EngineBuildError: it cannot be written.
    """
    if chosen.folder is not None:
        return chosen.folder
    # A late import: most starts compile nothing.
    from embedlib.models.compiled.compile import compile_model

    logging.getLogger(__name__).info(
        "compiling %s to %s; later starts find it in %s",
        files.folder,
        chosen.name,
        config.engine_cache_path,
    )
    return compile_model(files, cast(CompiledPrecision, chosen.name), chosen.excluded, config)


def _fastest_faithful(
    kind: EngineKind, hardware: str, files: ModelFiles, versions: list[Compiled]
) -> ChosenPrecision:
    *lower, default = kind.precisions
    logger = logging.getLogger(__name__)
    for precision in lower:
        faithful = []
        for version in versions:
            if version.precision != precision:
                continue
            doubt = _doubt(version, kind, hardware, files)
            if doubt is None:
                faithful.append(version)
            else:
                what = version.folder or precision
                logger.info("%s is not used automatically: %s", what, doubt)
        if faithful:
            fastest = min(faithful, key=lambda version: len(version.excluded))
            logger.info("engine %s, precision %s: %s", kind.name, precision, _figures(fastest))
            return _chosen(fastest)
    if default in kind.computed_precisions:
        return ChosenPrecision(name=default)
    plain = [v for v in versions if v.precision == default and not v.excluded]
    return _chosen(plain[0]) if plain else ChosenPrecision(name=default)


def _usable(kind: EngineKind, versions: list[Compiled]) -> list[Compiled]:
    """Return the engine directories that an engine can run."""
    return [v for v in versions if kind.keeps_pooled_rows or POOLED_ROWS not in v.excluded]


def _versions(kind: EngineKind, hardware: str, files: ModelFiles, config: Config) -> list[Compiled]:
    # Late imports: the modules read every kind of engine directory.
    from embedlib.models.compiled.cache import compiled_versions
    from embedlib.models.compiled.report_cache import measured_versions

    computed = [name for name in kind.precisions[:-1] if name in kind.computed_precisions]
    measured = measured_versions(files, computed, kind.name, hardware, config)
    return [*measured, *compiled_versions(files, config)]


def _doubt(version: Compiled, kind: EngineKind, hardware: str, files: ModelFiles) -> str | None:
    """Return why an engine directory is not known to be faithful here; None if it is."""
    report = version.report
    if report is None:
        return "it was not measured"
    if report.template != template_facts(files.spec):
        return "it was measured with another template, or its vectors were and not its scores"
    if (report.engine, report.hardware) != (kind.name, hardware):
        return f"it was measured on {report.engine}, {report.hardware}"
    if report.reference not in (REFERENCE, kind.precisions[-1]):
        return f"it was compared with {report.reference}"
    if report.max_seq_tokens < files.spec.max_seq_tokens:
        return f"it was measured on texts truncated to {report.max_seq_tokens} tokens"
    if report.num_texts < MIN_TEXTS:
        return f"it was measured on {report.num_texts} texts"
    return None if report.passes(Gate()) else _figures(version)


def _figures(version: Compiled) -> str:
    report = version.report
    assert report is not None, (
        "a version without a report has no figures; this is a bug in embedlib"
    )
    return f"mean cosine {report.mean:.5f}, p1 {report.p1:.5f} on {report.num_texts} texts"


def _chosen(version: Compiled) -> ChosenPrecision:
    return ChosenPrecision(
        name=version.precision, excluded=tuple(version.excluded), folder=version.folder
    )
