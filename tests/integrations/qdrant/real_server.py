"""Real Qdrant servers for tests: one that runs already, or processes that are started here.

A server that runs is named by EMBEDLIB_TEST_QDRANT_URL (`qdrant://localhost:6334`). Others are
started from EMBEDLIB_TEST_QDRANT_BINARY, or from a `qdrant` on the PATH: the server's binary, or a
script that starts it with the arguments DIR HTTP_PORT GRPC_PORT. Without any of them the tests are
skipped.
"""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.ports import free_port
from tests.waiting import WAIT_SECONDS

URL = "EMBEDLIB_TEST_QDRANT_URL"
BINARY = "EMBEDLIB_TEST_QDRANT_BINARY"
NONE = f"needs a Qdrant server: set {URL}, or {BINARY}, or put qdrant on the PATH"
_READY_S = WAIT_SECONDS


def find_binary() -> str | None:
    """The program that starts a server, if there is one."""
    named = os.environ.get(BINARY)
    if named and not os.access(named, os.X_OK):
        raise FileNotFoundError(f"{BINARY} = {named!r}; there is no such program")
    return named or shutil.which("qdrant")


class QdrantServer:
    """A server on loopback with a folder of its own; killed and started again at will."""

    def __init__(
        self, binary: str, folder: Path, settings: Mapping[str, str] | None = None
    ) -> None:
        """Choose the ports; `settings` are Qdrant's, such as QDRANT__SERVICE__API_KEY."""
        self._binary = binary
        self._folder = folder
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self.http_port = free_port()
        self.port = free_port()
        self.is_encrypted = self._settings.get("QDRANT__SERVICE__ENABLE_TLS") == "true"

    @property
    def url(self) -> str:
        """Without a collection."""
        return f"{'qdrant+https' if self.is_encrypted else 'qdrant'}://127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> QdrantServer:
        """Start it and wait until it is ready."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), cwd=self._folder, env=self._environment(), stdout=log, stderr=log
            )
        for _ in range(_READY_S * 20):
            if self._is_ready():
                return self
            try:
                self._process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            break
        said = (self._folder / "log.txt").read_text(errors="replace")[-2000:]
        self.kill()
        raise RuntimeError(f"{self._binary} is not ready; its last words: {said}")

    def kill(self) -> None:
        """End it by SIGKILL, as a test of a crash does; its folder stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _command(self) -> list[str]:
        with open(self._binary, "rb") as file:
            is_script = file.read(2) == b"#!"
        if is_script:
            return [self._binary, str(self._folder), str(self.http_port), str(self.port)]
        return [self._binary, "--disable-telemetry"]

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "QDRANT__SERVICE__HOST": "127.0.0.1",
            "QDRANT__SERVICE__HTTP_PORT": str(self.http_port),
            "QDRANT__SERVICE__GRPC_PORT": str(self.port),
            "QDRANT__LOG_LEVEL": "WARN",
            **self._settings,
        }

    def _is_ready(self) -> bool:
        scheme = "https" if self.is_encrypted else "http"
        trusting = ssl._create_unverified_context() if self.is_encrypted else None
        try:
            address = f"{scheme}://127.0.0.1:{self.http_port}/readyz"
            urllib.request.urlopen(address, timeout=5, context=trusting).close()
            # Another thread of the server opens this one; the tests' sinks soon give up.
            socket.create_connection(("127.0.0.1", self.port), 5).close()
        except OSError:
            return False
        return True
