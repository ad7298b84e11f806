"""The engine directories of a model in the cache, and what is known of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from embedlib.config import Config
from embedlib.errors import EngineBuildError
from embedlib.models.compiled.engine_folder import (
    Manifest,
    Precision,
    compiled_place,
    file_hashes,
    model_fingerprint,
    read_manifest,
)
from embedlib.models.compiled.fidelity_report import FidelityReport, read_report
from embedlib.models.compiled.int8_file import INT8_NAME, Int8Weights
from embedlib.models.reading.files import ModelFiles


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A model in another precision, on disk."""

    folder: Path
    precision: Precision
    excluded: tuple[str, ...]
    """Linear layers that were kept in the model's precision, sorted."""
    report: FidelityReport | None
    """What was measured of it; None: nothing."""


def compiled_versions(files: ModelFiles, config: Config) -> list[Compiled]:
    """Return the whole engine directories of a model in the cache, in order of their names.

    Whole: their files are there in the right sizes. The weights of the model are read once in full,
    and only if a directory may be this model's; later the cache knows their hash.

    Args:
        files: the model.
        config: says where the cache is.
    """
    manifests = {}
    for folder in sorted(compiled_place(config).glob("[!.]*")):
        try:
            manifest = read_manifest(folder)
        except EngineBuildError:
            continue  # of another version, or damaged: to be compiled again
        if _may_be_made_from(manifest, files):
            manifests[folder] = manifest
    if not manifests:
        return []
    digest = model_fingerprint(files, file_hashes(config))
    return [
        _describe(folder, manifest)
        for folder, manifest in manifests.items()
        if manifest.fingerprint == digest
    ]


def int8_weights(folder: Path) -> Int8Weights:
    """Return the weights of an engine directory of the precision int8, mapped into memory.

    Raises:
        EngineBuildError: it is none, or damaged.
        ModelWeightsError: the file of weights is damaged.
    """
    manifest = read_manifest(folder)
    if manifest.precision != "int8":
        raise EngineBuildError(
            f"{folder}: is a compiled model of the precision {manifest.precision}, not int8"
        )
    return Int8Weights(folder / INT8_NAME)


def _describe(folder: Path, manifest: Manifest) -> Compiled:
    report = read_report(folder)
    if report is not None:
        measured = (report.fingerprint, report.precision, report.excluded)
        if measured != (manifest.fingerprint, manifest.precision, manifest.excluded):
            report = None  # copied there from elsewhere
    return Compiled(
        folder=folder, precision=manifest.precision, excluded=manifest.excluded, report=report
    )


def _may_be_made_from(manifest: Manifest, files: ModelFiles) -> bool:
    """Whether sizes, and the content of small files, are those of the model."""
    for name, digest in manifest.inputs.items():
        path = files.folder / name
        if not path.is_file() or path.stat().st_size != digest.num_bytes:
            return False
        if (
            path.suffix == ".json"
            and hashlib.sha256(path.read_bytes()).hexdigest() != digest.sha256
        ):
            return False
    return True
