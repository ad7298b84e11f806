"""`pack_model`: writes all files of a model into one, a pack (`reading.pack_file`)."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from embedlib.checks import is_unicode
from embedlib.config import Config
from embedlib.errors import ConfigError, EngineBuildError, PassingBuildError
from embedlib.models.compiled.cache import Compiled, compiled_versions
from embedlib.models.compiled.compile import COPIED_PATTERNS, ReportProgress
from embedlib.models.compiled.engine_folder import MANIFEST_NAME, Manifest, verify_engine_folder
from embedlib.models.compiled.fidelity_report import (
    REPORT_NAME,
    Gate,
    is_report,
    report_paths,
)
from embedlib.models.compiled.new_folder import place_lock, sync
from embedlib.models.compiled.report_cache import stored_reports
from embedlib.models.new_file import not_written, part_of
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.model_file import (
    file_bytes,
    has_file,
    list_files,
    load_json,
    open_file,
    place_of,
)
from embedlib.models.reading.pack_file import (
    ALIGNMENT,
    COMPILED_PLACE,
    FORMAT_VERSION,
    INDEX_NAME,
    REPORTS_PLACE,
    TYPE,
    TYPE_NAME,
    is_pack,
)
from embedlib.models.weights.file_hashes import READ_BYTES, file_state
from embedlib.models.weights.load import load_weights
from embedlib.models.weights.weight_files import weight_paths
from embedlib.version import __version__

PACKED_PATTERNS: Final = (*COPIED_PATTERNS, "artifact.metadata", "README.md")
"""Files of a model besides its weights."""
PADDING: Final = 0xD935
"""The extra field that aligns an entry. Source: zipalign of Android, `kAlignmentExtraHeaderId`."""
PADDING_BYTES: Final = 6
"""Its smallest size: its number, its length, the alignment."""
LARGE_BYTES: Final = 1 << 30
"""Larger entries have sizes of 64 bits; zipfile takes these itself from nearly 2 GiB on."""
OLDEST: Final = (1980, 1, 1, 0, 0, 0)
"""The date of all entries, so that the same model makes the same bytes."""


@dataclass(frozen=True, kw_only=True)
class PackContent:
    """What goes into a pack."""

    paths: Mapping[str, Path]
    """By path in the pack, the files to read."""
    compiled: tuple[Compiled, ...] = ()
    """Engine directories of the model among them."""
    num_reports: int = 0
    """Reports among them of precisions that are computed from the model's own files."""


def find_content(files: ModelFiles, manifest: Manifest | None, config: Config) -> PackContent:
    """Return what a pack of a model holds: its files, and what was prepared of it in the cache.

    Of what the cache has, only precisions that passed the fidelity gate are taken, since only these
    are chosen by themselves.

    Args:
        files: the model, or an engine directory.
        manifest: embedlib.json of an engine directory; None: a model.
        config: says where the cache is.

    Raises:
        ModelWeightsError: the weights do not fit the model.
        EngineBuildError: an engine directory is damaged.
    """
    if manifest is not None:
        verify_engine_folder(files.folder)
        paths = {name: files.folder / name for name in (*manifest.outputs, MANIFEST_NAME)}
        paths |= {path.name: path for path in report_paths(files.folder)}
        return PackContent(paths=paths)
    load_weights(files)  # what does not load is not packed
    found = {
        path
        for directory in _directories(files)
        for pattern in PACKED_PATTERNS
        for path in list_files(directory, pattern)
        if path.name != MANIFEST_NAME and not is_report(path.name) and file_bytes(path) is not None
    }
    found.update(weight_paths(files))
    paths = {path.relative_to(files.folder).as_posix(): path for path in found}
    compiled = []
    for version in compiled_versions(files, config):
        if version.folder is None or version.report is None or not version.report.passes(Gate()):
            continue
        place = f"{COMPILED_PLACE}/{version.folder.name}"
        # With another report, or in the cache and in the pack that is packed again.
        if f"{place}/{MANIFEST_NAME}" in paths:
            continue
        reports = (path.name for path in report_paths(version.folder))
        names = (*verify_engine_folder(version.folder).outputs, MANIFEST_NAME, *reports)
        paths |= {f"{place}/{name}": version.folder / name for name in names}
        compiled.append(version)
    stored = stored_reports(files, config)
    paths |= {f"{REPORTS_PLACE}/{name}/{REPORT_NAME}": path for name, path in stored.items()}
    return PackContent(paths=paths, compiled=tuple(compiled), num_reports=len(stored))


