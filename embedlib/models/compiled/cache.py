"""Finds the engine directories of a model in the cache, with their fidelity reports."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from embedlib.config import Config
from embedlib.errors import EngineBuildError
from embedlib.models.compiled.engine_folder import (
    Manifest,
    compiled_place,
    file_hashes,
    model_fingerprint,
    read_manifest,
)
from embedlib.models.compiled.fidelity_report import FidelityReport, read_reports
from embedlib.models.compiled.int8 import INT8_GROUPS
from embedlib.models.compiled.int8_file import INT8_NAME
from embedlib.models.compiled.role_file import RoleFile
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.model_file import file_bytes, list_directories, read_file
from embedlib.models.reading.pack_file import COMPILED_PLACE
from embedlib.models.reading.vocabulary_files import vocabulary_files


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """An engine directory, or a precision of the model's own files, and what was measured of it."""

    folder: Path | None
    """None: computed from the model's own files."""
    precision: str
    excluded: tuple[str, ...]
    """Linear layers that were kept in the model's precision, sorted."""
    report: FidelityReport | None
    """The stored fidelity report; None if there is none."""


def compiled_versions(files: ModelFiles, config: Config) -> list[Compiled]:
    """Return the complete engine directories of a model: in the cache, and in its pack.

    One with several reports, such as of CPUs of several kinds, is returned with each of them.
    Complete means that every file exists and has the right size. If a directory may belong to this
    model, the model's weights are read once in full to hash them; the cache keeps the hashes.

    Args:
        files: the model.
        config: says where the cache is.
    """
    manifests = {}
    for folder in [
        *sorted(compiled_place(config).glob("[!.]*")),
        *list_directories(files.folder / COMPILED_PLACE),
    ]:
        try:
            manifest = read_manifest(folder)
        except EngineBuildError:
            continue  # another format version, or damaged: it has to be compiled again
        if _may_be_made_from(manifest, files):
            manifests[folder] = manifest
    if not manifests:
        return []
    digest = model_fingerprint(files, file_hashes(config))
    return [
        version
        for folder, manifest in manifests.items()
        if manifest.fingerprint == digest
        for version in _with_reports(folder, manifest)
    ]


def int8_weights(folder: Path) -> RoleFile:
    """Return the weights of an int8 engine directory, mapped into memory.

    Raises:
        EngineBuildError: `folder` is not an int8 engine directory, or it is damaged.
        ModelWeightsError: the weights file is damaged.
    """
    manifest = read_manifest(folder)
    if manifest.precision not in INT8_GROUPS:
        raise EngineBuildError(
            f"{folder}: is an engine directory in {manifest.precision}, not int8; compile the "
            "model with --precision int8"
        )
    return RoleFile(folder / INT8_NAME)


def _with_reports(folder: Path, manifest: Manifest) -> list[Compiled]:
    """Return an engine directory with each of its reports; with None if it has none."""
    made = (manifest.fingerprint, manifest.precision, manifest.excluded)
    reports: list[FidelityReport | None] = [
        report
        for report in read_reports(folder)
        # Others were copied from another engine directory.
        if (report.fingerprint, report.precision, report.excluded) == made
    ]
    return [
        Compiled(
            folder=folder, precision=manifest.precision, excluded=manifest.excluded, report=report
        )
        for report in reports or [None]
    ]


def _may_be_made_from(manifest: Manifest, files: ModelFiles) -> bool:
    """Whether the file sizes, and the content of all but the weights, match the model's.

    Others than JSON and a vocabulary, such as a license, are copied and count for nothing: a copy
    of the model may lack them.
    """
    vocabulary = vocabulary_files(files.transformer_dir, files.folder)
    for name, digest in manifest.inputs.items():
        path = files.folder / name
        if path.suffix not in (".json", ".safetensors") and path not in vocabulary:
            continue
        if file_bytes(path) != digest.num_bytes:
            return False
        if (
            path.suffix != ".safetensors"
            and hashlib.sha256(read_file(path, files.folder)).hexdigest() != digest.sha256
        ):
            return False
    return True
