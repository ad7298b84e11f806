"""Chooses the precision of a model, and finds or compiles its weights.

`auto` takes the fastest precision with a stored fidelity report that passes the gate and was made
on the same engine and on hardware that rounds alike. It skips a precision that was never measured.
The last precision of an engine needs no report.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from embedlib.config import Config
from embedlib.engines.kind import ChosenPrecision, EngineKind, EnginePlan
from embedlib.errors import ConfigError, EngineUnavailableError
from embedlib.models.compiled.engine_folder import CompiledPrecision, Manifest
from embedlib.models.compiled.fidelity_report import (
    MIN_TEXTS,
    FidelityReport,
    Gate,
    template_facts,
)
from embedlib.models.compiled.pooled_rows import POOLED_ROWS
from embedlib.models.reading.files import ModelFiles

if TYPE_CHECKING:
    from embedlib.models.compiled.cache import Compiled

REFERENCE: Final = "float32"
"""The precision that others are compared with: what the model's own files say."""


class NeedsReportError(EngineUnavailableError):
    """Of what `auto` may take, only precisions that need a report fit into memory.

    For `select.find_plan` alone: users get an EngineUnavailableError.
    """

    def __init__(self, message: str, plan: EnginePlan) -> None:
        """Say what does not fit.

        Args:
            message: as of an EngineUnavailableError.
            plan: with the precision that needs no report.
        """
        super().__init__(message)
        self.plan = plan


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
    tried: Sequence[str] = (),
) -> ChosenPrecision:
    """Return the precision to compute a model in; compiles nothing.

    Args:
        kind: the engine.
        hardware: its hardware, as in `EngineChoice`.
        files: the model, or an engine directory.
        config: the options, with the precision and the cache folder.
        manifest: embedlib.json of the engine directory; None: a model.
        tried: what `auto` may take, best first; empty: every precision of the engine.

    Raises:
        ConfigError: the engine does not have the precision.
    """
    check_precision(kind, config)
    compiled = [name for name in kind.precisions if name not in kind.computed_precisions]
    if manifest is not None and manifest.precision in compiled:
        return ChosenPrecision(
            name=manifest.precision, excluded=manifest.excluded, folder=files.folder
        )
    wanted = config.precision
    tried = tried or kind.precisions
    if wanted == REFERENCE or (wanted == "auto" and tuple(tried) == (REFERENCE,)):
        return ChosenPrecision(name=REFERENCE)
    versions = [
        version
        for version in known_versions(kind, hardware, files, config)
        if kind.keeps_pooled_rows or POOLED_ROWS not in version.excluded
    ]
    if wanted == "auto":
        return _fastest_faithful(kind, hardware, files, versions, tried)
    versions = [version for version in versions if version.precision == wanted]
    # Prefer a version that is measured to be faithful, then the fewest excluded layers.
    versions.sort(key=lambda v: (bool(_doubt(v, kind, hardware, files)), len(v.excluded)))
    if not versions:
        return ChosenPrecision(name=wanted)
    return _chosen(versions[0], is_faithful=_doubt(versions[0], kind, hardware, files) is None)


def faithful_versions(
    kind: EngineKind, hardware: str, files: ModelFiles, versions: Sequence[Compiled]
) -> list[ChosenPrecision]:
    """Return the versions of a model that a report found faithful here."""
    return [
        _chosen(version, is_faithful=True)
        for version in versions
        if _doubt(version, kind, hardware, files) is None
    ]


def to_prepare(
    plan: EnginePlan,
    files: ModelFiles,
    versions: Sequence[Compiled],
    is_given_up: Callable[[str], bool],
    *,
    with_search: bool,
) -> tuple[str, ...]:
    """Return the precisions that `auto` would prefer to the planned one if they were measured.

    Such a precision was not measured here with all its layers.

    Args:
        plan: made with the precision "auto".
        files: the model.
        versions: what the cache has of the model.
        is_given_up: returns whether measuring has failed, or a search found no layers to keep.
        with_search: also return those that failed, if nobody has searched layers to keep.
    """
    kind = plan.kind
    open_ones = [
        precision
        for precision in plan.tried[: plan.tried.index(plan.precision.name)]
        if precision in kind.faster_with and not is_given_up(precision)
    ]
    folder = plan.precision.folder
    is_packed = folder is not None and not folder.is_dir()
    searched = next((name for name in kind.searched_precisions if name in open_ones), None)
    left = []
    for precision in open_ones:
        is_refined = kind.coarser_forms.get(precision) == plan.precision.name
        if is_refined and is_packed:
            continue  # who made the pack has measured
        measured = [
            version
            for version in versions
            if version.precision == precision
            and version.report is not None
            and _other_use(version.report, kind, plan.hardware, files) is None
        ]
        is_searched = any(version.excluded for version in measured)
        may_search = with_search and precision == searched and not is_refined
        if all(version.excluded for version in measured) or (may_search and not is_searched):
            left.append(precision)
    return tuple(left)


