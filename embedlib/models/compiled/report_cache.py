"""The cache of fidelity reports of precisions that are computed from a model's own files.

A precision with an engine directory has its report in there; no report is written into a pack.
Others are in `fidelity/KEY/NAME/fidelity.json` of the cache: KEY tells models apart without reading
their weights, NAME stands for what a report is valid for. A pack brings some, by their NAME.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Final

from embedlib.config import Config
from embedlib.errors import OTHER_CACHE, EngineBuildError
from embedlib.models.compiled.cache import Compiled
from embedlib.models.compiled.engine_folder import FORMAT_VERSION, file_hashes, model_fingerprint
from embedlib.models.compiled.fidelity_report import (
    REPORT_NAME,
    FidelityReport,
    read_report,
    template_facts,
)
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.model_file import (
    file_bytes,
    list_directories,
    list_files,
    read_file,
)
from embedlib.models.reading.pack_file import REPORTS_PLACE
from embedlib.models.weights.weight_files import weights_digest
from embedlib.version import __version__

SMALL_BYTES: Final = 1 << 20
"""Settings are smaller; a tokenizer's vocabulary of tens of megabytes is told apart by its size."""
UNUSED_SECONDS: Final = 30 * 24 * 3600
"""What a search has measured is removed if it has not gone on for so long."""
_GIVEN_UP: Final = ".txt"
"""Suffix of the file with the reason why a precision is not measured any more."""


def report_place(files: ModelFiles, report: FidelityReport, config: Config) -> Path:
    """Return the folder for a report; makes it.

    Args:
        files: the model.
        report: what was measured of it.
        config: says where the cache is.

    Raises:
        EngineBuildError: it cannot be made.
    """
    facts = (report.fingerprint, report.precision, report.engine, report.hardware)
    place = model_place(files, config) / _name(files, *facts)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EngineBuildError(f"cannot make {place}: {error.strerror}; {OTHER_CACHE}") from error
    return place


def measured_versions(
    files: ModelFiles, precisions: Sequence[str], engine: str, hardware: str, config: Config
) -> list[Compiled]:
    """Return those of the precisions that have a report, each with it.

    Args:
        files: the model.
        precisions: computed from its own files.
        engine: that computes them.
        hardware: as in `EngineChoice`.
        config: says where the cache is.
    """
    found = []
    for precision in precisions:
        version = Compiled(folder=None, precision=precision, excluded=(), report=None)
        report = cached_report(files, version, engine, hardware, config)
        if report is not None:
            found.append(replace(version, report=report))
    return found


def cached_report(
    files: ModelFiles, version: Compiled, engine: str, hardware: str, config: Config
) -> FidelityReport | None:
    """Return the report of a precision that is not in its engine directory; None: none.

    It is in the cache, or in the model's pack: one that was made since of the pack it measured.
    Weights are hashed only if there may be one.

    Args:
        files: the model.
        version: the precision, of the model's own files or of an engine directory inside a pack.
        engine: that computes it.
        hardware: as in `EngineChoice`.
        config: says where the cache is.
    """
    packed = files.folder / REPORTS_PLACE
    cached = model_place(files, config)
    pattern = f"{version.precision}-*/{REPORT_NAME}"
    if not (_has(cached, pattern) or list_directories(packed)):
        return None
    digest = model_fingerprint(files, file_hashes(config))
    name = _name(files, digest, version.precision, engine, hardware)
    made = (digest, version.precision, version.excluded)
    for report in map(read_report, (cached / name, packed / name)):
        if report and (report.fingerprint, report.precision, report.excluded) == made:
            return report
    return None


def stored_reports(files: ModelFiles, config: Config) -> dict[str, Path]:
    """Return the reports that the cache has of a model, and its folder: by name, the file."""
    places = (files.folder / REPORTS_PLACE, model_place(files, config))
    folders = [folder for place in places for folder in list_directories(place)]
    reports = {folder: report for folder in folders if (report := read_report(folder)) is not None}
    if not reports:
        return {}
    digest = model_fingerprint(files, file_hashes(config))
    found = {}
    for folder, report in reports.items():
        facts = (report.precision, report.engine, report.hardware)
        if folder.name == _name(files, digest, *facts):
            found[folder.name] = folder / REPORT_NAME
    return found


