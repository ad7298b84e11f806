"""Engine directories: what `embedlib.json` says of a compiled model, finding one, verifying one.

An engine directory is a model folder whose weights have another precision, and one more file:
embedlib.json says what it was made from and what it must hold.
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
from embedlib.errors import ConfigError, EngineBuildError
from embedlib.models.hub import ModelFolder
from embedlib.models.reading.files import ModelFiles
from embedlib.models.spec import ModelSpec
from embedlib.models.weights.file_hashes import FileHashes, sha256
from embedlib.models.weights.fingerprint import fingerprint

Precision = Literal["fp8", "bf16", "int8"]

MANIFEST_NAME: Final = "embedlib.json"
FORMAT_VERSION: Final = 2
"""Of the manifest and of all that is written beside it; a change of either raises it."""


@dataclass(frozen=True)
class FileDigest:
    """What a file must be."""

    num_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of embedlib.json."""

    format_version: int
    precision: Precision
    """Of the linear layers; all else is bfloat16, with int8 as the model has it."""
    excluded: tuple[str, ...]
    """Roles of linear layers that are kept like all else, sorted; and `engines.pooled_rows`."""
    fingerprint: str
    """Of the model it was made from, see `model_fingerprint`."""
    hub_name: str | None
    """What that model was asked for on the hub, by which its prompts are known; None: a folder."""
    hub_revision: str | None
    """The commit."""
    spec: dict[str, Any]
    """The `ModelSpec`, as JSON values."""
    versions: dict[str, str]
    """Of the packages that made it."""
    inputs: dict[str, FileDigest]
    """Every file of the model that was read, by its path there."""
    outputs: dict[str, FileDigest]
    """Every file of the directory but embedlib.json, by its path there."""


def compiled_folder(
    files: ModelFiles, precision: Precision, excluded: Collection[str], config: Config
) -> Path | None:
    """Return the compiled model in the cache, or None.

    It is found by what is in the model's files, wherever they lie. What was found has its files in
    the right sizes; `open_engine_folder` reads them.

    Args:
        files: the model; all its weights are read once, unless the hub's cache knows their hash.
        precision: of the linear layers.
        excluded: roles of linear layers that are kept, such as `layers.3.down`.
        config: says where the cache is.
    """
    digest = model_fingerprint(files, file_hashes(config))
    folder = cache_folder(digest, precision, excluded, config)
    try:
        manifest = read_manifest(folder)
    except EngineBuildError:
        return None  # to be compiled, which also replaces what is damaged
    return folder if is_made_from(manifest, digest, precision, excluded) else None


