"""Resolve a model's name to the folder that holds its files.

A name is a folder, a pack (`reading.pack_file`), `package:NAME` (a model shipped inside an
installed Python package) or a repository of the Hugging Face hub. `reading/` parses the files; they
are not looked at here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from embedlib.config import Config
from embedlib.errors import (
    ConfigError,
    ModelNotFoundError,
    ModelWeightsError,
)
from embedlib.models.catalog import nearest_published
from embedlib.models.hub_cache import (
    MODULES,
    how_to_convert,
    hub_name,
    lists_files,
    may_have,
    pickle_of,
    snapshots,
)
from embedlib.models.hub_errors import expected_errors, explain
from embedlib.models.python_packages import PACKAGE_PREFIX, find_in_package
from embedlib.models.reading.pack_file import PACK_SUFFIX, is_pack
from embedlib.models.reading.refusals import held_instead
from embedlib.models.reading.vocabulary_files import VOCABULARIES
from embedlib.system.user_folders import working_directory

_SETTINGS = ("*.json", "chat_template.jinja", "artifact.metadata")
_VOCABULARY = [f"*{name}" for names in VOCABULARIES.values() for name in names]
"""Read where there is no tokenizer.json."""
WEIGHTS = "*.safetensors"
# The same weights in another runtime's format or layout, and training checkpoints.
_IGNORE = (
    "onnx/*",
    "openvino/*",
    "coreml/*",
    "original/*",
    "*/onnx/*",
    "*/openvino/*",
    "checkpoint-*/*",
    "consolidated*.safetensors",
)
# Owner of models that are named without one; sentence-transformers assumes it too.
_DEFAULT_OWNER = "sentence-transformers"
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class ModelFolder:
    """Where a model's files are, and their version."""

    name: str
    """The name that the caller gave."""
    path: Path
    revision: str | None = None
    """The resolved commit of a hub model; None for a folder or a package."""


def resolve(
    name: str | os.PathLike[str], config: Config | None = None, *, with_weights: bool = True
) -> ModelFolder:
    """Return the folder of a model; downloads missing files from the hub.

    Args:
        name: a folder, a pack, `package:NAME`, or a hub name such as `BAAI/bge-small-en-v1.5`; a
            name without an owner is looked up under `sentence-transformers/` first.
        config: the options; of them `revision`, `token`, `cache_folder` and `local_files_only`,
            which opens no socket, as with `HF_HUB_OFFLINE=1`. None: the default ones.
        with_weights: False downloads the settings of a hub model alone.

    Raises:
        ModelNotFoundError: if no model has this name; the message lists the places tried.
        ModelWeightsError: if the hub repository has no safetensors weights.
        ConfigError: if `revision` is given for a folder or a package.
    """
    config = config or Config()
    text = os.fspath(name)
    is_local = isinstance(name, os.PathLike) or not may_be_on_hub(text)
    if config.revision is not None and is_local:
        raise ConfigError(
            f"revision={config.revision!r} applies only to hub models; {text!r} is not one; leave "
            "it out"
        )
    if text.startswith(PACKAGE_PREFIX):
        return ModelFolder(name=text, path=find_in_package(text.removeprefix(PACKAGE_PREFIX)))
    if is_local:
        return ModelFolder(name=text, path=_check_folder(_expanded(text), text))
    return find_on_hub(text, config, [WEIGHTS] if with_weights else [])


def weights_of(files: Iterable[str]) -> list[str]:
    """Return the files of weights that a load would download, of the files of a repository."""
    from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]

    return [*filter_repo_objects(files, allow_patterns=WEIGHTS, ignore_patterns=list(_IGNORE))]


def may_be_on_hub(name: str) -> bool:
    """Whether a name is looked up on the hub: it is neither a folder nor `package:NAME`."""
    # os.path: a method of Path raises for a name that is too long. A hub name has no `~` in front.
    return _is_hub_name(name) and not os.path.exists(name)


