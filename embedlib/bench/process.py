"""The parent's end of a contestant's process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any, Protocol

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "RAYON_NUM_THREADS",
)
_END_TIMEOUT_S = 10


class ContestantFailedError(Exception):
    """A contestant could not do what it was asked.

    Attributes:
        reason: why, in one line, without the contestant's name.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} failed: {reason}")
        self.reason = reason


class Process(Protocol):
    """Something that answers calls; see `worker.ContestantCalls` for which."""

    def __enter__(self) -> Process:
        """Return itself."""

    def __exit__(self, *exc_info: object) -> None:
        """End it."""

    def call(self, name: str, **arguments: Any) -> Any:
        """Return the answer, or raise ContestantFailedError."""

    @property
    def age_s(self) -> float:
        """Time since it was started."""


class ChildProcess:
    """Runs `embedlib.bench.worker`. See `Process`."""

    def __init__(self, name: str, threads: int, library_threads: int | None = None) -> None:
        """Start it.

        Args:
            name: of the contestant.
            threads: cores it may use.
            library_threads: threads its numeric libraries start by themselves; None: `threads`.
        """
        self._name = name
        # Kept to tell why it died; nobody wants to read what libraries print otherwise.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._started_at = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "embedlib.bench.worker", name, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=_environment(library_threads or threads),
            encoding="utf-8",
        )

    def __enter__(self) -> ChildProcess:
        """Return itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End the process: politely after success, at once after an error."""
        if exc_info[0] is not None:
            self._process.kill()
        try:
            self._process.communicate(timeout=_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._log.close()

    @property
    def age_s(self) -> float:
        """Time since it was started."""
        return time.perf_counter() - self._started_at

    def call(self, name: str, **arguments: Any) -> Any:
        """Ask and wait for the answer.

        Raises:
            ContestantFailedError: it answered with an error, or died.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"call": name, "arguments": arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise ContestantFailedError(
                self._name, f"its process ended unexpectedly: {self._last_words()}"
            )
        reply = json.loads(line)
        if "error" in reply:
            raise ContestantFailedError(self._name, reply["error"])
        return reply["result"]

    def _last_words(self) -> str:
        status = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return f"exit status {status}" + (f", {lines[-1]}" if lines else "")


def _environment(library_threads: int) -> dict[str, str]:
    return {
        **os.environ,
        **dict.fromkeys(_THREAD_VARIABLES, str(library_threads)),
        # All get a folder: nothing has to be looked up, and an unreachable hub must not count as
        # loading time.
        "HF_HUB_OFFLINE": "1",
        "PYTHONIOENCODING": "utf-8",
    }
