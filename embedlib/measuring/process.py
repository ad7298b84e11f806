"""The parent's end of a contestant's process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import IO, Any, Protocol

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


class OverBudgetError(ContestantFailedError):
    """A contestant did not answer in time."""


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


class JsonProcess:
    """Runs a program that answers JSON lines as `worker.serve` does. See `Process`."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it.

        Args:
            name: what messages call it.
            command: the program and its arguments.
            environment: all its variables.
        """
        self._name = name
        # Kept to tell why it died; nobody wants to read what libraries print otherwise.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._started_at = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            encoding="utf-8",
            start_new_session=True,  # what it starts itself can be ended with it
        )
        self._lines: SimpleQueue[str] = SimpleQueue()
        assert self._process.stdout is not None
        arguments = self._process.stdout, self._lines
        self._reader = threading.Thread(target=_read_lines, args=arguments, daemon=True)
        self._reader.start()

    def __enter__(self) -> JsonProcess:
        """Return itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End the process: politely after success, at once after an error."""
        if exc_info[0] is not None:
            self._kill()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()

    @property
    def age_s(self) -> float:
        """Time since it was started."""
        return time.perf_counter() - self._started_at

    def call(self, name: str, *, timeout_s: float | None = None, **arguments: Any) -> Any:
        """Ask and wait for the answer.

        Args:
            name: of the call.
            timeout_s: how long to wait; None: as long as it takes.
            **arguments: of the call.

        Raises:
            OverBudgetError: there was no answer in time; the process is of no more use.
            ContestantFailedError: it answered with an error, or died.
        """
        assert self._process.stdin is not None
        line = ""
        try:
            self._process.stdin.write(json.dumps({"call": name, "arguments": arguments}) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=timeout_s)
        except BrokenPipeError:
            pass
        except Empty:
            reason = f"{name} was given {timeout_s:.0f} s and took longer"
            raise OverBudgetError(self._name, reason) from None
        if not line:
            raise ContestantFailedError(
                self._name, f"its process ended unexpectedly: {self._last_words()}"
            )
        reply = json.loads(line)
        if "error" in reply:
            raise ContestantFailedError(self._name, reply["error"])
        return reply["result"]

    def _last_words(self) -> str:
        try:
            status = self._process.wait(timeout=_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._kill()
            status = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return f"exit status {status}" + (f", {lines[-1]}" if lines else "")

    def _kill(self) -> None:
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(self._process.pid, signal.SIGKILL)


class ChildProcess(JsonProcess):
    """Runs `embedlib.bench.worker`."""

    def __init__(self, name: str, threads: int, library_threads: int | None = None) -> None:
        """Start it.

        Args:
            name: of the contestant.
            threads: cores it may use.
            library_threads: threads its numeric libraries start by themselves; None: `threads`.
        """
        command = [sys.executable, "-m", "embedlib.bench.worker", name, str(threads)]
        super().__init__(name, command, _environment(library_threads or threads))

    def __enter__(self) -> ChildProcess:
        """Return itself."""
        return self


def _read_lines(stream: IO[str], lines: SimpleQueue[str]) -> None:
    """Hand lines on; an empty one is the end."""
    for line in stream:
        lines.put(line)
    lines.put("")


def _environment(library_threads: int) -> dict[str, str]:
    return {
        **os.environ,
        **dict.fromkeys(_THREAD_VARIABLES, str(library_threads)),
        # All get a folder: nothing has to be looked up, and an unreachable hub must not count as
        # loading time.
        "HF_HUB_OFFLINE": "1",
        "PYTHONIOENCODING": "utf-8",
    }
