"""`compile_model`: a model's files to an engine directory, complete or not there at all."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from embedlib.config import Config
from embedlib.errors import ConfigError, EngineBuildError, EngineUnavailableError
from embedlib.models.compiled.checkpoint import (
    CONFIG_NAME,
    QUANT_CONFIG_NAME,
    quantized_layers,
    weight_files,
    write_checkpoint,
    write_json,
)
from embedlib.models.compiled.engine_folder import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    FileDigest,
    Manifest,
    Precision,
    cache_folder,
    file_hashes,
    is_made_from,
    model_fingerprint,
    open_engine_folder,
    spec_facts,
    written_files,
)
from embedlib.models.compiled.fidelity_report import REPORT_NAME
from embedlib.models.compiled.int8_file import INT8_NAME, write_int8
from embedlib.models.compiled.jobs import Job, run_jobs
from embedlib.models.compiled.new_folder import new_folder, place_lock, sync
from embedlib.models.reading.files import ModelFiles
from embedlib.models.weights.file_hashes import FileHashes
from embedlib.models.weights.load import INDEX_NAME, Weights, load_weights
from embedlib.models.weights.token_heads import head_files
from embedlib.version import __version__

Report = Callable[[int, int], object]

COPIED_PATTERNS: Final = ("*.json", "*.txt", "*.model", "*.jinja", "LICENSE*", "NOTICE*")
"""What a model has beside its weights: settings, tokenizer, terms."""
WRITTEN_NAMES: Final = frozenset({INDEX_NAME, QUANT_CONFIG_NAME, MANIFEST_NAME, REPORT_NAME})
"""JSON files that an engine directory has its own of, or none."""
PACKAGES: Final[Mapping[Precision, tuple[str, ...]]] = {
    "fp8": ("numpy", "ml_dtypes"),
    "bf16": ("numpy", "ml_dtypes"),
    "int8": ("numpy",),
}
"""Those that decide the numbers."""


def compile_model(
    files: ModelFiles,
    precision: Precision,
    excluded: Collection[str],
    config: Config,
    *,
    out: Path | None = None,
    report: Report = lambda num_done, num_bytes: None,
) -> Path:
    """Return the engine directory of a model, made now unless it is there already.

    While another process makes the same one, this waits for it.

    Args:
        files: the model.
        precision: "fp8", "bf16" or "int8", of the linear layers. All else is bfloat16, and with
            "int8" as the model has it.
        excluded: roles of linear layers that are kept like all else, such as `layers.3.down`; with
            "fp8" q, k, v and gate, up of a layer only together, and the word `pooled_rows`.
        config: says where the cache is.
        out: where to write; None: into the cache, where `compiled_folder` finds it.
        report: hears how many bytes of weights are done, and how many there are.

    Raises:
        ConfigError: `precision` or `excluded` is wrong, or `out` cannot be replaced.
        EngineUnavailableError: the package ml_dtypes is missing.
        ModelWeightsError: the weights do not fit the model, or hold NaN or infinity.
        EngineBuildError: the folder cannot be written.
    """
    if precision != "int8" and importlib.util.find_spec("ml_dtypes") is None:
        raise EngineUnavailableError(
            f"compiling to {precision} needs the package ml_dtypes, which is missing; "
            "pip install 'embedlib[compile]'"
        )
    weights = load_weights(files)  # complains of what is missing, left over or of the wrong shape
    layers = quantized_layers(files, precision, excluded)
    if out is not None:
        out = out.resolve()
        if out == files.folder.resolve():
            raise ConfigError(f"out = {str(out)!r} is the model itself; give a new folder")
        _check_replaceable(out)
    hashes = file_hashes(config)
    target = out
    if target is None:  # its name is made of the hashes, so these come first
        paths = [path for paths in weight_files(files).values() for path in paths]
        run_jobs([_hash_job(path, hashes) for path in paths], config.num_threads, _ignore)
        digest = model_fingerprint(files, hashes)
        target = cache_folder(digest, precision, excluded, config)
    try:
        with place_lock(target):
            if _is_done(target, files, hashes, precision, excluded, has_name=out is not None):
                return target
            with new_folder(target) as part:
                read = _write_files(files, weights, part, precision, layers, hashes, config, report)
                manifest = Manifest(
                    format_version=FORMAT_VERSION,
                    precision=precision,
                    excluded=tuple(sorted(excluded)),
                    fingerprint=model_fingerprint(files, hashes),
                    hub_name=files.hub_name,
                    hub_revision=files.hub_revision,
                    spec=spec_facts(files.spec),
                    versions={
                        "embedlib": __version__,
                        **{name: importlib.metadata.version(name) for name in PACKAGES[precision]},
                    },
                    inputs=_digests(files.folder, read, hashes),
                    outputs=_finish(part, config),
                )
                write_json(part / MANIFEST_NAME, dataclasses.asdict(manifest))
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise EngineBuildError(
            f"cannot write the compiled model {target}: {error.strerror or error}{where}"
        ) from error
    return target


def _write_files(
    files: ModelFiles,
    weights: Weights,
    part: Path,
    precision: Precision,
    layers: Mapping[str, str],
    hashes: FileHashes,
    config: Config,
    report: Report,
) -> list[Path]:
    """Fill an engine directory, except for its manifest, and return what was read.

    The weights are hashed meanwhile, if they were not before.
    """
    folders = weight_files(files)
    read = [path for paths in folders.values() for path in paths]
    # First, since these take longest: a hash is computed from the front to the back of a file.
    jobs = [_hash_job(path, hashes) for path in read]
    num_bytes = sum(path.stat().st_size for path in read)
    num_done = 0

    def count(num_read: int) -> None:
        nonlocal num_done
        num_done += num_read
        report(num_done, num_bytes)

    read += [path for folder in folders if (path := folder / INDEX_NAME).is_file()]
    written = files.transformer_dir / CONFIG_NAME
    for path in _copied_files(files):
        read.append(path)
        if path == written and precision != "int8":
            continue
        copy = part / path.relative_to(files.folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    if precision == "int8":
        roles = {f"{layer}.weight" for layer in layers}
        jobs += write_int8(weights, part / INT8_NAME, roles)
    else:
        jobs += write_checkpoint(files, part, set(layers.values()))
    run_jobs(jobs, config.num_threads, count)
    return read


def _copied_files(files: ModelFiles) -> list[Path]:
    """Return the files beside the weights, in every directory of the model.

    Heads for every token are among them: they are small, and computed in float32.
    """
    paths = {
        path
        for folder in files.directories
        for like in COPIED_PATTERNS
        for path in folder.glob(like)
        if path.is_file() and path.name not in WRITTEN_NAMES
    }
    return sorted(paths.union(head_files(files.transformer_dir)))


def _finish(part: Path, config: Config) -> dict[str, FileDigest]:
    """Bring the files of an engine directory onto the disk, and return what they are."""
    paths = [path for path in part.rglob("*") if path.is_file()]
    hashes = FileHashes()
    jobs: list[Job] = []
    for path in paths:
        jobs += [_hash_job(path, hashes), partial(_sync, path)]
    run_jobs(jobs, config.num_threads, _ignore)
    return _digests(part, paths, hashes)


def _hash_job(path: Path, hashes: FileHashes) -> Job:
    """Return the job after which the hash of a file is known."""
    return lambda report: hashes.sha256(path, lambda num_bytes: report(0))


def _sync(path: Path, report: Callable[[int], object]) -> None:
    del report  # nothing is read
    sync(path)


def _ignore(num_bytes: int) -> None:
    """Tell nobody."""


def _digests(folder: Path, paths: Iterable[Path], hashes: FileHashes) -> dict[str, FileDigest]:
    """Return size and SHA-256 of files by their path in the folder."""
    return {
        path.relative_to(folder).as_posix(): FileDigest(path.stat().st_size, hashes.sha256(path))
        for path in sorted(paths)
    }


def _is_done(
    folder: Path,
    files: ModelFiles,
    hashes: FileHashes,
    precision: Precision,
    excluded: Collection[str],
    *,
    has_name: bool,
) -> bool:
    """Whether the engine directory is there and whole.

    In the cache (not `has_name`) it is the model's under whatever name.
    """
    if not (folder / MANIFEST_NAME).is_file():
        return False
    digest = model_fingerprint(files, hashes)
    try:
        manifest = open_engine_folder(folder, digest)
    except EngineBuildError:
        return False
    names = (manifest.hub_name, manifest.hub_revision)
    is_named = not has_name or names == (files.hub_name, files.hub_revision)
    return is_named and is_made_from(manifest, digest, precision, excluded)


def _check_replaceable(out: Path) -> None:
    """Refuse to take the place of anything but an engine directory or an empty one."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ConfigError(f"out = {str(out)!r} is a file; give a new folder")
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if not path.is_dir()}
    if MANIFEST_NAME in names:
        names -= {MANIFEST_NAME, REPORT_NAME, *written_files(out)}
    if names:
        raise ConfigError(
            f"out = {str(out)!r} holds files that embedlib did not write ({min(names)}); give a "
            "new folder"
        )
