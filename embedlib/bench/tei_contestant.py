"""text-embeddings-inference: its server, on this machine, as a contestant."""

from __future__ import annotations

import atexit
import http.client
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np

from embedlib.bench.contestant import Contestant
from embedlib.bench.other_contestants import pooling_of
from embedlib.measuring.child import Memory, memory_of
from embedlib.measuring.process import free_port, last_line
from embedlib.vectors.arrays import Vectors

BINARY: Final = "text-embeddings-router"
VARIABLE: Final = "EMBEDLIB_BENCH_TEI"
"""Names the server, where it is not on PATH."""

_TEXTS_PER_REQUEST: Final = 32
"""The most that the server takes by default."""
_REQUESTS_AT_ONCE: Final = 8
_START_TIMEOUT_S: Final = 600
_POLL_S: Final = 0.02


class TeiContestant(Contestant):
    """A server with its defaults, and a client that keeps it busy."""

    def load(self, folder: Path, cache_dir: Path, threads: int, options: dict[str, Any]) -> None:
        """Start the server, and wait until it answers.

        Raises:
            RuntimeError: there is none, or it ended.
        """
        binary = os.environ.get(VARIABLE) or shutil.which(BINARY)
        if binary is None:
            raise RuntimeError(f"no {BINARY} on PATH; install it, or name it in {VARIABLE}")
        self._port = free_port()
        self._local = threading.local()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        command = [
            *(binary, "--model-id", str(folder), "--pooling", pooling_of(folder).replace("_", "-")),
            *("--hostname", "127.0.0.1", "--port", str(self._port), "--dtype", "float32"),
            "--disable-spans",
        ]
        self._server = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        atexit.register(self._end)
        self._wait()

    def _wait(self) -> None:
        for _ in range(int(_START_TIMEOUT_S / _POLL_S)):
            if self._server.poll() is not None:
                raise RuntimeError(f"{BINARY} ended: {last_line(self._log) or 'it wrote nothing'}")
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == http.HTTPStatus.OK:
                    return
            except OSError:
                pass
            time.sleep(_POLL_S)
        raise RuntimeError(f"{BINARY} did not answer within {_START_TIMEOUT_S} s")

    def _end(self) -> None:
        self._server.terminate()
        self._server.wait()

    def encode(self, texts: list[str], batch_size: int | None) -> Vectors:
        """Send requests of 32 texts, eight at a time."""
        starts = range(0, len(texts), _TEXTS_PER_REQUEST)
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
            parts = pool.map(
                lambda start: self._ask(texts[start : start + _TEXTS_PER_REQUEST]), starts
            )
            return np.concatenate(list(parts))

    def query(self, text: str) -> Vectors:
        """Send a request of one text."""
        vector: Vectors = self._ask([text])[0]
        return vector

    def _ask(self, texts: list[str]) -> Vectors:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self._port)
            self._local.connection = connection
        body = json.dumps({"inputs": texts, "truncate": True})
        connection.request("POST", "/embed", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = json.loads(response.read())
        if response.status != http.HTTPStatus.OK:
            raise RuntimeError(f"status {response.status}: {content}")
        return np.array(content, np.float32)

    def memory(self) -> Memory:
        """Return the memory of the server."""
        return memory_of(self._server.pid)
