"""What is known of a model of the hub before its weights are downloaded.

Its settings are downloaded, and of its weights the headers, which tell names, types and shapes of
tensors. That is enough to refuse a model that is not supported or does not fit into memory, and to
say what it would need: in a second, and not behind gigabytes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from typing import Final

from embedlib.config import Config
from embedlib.errors import EmbedlibError
from embedlib.models.hub import (
    ModelFolder,
    find_model,
    is_in_cache,
    may_be_on_hub,
    weight_sizes,
)
from embedlib.models.hub_cache import hub_name
from embedlib.models.weights.safetensors_files import HEADER_LENGTH_BYTES, MAX_HEADER_BYTES

TIMEOUT: Final = 10
"""Seconds that the hub may take for a part of an answer; its client's own is the same."""


@contextmanager
def outline(name: str, config: Config, min_bytes: int) -> Iterator[ModelFolder | None]:
    """Yield a folder with the settings of a hub model and the headers of its weights.

    Each file of weights has its true size, and a hole where the tensors would be, which takes no
    room on the disk. In errors that the block raises the model has its name.

    Yields None where a load would download nothing, or weights of less than `min_bytes`; and where
    the hub does not give the headers, so that the load itself must tell what is wrong.

    Args:
        name: as for `hub.resolve`.
        config: the options.
        min_bytes: of weights.

    Raises:
        ModelNotFoundError: no model has this name.
    """
    if not _is_downloaded(name, config):
        yield None
        return
    found = find_model(name, config, with_weights=False)
    with tempfile.TemporaryDirectory(prefix="embedlib-outline-") as scratch:
        path = Path(scratch) / "model"
        try:
            is_made = _write(found, path, config, min_bytes)
        except Exception:  # the hub's client also raises errors of its HTTP library
            is_made = False
        try:
            yield replace(found, path=path) if is_made else None
        except EmbedlibError as error:
            error.args = tuple(
                each.replace(str(path), found.name) if isinstance(each, str) else each
                for each in error.args
            )
            raise


def _is_downloaded(name: str, config: Config) -> bool:
    """Return whether a load would download weights."""
    if not may_be_on_hub(name) or config.local_files_only:
        return False
    from huggingface_hub import constants

    return not constants.HF_HUB_OFFLINE and not is_in_cache(name, config)


def _write(found: ModelFolder, path: Path, config: Config, min_bytes: int) -> bool:
    """Write the outline of a model; False: its weights are small, or not of safetensors.

    Raises:
        OSError: the hub gives no header, or the disk takes no such file.
        HTTPException: as above.
        an error of the hub's client: it lists no files.
    """
    from huggingface_hub import HfApi, hf_hub_url
    from huggingface_hub.hf_api import RepoFile
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    repo = hub_name(found.path.parent.parent)
    entries = HfApi(token=config.token).list_repo_tree(
        repo, recursive=True, revision=found.revision
    )
    sizes = weight_sizes({each.path: each.size for each in entries if isinstance(each, RepoFile)})
    if not sizes or sum(sizes.values()) < min_bytes:
        return False
    # Links: other libraries may have left large files in the cache.
    shutil.copytree(found.path, path, copy_function=_link)
    headers = build_hf_headers(token=config.token)
    for name, size in sizes.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        url = hf_hub_url(repo, name, revision=found.revision)
        with (path / name).open("xb") as stream:
            stream.write(_read_header(url, headers))
            stream.truncate(size)
    return True


def _link(source: str, target: str) -> None:
    os.symlink(os.path.realpath(source), target)


def _read_header(url: str, headers: dict[str, str]) -> bytes:
    """Return the beginning of a file of weights: the length of its header, and the header.

    Reads no more, whatever the server makes of `Range`.

    Raises:
        OSError: it cannot be had.
        HTTPException: as above.
    """
    request = urllib.request.Request(url, headers={"Range": f"bytes=0-{MAX_HEADER_BYTES}"})
    for key, value in headers.items():
        request.add_unredirected_header(key, value)  # the token is for the hub, not for its stores
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        length = response.read(HEADER_LENGTH_BYTES)
        num_bytes = int.from_bytes(length, "little")
        if num_bytes > MAX_HEADER_BYTES:
            raise HTTPException(f"{url}: no header of safetensors")
        return bytes(length + response.read(num_bytes))
