"""text-embeddings-inference: its server, on this machine, as a contestant."""

from __future__ import annotations

import atexit
import http.client
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import LifoQueue
from typing import Any, Final

import numpy as np

from embedlib.bench.contestants.contestant import Contestant
from embedlib.bench.contestants.others import pooling_of
from embedlib.bench.servers import Server
from embedlib.measuring.child import Memory, memory_of
from embedlib.vectors.arrays import Vectors

BINARY: Final = "text-embeddings-router"
VARIABLE: Final = "EMBEDLIB_BENCH_TEI"
"""Names the server, where it is not on PATH."""

_TEXTS_PER_REQUEST: Final = 32
"""The most that the server takes by default."""
_REQUESTS_AT_ONCE: Final = 8


class TeiContestant(Contestant):
    """A server with its defaults, and a client that keeps it busy."""

    def load(self, folder: Path, cache_dir: Path, threads: int, options: dict[str, Any]) -> None:
        """Start the server, and wait until it answers.

        Raises:
            RuntimeError: there is none.
            ContestantFailedError: it ended, or is not ready in time.
        """
        binary = os.environ.get(VARIABLE) or shutil.which(BINARY)
        if binary is None:
            raise RuntimeError(f"no {BINARY} on PATH; install it, or name it in {VARIABLE}")
        command = [
            *(binary, "--model-id", str(folder), "--pooling", pooling_of(folder).replace("_", "-")),
            *("--hostname", "127.0.0.1", "--dtype", "float32", "--disable-spans"),
        ]
        self._server = Server(BINARY, command, ready="/health", writes_errors_to_stdout=True)
        atexit.register(self._server.close)
        self._idle: LifoQueue[http.client.HTTPConnection] = LifoQueue()
        for _ in range(_REQUESTS_AT_ONCE + 1):  # one for a query beside a bulk pass
            self._idle.put(http.client.HTTPConnection("127.0.0.1", self._server.port))

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
        body = json.dumps({"inputs": texts, "truncate": True})
        connection = self._idle.get()
        try:
            status, content = _post(connection, body)
        except ConnectionError:  # it was idle for longer than the server waits
            connection.close()  # and opened again by the next request
            status, content = _post(connection, body)
        finally:
            self._idle.put(connection)
        if status != http.HTTPStatus.OK:
            raise RuntimeError(f"status {status}: {content}")
        return np.array(content, np.float32)

    def memory(self) -> Memory:
        """Return the memory of the server."""
        return memory_of(self._server.process_id)


def _post(connection: http.client.HTTPConnection, body: str) -> tuple[int, Any]:
    connection.request("POST", "/embed", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    return response.status, json.loads(response.read())
