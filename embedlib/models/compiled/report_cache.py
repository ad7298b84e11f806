"""The cache of fidelity reports of precisions that are computed from a model's own files.

A precision with an engine directory has its report in there. Reports of the others are in
`fidelity/KEY/NAME/fidelity.json` of the cache: KEY tells models apart without reading their
weights, NAME stands for what a report is valid for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from embedlib.config import Config
from embedlib.errors import EngineBuildError
from embedlib.models.compiled.cache import Compiled
from embedlib.models.compiled.engine_folder import file_hashes, model_fingerprint
from embedlib.models.compiled.fidelity_report import (
    REPORT_NAME,
    FidelityReport,
    read_report,
    template_facts,
)
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.model_file import read_file
from embedlib.version import __version__

SMALL_BYTES: Final = 1 << 20
"""Settings are smaller; a tokenizer's vocabulary of tens of megabytes is told apart by its size."""


def report_place(files: ModelFiles, report: FidelityReport, config: Config) -> Path:
    """Return the folder for a report; makes it.

    Args:
        files: the model.
        report: what was measured of it.
        config: says where the cache is.

    Raises:
        EngineBuildError: it cannot be made.
    """
    place = _place(
        files, report.fingerprint, report.precision, report.engine, report.hardware, config
    )
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EngineBuildError(f"cannot make {place}: {error.strerror}") from error
    return place


def measured_versions(
    files: ModelFiles, precisions: Sequence[str], engine: str, hardware: str, config: Config
) -> list[Compiled]:
    """Return those of the precisions that have a report, each with it.

    The weights are hashed only if the cache has a report of a model like this one.

    Args:
        files: the model.
        precisions: computed from its own files.
        engine: that computes them.
        hardware: as in `EngineChoice`.
        config: says where the cache is.
    """
    if not precisions or not any(model_place(files, config).glob(f"*/{REPORT_NAME}")):
        return []
    digest = model_fingerprint(files, file_hashes(config))
    found = []
    for precision in precisions:
        report = read_report(_place(files, digest, precision, engine, hardware, config))
        if report is not None and (report.fingerprint, report.precision) == (digest, precision):
            found.append(Compiled(folder=None, precision=precision, excluded=(), report=report))
    return found


def give_up(
    files: ModelFiles, precision: str, engine: str, hardware: str, config: Config, reason: str
) -> None:
    """Remember that a precision cannot pass the gate, so that no load measures it again.

    Raises:
        EngineBuildError: it cannot be written.
    """
    place = _given_up_place(files, precision, engine, hardware, config)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(reason + "\n", encoding="utf-8")
    except OSError as error:
        raise EngineBuildError(f"cannot write {place}: {error.strerror}") from error


def has_given_up(
    files: ModelFiles, precision: str, engine: str, hardware: str, config: Config
) -> bool:
    """Return whether this version of embedlib has found that a precision cannot pass."""
    return _given_up_place(files, precision, engine, hardware, config).is_file()


def search_place(
    files: ModelFiles, precision: str, engine: str, hardware: str, config: Config
) -> Path:
    """Return the folder for what a search for layers to keep has measured so far."""
    facts = [__version__, engine, hardware, files.spec.max_seq_tokens, template_facts(files.spec)]
    return model_place(files, config) / f"search-{precision}-{_digest(facts)}"


def _given_up_place(
    files: ModelFiles, precision: str, engine: str, hardware: str, config: Config
) -> Path:
    return search_place(files, precision, engine, hardware, config).with_suffix(".txt")


def model_place(files: ModelFiles, config: Config) -> Path:
    """Return the folder of the cache with the reports of a model; reads no weights."""
    facts: list[object] = []
    for path in sorted(path for folder in files.directories for path in folder.glob("*")):
        if path.suffix == ".json" and path.stat().st_size <= SMALL_BYTES:
            content = hashlib.sha256(read_file(path, files.folder)).hexdigest()
            facts.append([path.relative_to(files.folder).as_posix(), content])
        elif path.is_file():
            facts.append([path.relative_to(files.folder).as_posix(), path.stat().st_size])
    return config.engine_cache_path / "fidelity" / _digest(facts)


def _place(
    files: ModelFiles, fingerprint: str, precision: str, engine: str, hardware: str, config: Config
) -> Path:
    facts = [fingerprint, precision, engine, hardware, template_facts(files.spec)]
    return model_place(files, config) / f"{precision}-{_digest(facts)}"


def _digest(facts: object) -> str:
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()
