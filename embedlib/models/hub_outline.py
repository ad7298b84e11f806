"""What is known of a model of the hub before its weights are downloaded.

Its settings are downloaded, and of its weights the headers, which tell names, types and shapes of
tensors. That is enough to refuse a model that is not supported or does not fit into memory, and to
say what it would need: in a second, and not behind gigabytes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from embedlib.config import Config
from embedlib.errors import EmbedlibError, ModelError
from embedlib.models.hub import ModelFolder, may_be_on_hub, resolve, weights_of
from embedlib.models.hub_cache import hub_name
from embedlib.models.reading.json_files import JsonObject
from embedlib.models.weights.safetensors_files import HEADER_LENGTH_BYTES, MAX_HEADER_BYTES

TIMEOUT: Final = 10
"""Seconds that the hub may take for a part of an answer; its client's own is the same."""
_INDEX: Final = "*.safetensors.index.json"


def is_downloaded(name: str | os.PathLike[str], config: Config) -> bool:
    """Return whether a load downloads weights: it asks the hub, whose cache lacks them."""
    if isinstance(name, os.PathLike) or not may_be_on_hub(name) or config.local_files_only:
        return False
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        found = resolve(name, replace(config, local_files_only=True), with_weights=False)
    except ModelError:
        return True
    return not _has_weights(found.path)


def _has_weights(snapshot: Path) -> bool:
    """Return whether a snapshot of the hub has weights, and all files that their index names."""
    try:
        shards = [
            index.parent / str(name)
            for index in snapshot.rglob(_INDEX)
            for name in JsonObject.load(index, snapshot).child("weight_map").values.values()
        ]
    except ModelError:  # told where it is read
        return False
    return any(snapshot.rglob("*.safetensors")) and all(map(os.path.exists, shards))


def missing_weights(found: ModelFolder, config: Config) -> Mapping[str, int] | None:
    """Return names and sizes of the weights that a load would download; None: the hub tells none.

    Args:
        found: the settings of the model.
        config: the options.
    """
    from huggingface_hub import HfApi

    repo = hub_name(found.path.parent.parent)
    try:
        info = HfApi(token=config.token).model_info(
            repo, revision=found.revision, files_metadata=True, timeout=TIMEOUT
        )
    except Exception:  # the hub's client also raises errors of its HTTP library
        return None
    files = {file.rfilename: file.size for file in info.siblings or ()}
    sizes = {name: files[name] for name in weights_of(files) if not (found.path / name).exists()}
    known = {name: size for name, size in sizes.items() if size is not None and _is_inside(name)}
    return known if len(known) == len(sizes) else None


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


@contextmanager
def outline(
    found: ModelFolder, missing: Mapping[str, int], config: Config
) -> Iterator[ModelFolder | None]:
    """Yield a folder with the settings of a model, and the headers of the weights that are missing.

    Each of these files has its true size, and a hole where the tensors would be, which takes no
    room on the disk. In errors that the block raises the model has its name. Yields None where the
    hub does not give the headers, or the disk takes no such files.

    Args:
        found: the settings of the model, and the weights that are there.
        missing: names and sizes of the others.
        config: the options.
    """
    with ExitStack() as stack:
        made: ModelFolder | None = None
        with suppress(Exception):  # the hub's client also raises errors of its HTTP library
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="embedlib-outline-"))
            path = _copy(found.path, Path(scratch))
            for name, size in missing.items():
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                with (path / name).open("xb") as stream:
                    stream.write(_read_header(found, name, size, config))
                    stream.truncate(size)
            made = replace(found, path=path)
        try:
            yield made
        except EmbedlibError as error:
            if made is not None:
                error.args = tuple(
                    each.replace(str(made.path), made.name) if isinstance(each, str) else each
                    for each in error.args
                )
            raise


def _copy(snapshot: Path, scratch: Path) -> Path:
    """Copy a snapshot, and what the hub's cache knows of files that it lacks; see `hub_cache`.

    The files are links: other libraries may have left large ones in the cache.
    """
    repository = snapshot.parent.parent
    path = scratch / repository.name / "snapshots" / snapshot.name
    shutil.copytree(snapshot, path, copy_function=_link)
    for known in (".no_exist", "trees"):
        _link(str(repository / known), str(scratch / repository.name / known))
    return path


def _link(source: str, target: str) -> None:
    os.symlink(os.path.realpath(source), target)


def _read_header(found: ModelFolder, name: str, size: int, config: Config) -> bytes:
    """Return the beginning of a file of weights: the length of its header, and the header.

    Reads no more, whatever the server makes of `Range`.

    Raises:
        ValueError: it is no file of safetensors, or did not come in full.
        an error of the hub's client or of its HTTP library.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    url = hf_hub_url(hub_name(found.path.parent.parent), name, revision=found.revision)
    headers = build_hf_headers(token=config.token)
    headers |= {"Range": f"bytes=0-{MAX_HEADER_BYTES}", "Accept-Encoding": "identity"}
    content = bytearray()
    with _streamed(url, headers) as parts:
        for part in parts:
            content += part
            if len(content) < HEADER_LENGTH_BYTES:
                continue
            end = HEADER_LENGTH_BYTES + int.from_bytes(content[:HEADER_LENGTH_BYTES], "little")
            if end > min(size, MAX_HEADER_BYTES):
                break
            if len(content) >= end:
                return bytes(content[:end])
    raise ValueError(f"{name}: no header of safetensors came")


@contextmanager
def _streamed(url: str, headers: Mapping[str, str]) -> Iterator[Iterator[bytes]]:
    """Yield the parts of an answer as they come, by the session of the hub's client.

    It has the proxies and certificates of the user, and gives a token to the hub alone.
    """
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    session: Any = get_session()
    if callable(session.stream):  # httpx, from version 1 on; of requests it is a setting
        answer = session.stream("GET", url, headers=headers, timeout=TIMEOUT)
    else:
        answer = session.get(url, headers=headers, timeout=TIMEOUT, stream=True)
    with answer as response:
        response.raise_for_status()
        parts = response.iter_bytes if hasattr(response, "iter_bytes") else response.iter_content
        yield parts(1 << 14)
