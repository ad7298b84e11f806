"""Which precision a model is computed in, and the weights that have it.

`auto` takes the fastest precision whose stored fidelity report, made on the same engine and on
hardware that rounds alike, passes the gate; one that was never measured is not used. The last
precision of an engine needs no report.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

from embedlib.config import Config
from embedlib.errors import ConfigError
from embedlib.models.compiled.engine_folder import Manifest, Precision
from embedlib.models.compiled.fidelity_report import MIN_TEXTS, Gate, template_facts
from embedlib.models.compiled.pooled_rows import POOLED_ROWS
from embedlib.models.reading.files import ModelFiles

if TYPE_CHECKING:
    from embedlib.models.compiled.cache import Compiled

ENGINE_PRECISIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "tensorrt_llm": ("fp8", "bf16"),
        "cuda": ("fp8", "bf16"),
        "openvino": ("int8", "float32"),
    }
)
"""By engine, the fastest first."""

POOLED_ROWS_ENGINE: Final = "cuda"
"""The only one that keeps `engines.pooled_rows` out of FP8."""

NOT_COMPILED: Final = "float32"
"""Computed from the model's own files."""


@dataclass(frozen=True, kw_only=True)
class ChosenPrecision:
    """A precision and where its weights are."""

    name: str
    excluded: tuple[str, ...] = ()
    """Roles of linear layers in a higher precision, and `engines.pooled_rows`."""
    folder: Path | None = None
    """The engine directory; None: still to be compiled, or the model's own files."""

    def __str__(self) -> str:
        """Return what decides the vectors, for a fingerprint."""
        return f"{self.name} without {', '.join(self.excluded)}" if self.excluded else self.name


def check_precision(engine: str, config: Config) -> None:
    """Refuse a wanted precision that an engine does not have.

    Raises:
        ConfigError: it has others.
    """
    allowed = ("auto", *ENGINE_PRECISIONS[engine])
    if config.precision not in allowed:
        raise ConfigError(
            f"precision = {config.precision!r}: the engine {engine} has {', '.join(allowed)}"
        )


def choose_precision(
    engine: str, hardware: str, files: ModelFiles, config: Config, manifest: Manifest | None
) -> ChosenPrecision:
    """Return the precision to compute a model in; compiles nothing.

    Args:
        engine: the engine's name.
        hardware: what it computes on, as `EngineChoice.hardware` says it.
        files: the model, or an engine directory.
        config: says which precision is wanted and where compiled models are.
        manifest: of the engine directory, where it is one.

    Raises:
        ConfigError: the engine does not have the precision.
    """
    check_precision(engine, config)
    if manifest is not None and manifest.precision in ENGINE_PRECISIONS[engine]:
        return ChosenPrecision(
            name=manifest.precision, excluded=manifest.excluded, folder=files.folder
        )
    if config.precision == "auto":
        return _fastest_faithful(engine, hardware, files, config)
    wanted = config.precision
    if wanted == NOT_COMPILED:
        return ChosenPrecision(name=wanted)
    versions = [v for v in _versions(engine, files, config) if v.precision == wanted]
    # Among several, the one that was measured to be faithful.
    versions.sort(key=lambda v: (bool(_doubt(v, engine, hardware, files)), len(v.excluded)))
    return _chosen(versions[0]) if versions else ChosenPrecision(name=wanted)


def compiled_weights(chosen: ChosenPrecision, files: ModelFiles, config: Config) -> Path:
    """Return the engine directory of a chosen precision, which is made now where there is none.

    Raises:
        EngineUnavailableError: a package that compiling needs is missing.
        EngineBuildError: it cannot be written.
    """
    if chosen.folder is not None:
        return chosen.folder
    # Imported only now: most starts compile nothing.
    from embedlib.models.compiled.compile import compile_model

    logging.getLogger(__name__).info(
        "compiling %s to %s; later starts find it in %s",
        files.folder,
        chosen.name,
        config.engine_cache_path,
    )
    return compile_model(files, cast(Precision, chosen.name), chosen.excluded, config)


def _fastest_faithful(
    engine: str, hardware: str, files: ModelFiles, config: Config
) -> ChosenPrecision:
    *lower, default = ENGINE_PRECISIONS[engine]
    versions = _versions(engine, files, config)
    logger = logging.getLogger(__name__)
    for precision in lower:
        faithful = []
        for version in versions:
            if version.precision != precision:
                continue
            doubt = _doubt(version, engine, hardware, files)
            if doubt is None:
                faithful.append(version)
            else:
                logger.info("%s is not used by itself: %s", version.folder, doubt)
        if faithful:
            fastest = min(faithful, key=lambda version: len(version.excluded))
            logger.info("engine %s, precision %s: %s", engine, precision, _figures(fastest))
            return _chosen(fastest)
    if default == NOT_COMPILED:
        return ChosenPrecision(name=default)
    plain = [v for v in versions if v.precision == default and not v.excluded]
    return _chosen(plain[0]) if plain else ChosenPrecision(name=default)


def _versions(engine: str, files: ModelFiles, config: Config) -> list[Compiled]:
    """Return the compiled models that an engine can run."""
    found = _compiled(files, config)
    return [v for v in found if engine == POOLED_ROWS_ENGINE or POOLED_ROWS not in v.excluded]


def _compiled(files: ModelFiles, config: Config) -> list[Compiled]:
    # Imported only here: its module looks into every kind of compiled model.
    from embedlib.models.compiled.cache import compiled_versions

    return compiled_versions(files, config)


def _doubt(version: Compiled, engine: str, hardware: str, files: ModelFiles) -> str | None:
    """Return why a compiled model is not known to be faithful here; None: it is."""
    report = version.report
    if report is None:
        return "it was not measured"
    if report.template != template_facts(files.spec):
        return "it was measured with another template, or its vectors were and not its scores"
    if (report.engine, report.hardware) != (engine, hardware):
        return f"it was measured on {report.engine}, {report.hardware}"
    if report.reference not in (NOT_COMPILED, ENGINE_PRECISIONS[engine][-1]):
        return f"it was compared with {report.reference}"
    if report.max_seq_tokens < files.spec.max_seq_tokens:
        return f"it was measured on texts cut at {report.max_seq_tokens} tokens"
    if report.num_texts < MIN_TEXTS:
        return f"it was measured on {report.num_texts} texts"
    return None if report.passes(Gate()) else _figures(version)


def _figures(version: Compiled) -> str:
    report = version.report
    assert report is not None, "only what was measured has figures; this is a bug in embedlib"
    return f"mean cosine {report.mean:.5f}, p1 {report.p1:.5f} on {report.num_texts} texts"


def _chosen(version: Compiled) -> ChosenPrecision:
    return ChosenPrecision(
        name=version.precision, excluded=tuple(version.excluded), folder=version.folder
    )