def give_up(
    files: ModelFiles, precision: str, engine: str, hardware: str, config: Config, reason: str
) -> None:
    """Remember that a precision cannot pass the gate, so that no load measures it again.

    Raises:
        EngineBuildError: it cannot be written.
    """
    place = search_place(files, precision, engine, hardware, config).with_suffix(_GIVEN_UP)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(reason + "\n", encoding="utf-8")
    except OSError as error:
        raise EngineBuildError(f"cannot write {place}: {error.strerror}; {OTHER_CACHE}") from error


def has_given_up(
    files: ModelFiles, precision: str, engine: str, hardware: str, config: Config
) -> bool:
    """Return whether this version of embedlib has found that a precision cannot pass.

    Weights are hashed only where a model of the same files and sizes was given up.
    """
    name = _search_name(files, precision, engine, hardware)
    if not _has(model_place(files, config), f"{name}-*{_GIVEN_UP}"):
        return False
    place = search_place(files, precision, engine, hardware, config)
    return place.with_suffix(_GIVEN_UP).is_file()


def search_place(
    files: ModelFiles, precision: str, engine: str, hardware: str, config: Config
) -> Path:
    """Return the folder for what a search for layers to keep has measured so far."""
    # Fine-tunes of one model may share all JSON files and sizes.
    weights = _digest(weights_digest(files, file_hashes(config)))
    name = _search_name(files, precision, engine, hardware)
    return model_place(files, config) / f"{name}-{weights}"


def _search_name(files: ModelFiles, precision: str, engine: str, hardware: str) -> str:
    measured = [engine, hardware, files.spec.max_seq_tokens, template_facts(files.spec)]
    return f"search-{precision}-{_digest([__version__, FORMAT_VERSION, *measured])}"


def remove_old_searches(place: Path) -> None:
    """Remove what searches for other weights of a model have left, where none went on for long."""
    oldest = time() - UNUSED_SECONDS
    for other in list_directories(place.parent):
        is_search = other.name.startswith("search-") and other != place
        with suppress(OSError):
            if is_search and other.stat().st_mtime < oldest:
                shutil.rmtree(other)


def waited_place(files: ModelFiles, engine: str, hardware: str, config: Config) -> Path:
    """Return the file that says that a load has waited in vain for a model to be measured."""
    return model_place(files, config) / f"waited-{_digest([__version__, engine, hardware])}"


def model_place(files: ModelFiles, config: Config) -> Path:
    """Return the folder of the cache with the reports of a model; reads no weights."""
    facts: list[object] = []
    for path in sorted(path for folder in files.directories for path in list_files(folder)):
        num_bytes = file_bytes(path)
        if path.suffix == ".json" and (num_bytes or 0) <= SMALL_BYTES:
            content = hashlib.sha256(read_file(path, files.folder)).hexdigest()
            facts.append([path.relative_to(files.folder).as_posix(), content])
        elif num_bytes is not None:
            facts.append([path.relative_to(files.folder).as_posix(), num_bytes])
    return config.engine_cache_path / "fidelity" / _digest(facts)


def _has(place: Path, pattern: str) -> bool:
    """Return whether a folder of the cache has something like a pattern.

    False also if it may not be read, as one of another user in a cache that several share.
    """
    try:
        return any(place.glob(pattern))
    except OSError:
        return False


def _name(files: ModelFiles, fingerprint: str, precision: str, engine: str, hardware: str) -> str:
    facts = [fingerprint, precision, engine, hardware, template_facts(files.spec)]
    return f"{precision}-{_digest(facts)}"


def _digest(facts: object) -> str:
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()
