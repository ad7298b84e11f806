"""The one server that runs: a suite asks for models, and gets a URL."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from embedlib.bench.servers import Server
from embedlib.measuring.process import module_command

models_folder = Path()
"""Where the models are, by name; set by the plugin."""
_running: dict[tuple[str, ...], Server] = {}


def url_of(models: Sequence[str], *options: str, key: str = "") -> str:
    """Return the URL of a server of these models; the one before ends, unless it is the same."""
    asked = (*models, *options, key)
    if asked not in _running:
        end()
        _running[asked] = _start(models, options, key)
    return _running[asked].url.removesuffix("/v1/embeddings")


def end() -> None:
    """End the server that runs."""
    while _running:
        _running.popitem()[1].close()


def _start(models: Sequence[str], options: Sequence[str], key: str) -> Server:
    arguments = ["serve", "--precision", "float32", *options]
    for name in models:
        arguments += [folder := str(models_folder / name), "--name", f"{name}={folder}"]
    if not key:
        return Server("embedlib serve", module_command("embedlib", *arguments))
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write(key)
        keys.flush()  # read while the server starts
        arguments += ["--api-keys-file", keys.name]
        return Server("embedlib serve", module_command("embedlib", *arguments))
