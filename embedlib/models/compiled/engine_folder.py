"""Engine directories: the manifest `embedlib.json`, finding a directory, verifying one.

An engine directory is a model folder whose weights have another precision, plus the manifest
embedlib.json: which model it was compiled from, and the digest of every file it contains.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from embedlib.config import Config
from embedlib.errors import EngineBuildError, ModelUnsupportedError, PassingBuildError
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.model_file import file_bytes, has_file, load_json
from embedlib.models.reading.pack_file import find_in_pack
from embedlib.models.spec import ModelSpec
from embedlib.models.weights.file_hashes import FileHashes, sha256
from embedlib.models.weights.fingerprint import fingerprint

CompiledPrecision = Literal["fp8", "bf16", "int8", "int8-g128"]

MANIFEST_NAME: Final = "embedlib.json"
FORMAT_VERSION: Final = 3
"""Version of the manifest and of the files beside it; any change of their format increments it."""


@dataclass(frozen=True)
class FileDigest:
    """Size and SHA-256 that a file must have."""

    num_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of embedlib.json."""

    format_version: int
    precision: CompiledPrecision
    """Of the linear layers; other tensors are bfloat16, or with int8 as in the model."""
    excluded: tuple[str, ...]
    """Roles of linear layers treated like other tensors, and the word `pooled_rows`; sorted."""
    fingerprint: str
    """Of the model it was compiled from, see `model_fingerprint`."""
    hub_name: str | None
    """That model's name on the hub, by which its prompts are found; None: it was a folder."""
    hub_revision: str | None
    """That model's commit on the hub; None: it was a folder."""
    spec: dict[str, Any]
    """The `ModelSpec`, as JSON values."""
    versions: dict[str, str]
    """Versions of the packages that computed the numbers, by package."""
    inputs: dict[str, FileDigest]
    """Every file of the model that was read, by its path in the model folder."""
    outputs: dict[str, FileDigest]
    """Every file of the engine directory but embedlib.json, by its path in it."""


def compiled_folder(
    files: ModelFiles, precision: CompiledPrecision, excluded: Collection[str], config: Config
) -> Path | None:
    """Return the engine directory of a model in the cache; None if there is none.

    The cache is keyed by the content of the model's files, not by their location. The sizes of the
    directory's files are checked; `verify_engine_folder` also checks their content.

    Args:
        files: the model; its weights are read once in full, unless the hub's cache has their hash.
        precision: of the linear layers.
        excluded: roles of linear layers that were not quantized, such as `layers.3.down`.
        config: determines the cache folder.
    """
    digest = model_fingerprint(files, file_hashes(config))
    folder = cache_folder(digest, precision, excluded, config)
    try:
        manifest = read_manifest(folder)
    except EngineBuildError:
        return None  # the caller compiles, which also replaces a damaged directory
    return folder if is_made_from(manifest, digest, precision, excluded) else None


