"""`compile_model`: a model's files to an engine directory, complete or not there at all."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import embedlib
from embedlib.config import Config
from embedlib.engines.compiled.checkpoint import (
    CONFIG_NAME,
    QUANT_CONFIG_NAME,
    quantized_layers,
    weight_files,
    write_checkpoint,
    write_json,
)
from embedlib.engines.compiled.engine_folder import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    FileDigest,
    Manifest,
    Precision,
    cache_folder,
    file_hashes,
    is_made_from,
    load_manifest,
    model_fingerprint,
    open_engine_folder,
    spec_facts,
)
from embedlib.engines.compiled.fidelity_report import REPORT_NAME
from embedlib.engines.compiled.int8_file import INT8_NAME, write_int8
from embedlib.engines.compiled.new_folder import new_folder, place_lock
from embedlib.errors import ConfigError, EngineBuildError, EngineUnavailableError
from embedlib.models.file_hashes import FileHashes, sha256
from embedlib.models.files import ModelFiles
from embedlib.models.weights import INDEX_NAME, Weights, load_weights

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
            "fp8" q, k, v and gate, up of a layer only together.
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
    digest = model_fingerprint(files, hashes)
    target = out or cache_folder(digest, precision, excluded, config)
    try:
        with place_lock(target):
            if _is_done(target, digest, precision, excluded):
                return target
            with new_folder(target) as part:
                inputs = _write_files(files, weights, part, precision, layers, hashes, report)
                manifest = Manifest(
                    format_version=FORMAT_VERSION,
                    precision=precision,
                    excluded=tuple(sorted(excluded)),
                    fingerprint=digest,
                    spec=spec_facts(files.spec),
                    versions={
                        "embedlib": embedlib.__version__,
                        **{name: importlib.metadata.version(name) for name in PACKAGES[precision]},
                    },
                    inputs=inputs,
                    outputs=_digests(part, (p for p in part.rglob("*") if p.is_file()), sha256),
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
    report: Report,
) -> dict[str, FileDigest]:
    """Fill an engine directory, except for its manifest, and return what was read."""
    folders = weight_files(files)
    read = [path for paths in folders.values() for path in paths]
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
        write_int8(weights, part / INT8_NAME, roles, count)
    else:
        write_checkpoint(files, part, set(layers.values()), count)
    return _digests(files.folder, read, hashes.sha256)


def _copied_files(files: ModelFiles) -> list[Path]:
    """Return the files beside the weights, in every directory of the model."""
    folders = sorted({files.folder, files.transformer_dir, *files.module_dirs})
    paths = {path for folder in folders for like in COPIED_PATTERNS for path in folder.glob(like)}
    return sorted(path for path in paths if path.is_file() and path.name not in WRITTEN_NAMES)


def _digests(
    folder: Path, paths: Iterable[Path], hash_of: Callable[[Path], str]
) -> dict[str, FileDigest]:
    """Return size and SHA-256 of files by their path in the folder."""
    return {
        path.relative_to(folder).as_posix(): FileDigest(path.stat().st_size, hash_of(path))
        for path in sorted(paths)
    }


def _is_done(
    folder: Path, fingerprint: str, precision: Precision, excluded: Collection[str]
) -> bool:
    """Whether the engine directory is there and whole."""
    try:
        manifest = open_engine_folder(folder, fingerprint)
    except EngineBuildError:
        return False
    return is_made_from(manifest, fingerprint, precision, excluded)


def _check_replaceable(out: Path) -> None:
    """Refuse to take the place of anything but an engine directory or an empty one."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ConfigError(f"out = {str(out)!r} is a file; give a new folder")
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if not path.is_dir()}
    with suppress(EngineBuildError):
        names -= {
            MANIFEST_NAME,
            REPORT_NAME,
            *load_manifest(out).outputs,
        }  # also of one that was damaged
    if names:
        raise ConfigError(
            f"out = {str(out)!r} holds files that embedlib did not write ({min(names)}); give a "
            "new folder"
        )