def downloaded_bytes(name: str, cache_folder: str | None) -> int:
    """Return the size of what the hub's cache holds of a model, unfinished files included."""
    from huggingface_hub import constants

    cache = Path(cache_folder or constants.HF_HUB_CACHE)
    num_bytes = 0
    for repo in _repositories(name):
        for file in (cache / f"models--{repo.replace('/', '--')}" / "blobs").glob("*"):
            with suppress(FileNotFoundError):  # the client renames a file when it is complete
                num_bytes += file.stat().st_size
    return num_bytes


def _repositories(name: str) -> list[str]:
    """Return the names under which the hub may have a model, in their order."""
    return [name] if "/" in name else [f"{_DEFAULT_OWNER}/{name}", name]


def _is_hub_name(name: str) -> bool:
    # "./model", "~/model" and "a/b/c" can only be folders: looking them up on the hub would turn
    # a typing error in a path into a network error.
    is_path = name.startswith((".", "/", "~")) or name.endswith(PACK_SUFFIX)
    return _HUB_NAME.fullmatch(name) is not None and not is_path


def _expanded(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except (RuntimeError, ValueError) as error:  # the latter of a zero byte
        raise ModelNotFoundError(
            f"no model folder {name!r:.300}: {error}; give the folder without ~"
        ) from error


def _check_folder(folder: Path, name: str) -> Path:
    kind = "pack" if name.endswith(PACK_SUFFIX) else "model folder"
    try:
        os.stat(folder)
    except PermissionError as error:
        raise ModelNotFoundError(
            f"{kind} {name!r:.300} cannot be read: {error.strerror}; this user may not search one "
            "of the folders above it"
        ) from error
    except (OSError, ValueError) as error:  # ValueError: no file can have that name
        how = "check the spelling"
        if "://" in name:  # the address of its page
            how = "pass the model's name on the hub alone, such as BAAI/bge-small-en-v1.5"
        raise ModelNotFoundError(
            f"no {kind} {name!r:.300}: the path does not exist (working directory: "
            f"{working_directory()}); {how}"
        ) from error
    if is_pack(folder):
        return folder.absolute()
    if not folder.is_dir():
        raise ModelNotFoundError(
            f"{name!r} is a file and no pack; give the folder that holds config.json"
        )
    # Whatever has the name: `reading` refuses what is no file.
    if not any(os.path.lexists(folder / file) for file in ("config.json", "modules.json")):
        if held := held_instead(folder, folder):
            raise ModelNotFoundError(f"folder {name!r}: {held}")
        raise ModelNotFoundError(
            f"folder {name!r} holds neither config.json nor modules.json, so it is not a model; "
            f"{_instead(folder, name)}"
        )
    return folder.absolute()


def _instead(folder: Path, name: str) -> str:
    """Return what to pass instead of a folder that holds no model."""
    if found := snapshots(folder):
        return (
            f"it is a repository of the hub's cache: pass {hub_name(folder.absolute())!r}, or its "
            f"newest snapshot, {str(found[0])!r}"
        )
    if _is_hub_name(name):
        return "for a hub model, run in a directory that has no folder of this name"
    return "give the folder that holds config.json"


# --- the hub --------------------------------------------------------------------------------------


def find_on_hub(name: str, config: Config, weights: list[str]) -> ModelFolder:
    """Return the folder of a hub model in the cache; downloads what is missing.

    Args:
        name: as of `resolve`, on the hub.
        config: the options, as of `resolve`.
        weights: patterns of files that are downloaded beside the settings.

    Raises:
        ModelNotFoundError, ModelWeightsError: as `resolve`; the second only if weights are no more
            than safetensors.
    """
    import huggingface_hub  # imported here: it loads slowly, and a local folder does not need it
    from huggingface_hub import errors

    tried = [f"folder {name!r}"]
    remedy, is_unknown = "", False
    for repo in _repositories(name):
        try:
            silence = silence_of(repo, config)
            try:
                download = partial(
                    huggingface_hub.snapshot_download,
                    repo,
                    revision=config.revision,
                    token=config.token,
                    cache_dir=config.cache_folder,
                    local_files_only=config.local_files_only or silence is not None,
                    ignore_patterns=list(_IGNORE),
                )
                snapshot = download(allow_patterns=[*_SETTINGS, *weights])
                if not any(Path(snapshot).rglob("tokenizer.json")):
                    download(allow_patterns=_VOCABULARY)
            except errors.LocalEntryNotFoundError as error:
                error.__cause__ = silence or error.__cause__  # what `explain` tells
                raise
        except Exception as error:  # the hub's client also raises errors of its HTTP library
            what, remedy = explain(error, config)
            tried.append(f"hub repository {repo!r} ({what})")
            if isinstance(error, errors.GatedRepoError) or not isinstance(
                error, (errors.RepositoryNotFoundError, errors.LocalEntryNotFoundError)
            ):
                # The message says all of an expected error; its traceback is a hundred lines long.
                cause = None if isinstance(error, expected_errors()) else error
                raise ModelNotFoundError(_not_found(name, tried, remedy)) from cause
            is_unknown = isinstance(error, errors.RepositoryNotFoundError)
            continue
        # The hub's cache names the folder after the commit: .../snapshots/<commit>.
        found = ModelFolder(name=name, path=Path(snapshot), revision=Path(snapshot).name)
        if weights == [WEIGHTS]:
            _check_weights(repo, found)
        if silence is None and may_have(found.path, MODULES):
            _ask_for_modules(repo, found.path.name, config)
        return found
    # With its owner a name that the hub was not asked for may be right.
    near = nearest_published(name) if is_unknown or "/" not in name else None
    if near is not None and near not in _repositories(name):
        remedy += f"; did you mean {near!r}?"
    raise ModelNotFoundError(_not_found(name, tried, remedy))


def silence_of(repo: str, config: Config) -> Exception | None:
    """Return the error of a hub that does not answer in time; None: it may be asked, or must not.

    `snapshot_download` asks it without a limit of time, also for a model that is in the cache. Here
    it is the client's own for its other questions.
    """
    from huggingface_hub import HfApi, constants

    if config.local_files_only or constants.HF_HUB_OFFLINE or _is_known(repo, config):
        return None
    try:
        HfApi(token=config.token).model_info(
            repo, revision=config.revision, timeout=constants.HF_HUB_ETAG_TIMEOUT
        )
    except Exception as error:
        # Of requests, or of httpx, which names them alike; `snapshot_download` meets all others.
        if "Timeout" in type(error).__name__:
            return error
    return None


def _is_known(repo: str, config: Config) -> bool:
    """Return whether the cache lists the files of the commit: then the client does not ask."""
    from huggingface_hub import try_to_load_from_cache

    if config.revision is None:
        return False
    cached = try_to_load_from_cache(repo, "config.json", config.cache_folder, config.revision)
    return isinstance(cached, str) and lists_files(Path(cached).parents[2], config.revision)


def _ask_for_modules(repo: str, commit: str, config: Config) -> None:
    """Ask the hub for modules.json, whose absence its client then remembers.

    `snapshot_download` returns what is cached if the hub cannot be asked, and does not say so. Then
    this does nothing either: `reading` refuses a model that needs the file.
    """
    import huggingface_hub
    from huggingface_hub import constants

    if config.local_files_only or constants.HF_HUB_OFFLINE:
        return  # hf_hub_download would open a connection all the same, to name the caller
    with suppress(Exception):  # the hub's client also raises errors of its HTTP library
        huggingface_hub.hf_hub_download(
            repo, MODULES, revision=commit, token=config.token, cache_dir=config.cache_folder
        )


def _not_found(name: str, tried: list[str], remedy: str) -> str:
    return f"no model {name!r}; tried {', '.join(tried)}; {remedy}"


def _check_weights(repo: str, found: ModelFolder) -> None:
    if not any(found.path.rglob(WEIGHTS)):
        pickle = pickle_of(found.path)
        if pickle is not None:
            raise ModelWeightsError(
                f"{repo!r} has its weights in {pickle}, a pickle, which can run code when it is "
                f"read; {how_to_convert(repo)}"
            )
        raise ModelWeightsError(
            f"{repo!r} at revision {found.revision} has no .safetensors weights here: either a "
            "download was interrupted (load it once online), or the repository holds only files of "
            "other formats; of ONNX take the model that it was exported from; of pickles, which "
            f"embedlib does not read because they can run code: {how_to_convert(repo)}"
        )