def open_engine_folder(folder: Path, fingerprint: str | None = None) -> Manifest:
    """Check an engine directory, every byte of it, and return what it says of itself.

    Args:
        folder: an engine directory.
        fingerprint: of the model it must be made from, see `model_fingerprint`; None: any.

    Raises:
        EngineBuildError: it is none, of another format, made from another model, or damaged.
    """
    manifest = read_manifest(folder)
    if fingerprint is not None and manifest.fingerprint != fingerprint:
        raise EngineBuildError(
            f"{folder}: was made from another revision of the model (fingerprint "
            f"{manifest.fingerprint}, the model's is {fingerprint}); compile the model again"
        )
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
                f"{digest.sha256[:16]}…); compile the model again"
            )
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Return what an engine directory says of itself, after looking at the sizes of its files.

    Raises:
        EngineBuildError: it is none, of another format, or a file is missing or cut short.
    """
    manifest = load_manifest(folder)
    for name, digest in manifest.outputs.items():
        file = folder / name
        if not file.is_file():
            raise EngineBuildError(f"{folder}: {name} is missing; compile the model again")
        if file.stat().st_size != digest.num_bytes:
            raise EngineBuildError(
                f"{folder}: {name} has {file.stat().st_size} bytes, expected {digest.num_bytes}; "
                "compile the model again"
            )
    return manifest


def check_not_compiled(folder: Path) -> None:
    """Refuse an engine directory where a model is needed; one in bf16 is a model as well.

    Raises:
        ConfigError: it is one of another precision.
        EngineBuildError: what it says of itself cannot be read.
    """
    if not (folder / MANIFEST_NAME).is_file():
        return
    precision = load_manifest(folder).precision
    if precision != "bf16":
        raise ConfigError(
            f"{folder} is a model that was compiled to {precision}; give the one it was made from"
        )


def source_on_hub(folder: ModelFolder) -> ModelFolder:
    """Return a model's folder with the name and revision by which more is known of it.

    They are its own, and of an engine directory those of the model it was made from.

    Raises:
        EngineBuildError: what an engine directory says of itself cannot be read.
    """
    if not (folder.path / MANIFEST_NAME).is_file():
        return folder
    manifest = load_manifest(folder.path)
    if manifest.hub_name is None:
        return folder
    return dataclasses.replace(folder, name=manifest.hub_name, revision=manifest.hub_revision)


def load_manifest(folder: Path) -> Manifest:
    """Return what embedlib.json says, without looking at the other files.

    Raises:
        EngineBuildError: it is missing, cannot be read, or has another format.
    """
    path = folder / MANIFEST_NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version = content["format_version"]
        if version == FORMAT_VERSION:
            return _parse(content)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise EngineBuildError(
            f"{folder}: is no compiled model, it has no {MANIFEST_NAME}; make one with "
            "`embedlib compile`"
        ) from error
    except OSError as error:
        raise EngineBuildError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise EngineBuildError(
            f"{path}: is damaged ({type(error).__name__}: {error}); compile the model again"
        ) from error
    raise EngineBuildError(
        f"{path}: format_version = {version!r}, and this version of embedlib reads "
        f"{FORMAT_VERSION}; compile the model again"
    )


def written_files(folder: Path) -> frozenset[str]:
    """Return the paths that embedlib.json lists, whatever its format and however damaged it is."""
    try:
        content = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
        return frozenset(content["outputs"])
    except (OSError, ValueError, TypeError, KeyError):
        return frozenset()


def model_fingerprint(files: ModelFiles, hashes: FileHashes | None = None) -> str:
    """Return what an engine directory knows its model by: the content of files, not their place."""
    return fingerprint(files, None, {}, hashes)


def file_hashes(config: Config) -> FileHashes:
    """Return what is remembered in the cache of the hashes of large files."""
    return FileHashes(config.engine_cache_path / "hashes")


def cache_folder(
    fingerprint: str, precision: Precision, excluded: Collection[str], config: Config
) -> Path:
    """Return where the cache has a compiled model, or would have it."""
    key = json.dumps([FORMAT_VERSION, fingerprint, precision, sorted(excluded)])
    name = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
    return compiled_place(config) / f"{precision}-{name}"


def compiled_place(config: Config) -> Path:
    """Return the folder with all compiled models of the cache."""
    return config.engine_cache_path / "compiled"


def is_made_from(
    manifest: Manifest, fingerprint: str, precision: Precision, excluded: Collection[str]
) -> bool:
    """Whether a directory is what compiling a model in this way gives."""
    made = (manifest.fingerprint, manifest.precision, manifest.excluded)
    return made == (fingerprint, precision, tuple(sorted(excluded)))


def spec_facts(spec: ModelSpec) -> dict[str, Any]:
    """Return a spec as JSON values; every module says its kind."""
    modules = [
        {"kind": type(module).__name__, **dataclasses.asdict(module)} for module in spec.modules
    ]
    facts = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    return {
        **facts,
        "encoder": dataclasses.asdict(spec.encoder),
        "head": None if spec.head is None else dataclasses.asdict(spec.head),
        "modules": modules,
        "prompts": dict(spec.prompts),
    }


def _parse(content: dict[str, Any]) -> Manifest:
    """Return a manifest; anything missing, left over or of another kind is an error."""
    for key in ("inputs", "outputs"):
        content[key] = {name: FileDigest(**entry) for name, entry in content[key].items()}
    manifest = Manifest(**{**content, "excluded": tuple(content["excluded"])})
    if manifest.precision not in get_args(Precision):
        raise ValueError(f"precision {manifest.precision!r}")
    if type(content["excluded"]) is not list:
        raise ValueError(f"excluded {content['excluded']!r}")
    names = [manifest.hub_name, manifest.hub_revision]
    if names != [None, None] and not all(isinstance(name, str) for name in names):
        raise ValueError(f"hub_name, hub_revision {names}")
    return manifest