def _directories(files: ModelFiles) -> set[Path]:
    """Return all directories of a model: also those of modules that have settings alone."""
    found = set(files.directories)
    if has_file(files.folder / "modules.json", files.folder):
        for entry in load_json(files.folder / "modules.json", files.folder):
            found.add(files.folder / (entry.get("path") or ""))
    return found


def pack_model(
    files: ModelFiles,
    content: PackContent,
    out: Path,
    report: ReportProgress = lambda num_done, num_bytes: None,
) -> str:
    """Write a pack, atomically, and return the digest that stands for its content.

    Args:
        files: the model, or an engine directory.
        content: what `find_content` has returned.
        out: the file to write; a pack that is there is replaced.
        report: called with the number of bytes written so far, and the total.

    Raises:
        ConfigError: `out` is there and is no pack.
        PassingBuildError: the model's files were changed meanwhile.
        EngineBuildError: it cannot be written, or a file has a name that is no Unicode.
    """
    if os.path.lexists(out) and not is_pack(out):
        raise ConfigError(f"{out}: is there already and is no pack; give a new file")
    for name in content.paths:
        if not is_unicode(name):
            raise EngineBuildError(
                f"cannot write {out}: the name {name!a} is no Unicode, as all names in a pack are; "
                f"rename the file in {files.folder}"
            )
    part = part_of(out)
    try:
        with place_lock(out):
            try:
                before = _states(content)
                digest = _write(files, content, part, report)
                if _states(content) != before:  # it would be partly of one model, partly of another
                    raise PassingBuildError(
                        f"{files.folder} was changed while it was packed; try again when nothing "
                        "writes to it"
                    )
                sync(part)
                part.replace(out)
            finally:
                part.unlink(missing_ok=True)
            with suppress(OSError):  # some file systems cannot
                sync(out.parent)
    except OSError as error:
        raise EngineBuildError(not_written(out, error)) from error
    return digest


def _states(content: PackContent) -> set[tuple[object, ...]]:
    """Return what stays the same while the files to pack are unchanged."""
    return {file_state(place_of(path).path) for path in content.paths.values()}


def _write(files: ModelFiles, content: PackContent, part: Path, report: ReportProgress) -> str:
    total = sum(place_of(path).num_bytes for path in content.paths.values())
    num_done = 0
    listed = {}
    with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_info(TYPE_NAME), TYPE)
        for name, path in sorted(content.paths.items()):
            hashed = hashlib.sha256()
            num_bytes = place_of(path).num_bytes
            with (
                _open_entry(archive, name, num_bytes) as target,
                open_file(path, files.folder) as source,
            ):
                while block := source.read(READ_BYTES):
                    hashed.update(block)
                    target.write(block)
                    num_done += len(block)
                    report(num_done, total)
            listed[name] = {"num_bytes": num_bytes, "sha256": hashed.hexdigest()}
        index = {
            "format_version": FORMAT_VERSION,
            "embedlib": __version__,
            "hub_name": files.hub_name,
            "hub_revision": files.hub_revision,
            "files": listed,
        }
        data = (json.dumps(index, indent=1, ensure_ascii=False) + "\n").encode()
        archive.writestr(_info(INDEX_NAME), data)
        for info in archive.infolist():
            info.extra = b""  # only the place of the content needs the padding
    return hashlib.sha256(data).hexdigest()


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, OLDEST)
    info.CRC = 0
    info.external_attr = 0o644 << 16
    return info


def _open_entry(archive: zipfile.ZipFile, name: str, num_bytes: int) -> IO[bytes]:
    """Open a new entry for writing, whose content begins at a multiple of `ALIGNMENT`."""
    info = _info(name)
    assert archive.fp is not None, "it is open"
    is_large = num_bytes > LARGE_BYTES
    header = len(info.FileHeader(zip64=is_large))
    padding = -(archive.fp.tell() + header + PADDING_BYTES) % ALIGNMENT
    sizes = (2 + padding).to_bytes(2, "little") + ALIGNMENT.to_bytes(2, "little")
    info.extra = PADDING.to_bytes(2, "little") + sizes + bytes(padding)
    return archive.open(info, "w", force_zip64=is_large)