def with_weights(plan: EnginePlan, files: ModelFiles, config: Config) -> EnginePlan:
    """Return a plan with the engine directory of its precision; compiles it if there is none.

    A precision that is computed from the model's own files needs none.

    Raises:
        EngineUnavailableError: a package that compiling needs is missing.
        EngineBuildError: it cannot be written.
    """
    chosen = plan.precision
    if chosen.folder is not None or chosen.name in plan.kind.computed_precisions:
        return plan
    # A late import: most starts compile nothing.
    from embedlib.models.compiled.compile import compile_model

    logging.getLogger(__name__).info(
        "compiling %s to %s; later starts find it in %s",
        files.folder,
        chosen.name,
        config.engine_cache_path,
    )
    folder = compile_model(files, cast(CompiledPrecision, chosen.name), chosen.excluded, config)
    return replace(plan, precision=replace(chosen, folder=folder))


def _fastest_faithful(
    kind: EngineKind,
    hardware: str,
    files: ModelFiles,
    versions: list[Compiled],
    tried: Sequence[str],
) -> ChosenPrecision:
    *lower, default = tried
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
            return _chosen(fastest, is_faithful=True)
    if default in kind.computed_precisions:
        return ChosenPrecision(name=default)
    plain = [v for v in versions if v.precision == default and not v.excluded]
    return _chosen(plain[0], is_faithful=False) if plain else ChosenPrecision(name=default)


def known_versions(
    kind: EngineKind, hardware: str, files: ModelFiles, config: Config
) -> list[Compiled]:
    """Return the model's engine directories in the cache, and its measured computed precisions.

    Those of a pack are among them where a report says that they are faithful here: nothing is
    written into a pack, so others are compiled and measured in the cache. One that was measured
    here has its report there as well.
    """
    # Late imports: the modules read every kind of engine directory.
    from embedlib.models.compiled.cache import compiled_versions
    from embedlib.models.compiled.report_cache import cached_report, measured_versions

    computed = [name for name in kind.precisions[:-1] if name in kind.computed_precisions]
    known = measured_versions(files, computed, kind.name, hardware, config)
    for version in compiled_versions(files, config):
        if version.folder is not None and version.folder.is_dir():
            known.append(version)
        elif kind.reads_packs:
            report = cached_report(files, version, kind.name, hardware, config)
            if report is not None and (version.report is None or report.replaces(version.report)):
                measured = replace(version, report=report)
                if measured not in known:  # a pack has one for each kind of hardware
                    known.append(measured)
            elif _doubt(version, kind, hardware, files) is None:
                known.append(version)
    return known


def _doubt(version: Compiled, kind: EngineKind, hardware: str, files: ModelFiles) -> str | None:
    """Return why an engine directory is not known to be faithful here; None if it is."""
    report = version.report
    if report is None:
        return "it was not measured"
    other = _other_use(report, kind, hardware, files)
    if other is not None:
        return other
    return None if report.passes(Gate()) else _figures(version)


def describe_missed(plan: EnginePlan, files: ModelFiles, config: Config) -> str:
    """Return which precisions were measured on the hardware of a plan and miss the gate, or ""."""
    gate = Gate()
    missed = [
        f"{version.precision} {_figures(version)}"
        for version in known_versions(plan.kind, plan.hardware, files, config)
        if version.report is not None
        and _other_use(version.report, plan.kind, plan.hardware, files) is None
        and not version.report.passes(gate)
    ]
    if not missed:
        return ""
    what = f"mean cosine {gate.mean}, p1 {gate.p1}"
    return f"measured, and short of the gate ({what}): {'; '.join(missed)}"


def _other_use(
    report: FidelityReport, kind: EngineKind, hardware: str, files: ModelFiles
) -> str | None:
    """Return why a report says nothing of this model, engine and hardware; None: it does."""
    if report.template != template_facts(files.spec):
        return "it was measured with another template, or its vectors were and not its scores"
    if (report.engine, report.hardware) != (kind.name, hardware):
        return f"it was measured on {report.engine}, {report.hardware}"
    if not decides(kind, report.reference):
        return f"it was compared with {report.reference}"
    # What fails on shorter texts is not tried on longer ones.
    if report.max_seq_tokens < files.spec.max_seq_tokens and report.passes(Gate()):
        return f"it was measured on texts truncated to {report.max_seq_tokens} tokens"
    if report.num_texts < MIN_TEXTS:
        return f"it was measured on {report.num_texts} texts"
    return None


def decides(kind: EngineKind, reference: str) -> bool:
    """Return whether `auto` goes by what was compared with a precision on an engine."""
    return reference in (REFERENCE, kind.precisions[-1])


def _figures(version: Compiled) -> str:
    report = version.report
    assert report is not None, (
        "a version without a report has no figures; this is a bug in embedlib"
    )
    return f"mean cosine {report.mean:.5f}, p1 {report.p1:.5f} on {report.num_texts} texts"


def _chosen(version: Compiled, *, is_faithful: bool) -> ChosenPrecision:
    report = version.report
    return ChosenPrecision(
        name=version.precision,
        excluded=tuple(version.excluded),
        folder=version.folder,
        faithful_to=report.reference if report is not None and is_faithful else None,
    )
