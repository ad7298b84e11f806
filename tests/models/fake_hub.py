"""A hub on loopback that the real client of huggingface_hub loads from."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import pytest
from huggingface_hub import constants, file_download

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """Repositories, as folders, and what was asked of them."""

    folders: dict[str, Path]
    """By name: OWNER/NAME."""
    sends_weights: bool = True
    """False: requests of files of weights are refused."""
    ranges: Literal["taken", "ignored", "refused"] = "taken"
    """What is made of requests for a part of a file."""
    commit: str = COMMIT
    """The latest of every repository."""
    stores: str = ""
    """Address of another host that files of weights are redirected to, as the real hub does."""
    url: str = ""
    tokens: list[str | None] = field(default_factory=list)
    """The header `Authorization` of each request of a file of weights."""
    listed: dict[str, int] = field(default_factory=dict)
    """Names and sizes of files that are listed in every repository, and are not there."""
    most_bytes: int | None = None
    """A connection breaks after so many bytes of a file of weights."""

    def rows_of(self, folder: Path) -> list[dict[str, Any]]:
        """Return the files of a repository, as the hub lists them."""
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
        return [
            {"type": "file", "path": name, "size": size, "oid": _sha1(name)}
            for name, size in {**sizes, **self.listed}.items()
        ]


def _sha1(name: str) -> str:
    return hashlib.sha1(name.encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        repo = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        folder = self.hub.folders.get(repo)
        if folder is None:
            self._send(b"{}", {"X-Error-Code": "RepoNotFound"}, status=404)
        elif parts[0] != "api":
            self._send_file(folder, "/".join(parts[4:]))
        else:
            rows = self.hub.rows_of(folder)
            if parts[4] == "revision":
                siblings = [{"rfilename": row["path"], "size": row["size"]} for row in rows]
                answer: object = {"id": repo, "sha": self.hub.commit, "siblings": siblings}
            else:
                answer = rows
            self._send(json.dumps(answer).encode())

    do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

    def _send_file(self, folder: Path, name: str) -> None:
        is_of_weights = name.endswith(".safetensors")
        if is_of_weights:
            self.hub.tokens.append(self.headers.get("Authorization"))
            if not self.hub.sends_weights:
                self._send(b"", status=503)
                return
            if self.hub.stores:
                self._send(b"", {"Location": f"{self.hub.stores}{self.path}"}, status=302)
                return
        content = (folder / name).read_bytes()
        etag = {"ETag": f'"{_sha1(name)}"', "X-Repo-Commit": self.hub.commit}
        wanted = self.headers.get("Range")
        if wanted is not None and self.hub.ranges == "refused":
            self._send(b"", status=403)
        elif wanted is None or self.hub.ranges == "ignored":
            self._send(content, etag)
        else:
            first, last = wanted.removeprefix("bytes=").split("-")
            self._send(content[int(first) : int(last) + 1], etag, status=206)

    def _send(
        self, content: bytes, headers: dict[str, str] | None = None, status: int = 200
    ) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            is_cut = ".safetensors" in self.path and self.hub.most_bytes is not None
            self.wfile.write(content[: self.hub.most_bytes] if is_cut else content)
            self.close_connection |= is_cut


@contextmanager
def serve_hub(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve a hub until the block ends."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="fake-hub")
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


def use_hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client in this process ask this hub."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    # huggingface_hub 0.x has a copy of it.
    monkeypatch.setattr(file_download, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