def verify_engine_folder(folder: Path) -> Manifest:
    """Check every byte of an engine directory and return its manifest.

    Raises:
        EngineBuildError: `folder` is not an engine directory, has another format version, or is
            damaged.
    """
    manifest = read_manifest(folder)
    for name, digest in manifest.outputs.items():
        try:
            found = sha256(folder / name)
        except OSError as error:
            raise EngineBuildError(
                f"{folder}: {name} cannot be read: {error.strerror}; compile the model again"
            ) from error
        if found != digest.sha256:
            raise EngineBuildError(
                f"{folder}: {name} is damaged (SHA-256 {found[:16]}…, expected "
                f"{digest.sha256!s:.16}…); compile the model again"
            )
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of an engine directory after checking the sizes of its files.

    Raises:
        EngineBuildError: `folder` is not an engine directory or has another format version, or a
            file is missing or has the wrong size.
    """
    manifest = load_manifest(folder)
    for name, digest in manifest.outputs.items():
        num_bytes = file_bytes(folder / name)
        if num_bytes is None:
            raise EngineBuildError(f"{folder}: {name} is missing; compile the model again")
        if num_bytes != digest.num_bytes:
            raise EngineBuildError(
                f"{folder}: {name} has {num_bytes} bytes, expected {digest.num_bytes}; "
                "compile the model again"
            )
    return manifest


def is_compiled(folder: Path) -> bool:
    """Return whether a folder has the manifest of an engine directory.

    Raises:
        EngineBuildError: something else has the manifest's name.
    """
    try:
        return has_file(folder / MANIFEST_NAME, folder)
    except ModelUnsupportedError as error:
        raise EngineBuildError(f"{folder}: {error}; compile the model again") from error


def load_manifest(folder: Path) -> Manifest:
    """Parse embedlib.json without checking the other files.

    Raises:
        EngineBuildError: the manifest is missing, cannot be read or has another format version.
    """
    path = folder / MANIFEST_NAME
    if not (folder.is_dir() or find_in_pack(path)) or not is_compiled(folder):
        raise EngineBuildError(
            f"{folder}: is not an engine directory, it has no {MANIFEST_NAME}; make one with "
            "`embedlib compile`"
        )
    try:
        content = load_json(path, folder)
        version = content["format_version"]
        if version == FORMAT_VERSION:
            return _parse(content)
    except ModelUnsupportedError as error:
        raise EngineBuildError(f"{path}: is damaged ({error}); compile the model again") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split()):.200}"
        raise EngineBuildError(f"{path}: is damaged ({reason}); compile the model again") from error
    raise EngineBuildError(
        f"{path}: format_version = {version!r}; this version of embedlib reads only "
        f"{FORMAT_VERSION}; compile the model again"
    )


def written_files(folder: Path) -> frozenset[str]:
    """Return the paths that embedlib.json lists, in any format version; empty if it is damaged."""
    try:
        content = load_json(folder / MANIFEST_NAME, folder)
        return frozenset(content["outputs"])
    except (ModelUnsupportedError, TypeError, KeyError):
        return frozenset()


def model_fingerprint(files: ModelFiles, hashes: FileHashes | None = None) -> str:
    """Return the fingerprint that identifies a model by the content of its files."""
    return fingerprint(files, None, {}, hashes)


def check_unchanged(files: ModelFiles, digest: str, hashes: FileHashes, what: str) -> None:
    """Refuse what may come partly from before a change of the model, and partly from after it.

    Args:
        files: the model.
        digest: its fingerprint before anything was read.
        hashes: knows files by their state.
        what: was done with it, such as "compiled".

    Raises:
        PassingBuildError: the model's fingerprint is another one.
    """
    found = model_fingerprint(files, hashes)
    if found != digest:
        raise PassingBuildError(
            f"{files.folder} was changed while it was {what} (fingerprint {digest}, now {found}); "
            "try again when nothing writes to it"
        )


def file_hashes(config: Config) -> FileHashes:
    """Return the cache's store of file hashes, which saves hashing large files again."""
    return FileHashes(config.engine_cache_path / "hashes")


def cache_folder(
    fingerprint: str, precision: CompiledPrecision, excluded: Collection[str], config: Config
) -> Path:
    """Return the path of an engine directory in the cache, whether it exists or not."""
    key = json.dumps([FORMAT_VERSION, fingerprint, precision, sorted(excluded)])
    name = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
    return compiled_place(config) / f"{precision}-{name}"


def compiled_place(config: Config) -> Path:
    """Return the folder of the cache that contains all engine directories."""
    return config.engine_cache_path / "compiled"


def is_made_from(
    manifest: Manifest, fingerprint: str, precision: CompiledPrecision, excluded: Collection[str]
) -> bool:
    """Whether an engine directory was compiled from this model with these settings."""
    made = (manifest.fingerprint, manifest.precision, manifest.excluded)
    return made == (fingerprint, precision, tuple(sorted(excluded)))


def spec_facts(spec: ModelSpec) -> dict[str, Any]:
    """Return a spec as JSON values; every module has its class name under `kind`."""
    kinds = [type(module).__name__ for module in spec.modules]
    facts = dataclasses.asdict(spec)
    pairs = zip(kinds, facts["modules"], strict=True)
    return {**facts, "modules": [{"kind": kind, **module} for kind, module in pairs]}


def _parse(content: dict[str, Any]) -> Manifest:
    """Return the manifest; missing or extra keys and wrong types raise an error."""
    for key in ("inputs", "outputs"):
        content[key] = {name: FileDigest(**entry) for name, entry in content[key].items()}
    manifest = Manifest(**{**content, "excluded": tuple(content["excluded"])})
    if manifest.precision not in get_args(CompiledPrecision):
        raise ValueError(f"precision {manifest.precision!r}")
    if type(content["excluded"]) is not list:
        raise ValueError(f"excluded {content['excluded']!r}")
    names = [manifest.hub_name, manifest.hub_revision]
    if names != [None, None] and not all(isinstance(name, str) for name in names):
        raise ValueError(f"hub_name, hub_revision {names}")
    return manifest
