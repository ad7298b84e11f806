"""`compile_model`: compiles a model's files into an engine directory, atomically."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from embedlib.config import Config
from embedlib.errors import OTHER_CACHE, ConfigError, EngineBuildError, EngineUnavailableError
from embedlib.models.compiled.checkpoint import (
    QUANT_CONFIG_NAME,
    quantized_layers,
    write_checkpoint,
    write_json,
)
from embedlib.models.compiled.engine_folder import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    CompiledPrecision,
    FileDigest,
    Manifest,
    cache_folder,
    check_unchanged,
    compiled_place,
    file_hashes,
    is_made_from,
    model_fingerprint,
    read_manifest,
    spec_facts,
    verify_engine_folder,
    written_files,
)
from embedlib.models.compiled.fidelity_report import is_report
from embedlib.models.compiled.int8 import INT8_GROUPS
from embedlib.models.compiled.int8_file import INT8_NAME, write_int8
from embedlib.models.compiled.jobs import CompileJob, run_jobs
from embedlib.models.compiled.new_folder import new_folder, place_lock, try_place_lock
from embedlib.models.new_file import not_written
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.model_file import (
    file_bytes,
    has_file,
    list_files,
    open_file,
    place_of,
)
from embedlib.models.weights.file_hashes import FileHashes
from embedlib.models.weights.load import find_tensors, load_weights
from embedlib.models.weights.token_heads import head_files
from embedlib.models.weights.weight_files import INDEX_NAME, weight_folders
from embedlib.packages.installing import install_line
from embedlib.version import __version__

ReportProgress = Callable[[int, int], object]
"""Called with how much is done and how much there is."""

COPIED_PATTERNS: Final = ("*.json", "*.txt", "*.model", "*.jinja", "LICENSE*", "NOTICE*")
"""Files of a model besides its weights: settings, tokenizer, license."""
WRITTEN_NAMES: Final = frozenset({INDEX_NAME, QUANT_CONFIG_NAME, MANIFEST_NAME})
"""JSON files that are never copied, nor are reports: an engine directory has its own, or none."""
PACKAGES: Final[Mapping[CompiledPrecision, tuple[str, ...]]] = {
    "fp8": ("numpy", "ml_dtypes"),
    "bf16": ("numpy", "ml_dtypes"),
    "int8": ("numpy",),
    "int8-g128": ("numpy",),
}
"""Packages whose version may change the numbers; the manifest lists their versions."""


def compile_model(
    files: ModelFiles,
    precision: CompiledPrecision,
    excluded: Collection[str],
    config: Config,
    *,
    out: Path | None = None,
    report: ReportProgress = lambda num_done, num_bytes: None,
) -> Path:
    """Compile a model and return its engine directory; an existing one that matches is returned.

    If another process is compiling the same engine directory, this call waits for it.

    Args:
        files: the model.
        precision: "fp8", "bf16", "int8" or "int8-g128", of the linear layers. All other tensors
            become bfloat16; with int8 they keep the model's type.
        excluded: roles of linear layers to treat like all other tensors, such as `layers.3.down`.
            With "fp8", q, k, v of a layer go only together, and so do gate and up; the word
            `pooled_rows` is also allowed.
        config: determines the cache folder and the number of threads.
        out: folder to write; None: a folder in the cache, where `compiled_folder` finds it.
        report: called with the number of bytes of weights read so far, and the total.

    Raises:
        ConfigError: `excluded` is not valid, or `out` must not be replaced.
        EngineUnavailableError: the package ml_dtypes is missing.
        ModelWeightsError: the weights do not match the model, or contain NaN or infinity.
        EngineBuildError: the engine directory cannot be written, or the model's files changed
            meanwhile.
    """
    _check_packages(precision)
    find_tensors(files)  # rejects missing and extra tensors and wrong shapes
    layers = quantized_layers(files, precision, excluded)
    hashes = file_hashes(config)
    if out is not None:
        _check_replaceable(out.resolve(), files)
    # Before the first number is read, so that it is not that of a checkpoint saved meanwhile.
    digest = _fingerprint(files, hashes, config)
    target = cache_folder(digest, precision, excluded, config) if out is None else out.resolve()
    try:
        with place_lock(target):
            if _is_done(target, files, digest, precision, excluded, has_name=out is not None):
                return target
            with new_folder(target) as part:
                read = _write_files(files, part, precision, layers, config, report)
                inputs = _digests(files.folder, read, hashes, config)
                written = [path for path in part.rglob("*") if path.is_file()]
                outputs = _digests(part, written, FileHashes(), config)
                check_unchanged(files, digest, hashes, "compiled")
                manifest = _manifest(files, precision, excluded, digest, inputs, outputs)
                write_json(part / MANIFEST_NAME, dataclasses.asdict(manifest))
    except OSError as error:
        raise _not_written(target, config, error) from error
    return target


def check_writable(files: ModelFiles, config: Config, *, out: Path | None = None) -> None:
    """Check that `compile_model` can write, before minutes of measuring.

    Args:
        files: the model.
        config: says where the cache is; a search compiles into it whatever `out` is.
        out: a folder to write beside it.

    Raises:
        ConfigError: `out` must not be replaced.
        EngineBuildError: an engine directory could not be written.
    """
    targets = [compiled_place(config) / "new"]
    if out is not None:
        targets.append(out.resolve())
        _check_replaceable(targets[-1], files)
    for target in targets:
        try:
            with try_place_lock(target):
                pass
        except OSError as error:
            raise _not_written(target, config, error) from error


def _not_written(target: Path, config: Config, error: OSError) -> EngineBuildError:
    is_cache = target.parent == compiled_place(config)
    remedy = OTHER_CACHE if is_cache else "name another folder with out (--out)"
    return EngineBuildError(f"{not_written(f'the engine directory {target}', error)}; {remedy}")


def _check_packages(precision: CompiledPrecision) -> None:
    if precision not in INT8_GROUPS and importlib.util.find_spec("ml_dtypes") is None:
        raise EngineUnavailableError(
            f"compiling to {precision} needs the package ml_dtypes, which is missing; "
            f"{install_line('compile')}"
        )


def _fingerprint(files: ModelFiles, hashes: FileHashes, config: Config) -> str:
    """Return the fingerprint of a model; weights whose hash is not known are hashed in parallel."""
    paths = [path for paths in weight_folders(files).values() for path in paths]
    run_jobs([_hash_job(path, hashes) for path in paths], config.num_threads)
    return model_fingerprint(files, hashes)


def _manifest(
    files: ModelFiles,
    precision: CompiledPrecision,
    excluded: Collection[str],
    digest: str,
    inputs: dict[str, FileDigest],
    outputs: dict[str, FileDigest],
) -> Manifest:
    versions = {name: importlib.metadata.version(name) for name in PACKAGES[precision]}
    return Manifest(
        format_version=FORMAT_VERSION,
        precision=precision,
        excluded=tuple(sorted(excluded)),
        fingerprint=digest,
        hub_name=files.hub_name,
        hub_revision=files.hub_revision,
        spec=spec_facts(files.spec),
        versions={"embedlib": __version__, **versions},
        inputs=inputs,
        outputs=outputs,
    )


def _write_files(
    files: ModelFiles,
    part: Path,
    precision: CompiledPrecision,
    layers: Mapping[str, str],
    config: Config,
    report: ReportProgress,
) -> list[Path]:
    """Write all files of an engine directory but its manifest; return the model files read."""
    folders = weight_folders(files)
    read = [path for paths in folders.values() for path in paths]
    num_bytes = sum(place_of(path).num_bytes for path in read)
    num_done = 0

    def count(num_read: int) -> None:
        nonlocal num_done
        num_done += num_read
        report(num_done, num_bytes)

    indexes = [folder / INDEX_NAME for folder in folders]
    read += [path for path in indexes if has_file(path, files.folder)]
    for path in _copied_files(files):
        read.append(path)
        copy = part / path.relative_to(files.folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with open_file(path, files.folder) as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target)
    group = INT8_GROUPS.get(precision)
    if group is not None:
        roles = {f"{layer}.weight" for layer in layers}
        jobs = write_int8(load_weights(files), part / INT8_NAME, roles, group)
    else:
        jobs = write_checkpoint(files, part, set(layers.values()))
    run_jobs(jobs, config.num_threads, count)
    return read


def _copied_files(files: ModelFiles) -> list[Path]:
    """Return the files to copy, from every directory of the model: all but the weights.

    They include the weights of per-token heads, which are small and computed in float32.
    """
    paths = {
        path
        for folder in files.directories
        for like in COPIED_PATTERNS
        for path in list_files(folder, like)
        if path.name not in WRITTEN_NAMES
        and not is_report(path.name)
        and file_bytes(path) is not None
    }
    return sorted(paths.union(head_files(files.transformer_dir)))


def _hash_job(path: Path, hashes: FileHashes) -> CompileJob:
    """Return the job that hashes a file, so that `hashes` has the result."""
    return lambda report: hashes.sha256(path, lambda num_bytes: report(0))


def _digests(
    folder: Path, paths: Iterable[Path], hashes: FileHashes, config: Config
) -> dict[str, FileDigest]:
    """Return size and SHA-256 of files by their path in the folder."""
    ordered = sorted(paths)
    run_jobs([_hash_job(path, hashes) for path in ordered], config.num_threads)
    return {
        path.relative_to(folder).as_posix(): FileDigest(
            place_of(path).num_bytes, hashes.sha256(path)
        )
        for path in ordered
    }


def _is_done(
    folder: Path,
    files: ModelFiles,
    digest: str,
    precision: CompiledPrecision,
    excluded: Collection[str],
    *,
    has_name: bool,
) -> bool:
    """Whether the engine directory exists, is intact and was compiled in this way.

    With `has_name` the model's hub name and revision must match too; in the cache any name does.
    """
    try:
        manifest = read_manifest(folder)
        made = (manifest.hub_name, manifest.hub_revision)
        is_named = not has_name or made == (files.hub_name, files.hub_revision)
        if not (is_named and is_made_from(manifest, digest, precision, excluded)):
            return False
        verify_engine_folder(folder)
    except EngineBuildError:
        return False
    return True


def _check_replaceable(out: Path, files: ModelFiles) -> None:
    """Reject the current folder, and what is neither an engine directory nor an empty folder."""
    if out == files.folder.resolve():
        raise ConfigError(f"out = {str(out)!r} is the model's own folder; give a new one")
    if not os.path.exists(out):  # that of a Path raises an error of a folder that nobody may enter
        return
    if not out.is_dir():
        raise ConfigError(f"out = {str(out)!r} is a file; give a new folder")
    if os.path.samefile(out, os.curdir):  # whoever stands in it would go on in the one removed
        raise ConfigError(
            f"out = {str(out)!r} is the current folder, which cannot be replaced; give "
            "another one, or compile from outside of it"
        )
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if not path.is_dir()}
    if MANIFEST_NAME in names:
        written = {MANIFEST_NAME, *written_files(out)}
        names = {name for name in names - written if not is_report(name)}
    if names:
        raise ConfigError(
            f"out = {str(out)!r} holds files that embedlib did not write ({min(names)}); give a "
            "new folder"
        )
