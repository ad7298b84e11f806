"""The parent's end of a contestant's process; `child` is the other end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import IO, Any, Final, Protocol

from embedlib.errors import without_passwords
from embedlib.measuring.child import END_SECONDS

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "RAYON_NUM_THREADS",
)
_START: Final = (
    "import sys; end = int(sys.argv[1]) + 2; "
    "sys.path[:] = sys.argv[2:end] or [path for path in sys.path if path]; del sys.argv[1:end]; "
    "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
"""Runs a module as `python -m` does, but not with the current folder in front of the import path:
it is that of a project, whose json.py or numpy.py would be run in the place of the libraries."""
MAX_REASON_CHARS: Final = 300
"""Some libraries list all that they know in an error: hundreds of names."""


class ContestantFailedError(Exception):
    """A call to a contestant failed.

    Attributes:
        reason: the cause, in one line of bounded length, without the contestant's name, and without
            passwords: results keep it.
    """

    def __init__(self, name: str, reason: str) -> None:
        reason = without_passwords(reason)
        if len(reason) > MAX_REASON_CHARS:
            reason = f"{reason[:MAX_REASON_CHARS]} ..."
        super().__init__(f"{name} failed: {reason}")
        self.reason = reason


class OverBudgetError(ContestantFailedError):
    """A contestant did not answer in time."""


class Process(Protocol):
    """A process that answers calls; the program it runs defines which."""

    def __enter__(self) -> Process: ...

    def __exit__(self, *exc_info: object) -> None: ...

    def call(self, name: str, **arguments: Any) -> Any:
        """Return the answer, or raise ContestantFailedError."""

    @property
    def age_s(self) -> float:
        """Time since the process was started."""


class JsonProcess:
    """Runs a program that answers JSON lines as `child.serve` does. See `Process`."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        limit_s: float | None = None,
    ) -> None:
        """Start the program.

        Args:
            name: the name of the contestant, for error messages.
            command: the program and its arguments.
            environment: all environment variables of the program.
            limit_s: the longest time that a call may take, unless it says so itself; None: no
                limit.
        """
        self._name = name
        self._limit_s = limit_s
        # Libraries print a lot, which is shown only where the process died: its last line.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._started_at = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            encoding="utf-8",
            start_new_session=True,  # so that _kill also ends the processes it has started
        )
        self._lines: SimpleQueue[str] = SimpleQueue()
        assert self._process.stdout is not None
        arguments = self._process.stdout, self._lines
        self._reader = threading.Thread(target=_read_lines, args=arguments, daemon=True)
        self._reader.start()

    def __enter__(self) -> JsonProcess:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close its input and wait; kill it after an error, or when it does not end in time.

        What it has started is killed in any case: a process that died leaves it behind.
        """
        if exc_info[0] is not None:
            self._kill()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=END_SECONDS)
        self._kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()

    @property
    def age_s(self) -> float:
        """Time since the process was started."""
        return time.perf_counter() - self._started_at

    def call(self, name: str, *, timeout_s: float | None = None, **arguments: Any) -> Any:
        """Send a call and wait for the answer.

        Args:
            name: the name of the call.
            timeout_s: the longest time to wait; None: the limit of the process.
            **arguments: the arguments of the call.

        Raises:
            OverBudgetError: there was no answer in time; the process was killed.
            ContestantFailedError: the process answered with an error, or died.
        """
        assert self._process.stdin is not None
        timeout_s = self._limit_s if timeout_s is None else timeout_s
        line = ""
        try:
            self._process.stdin.write(json.dumps({"call": name, "arguments": arguments}) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=timeout_s)
        except BrokenPipeError:
            pass
        except Empty:
            self._kill()  # it may still compute, beside others that are measured
            reason = f"{name} was given {timeout_s:.0f} s and took longer"
            raise OverBudgetError(self._name, reason) from None
        if not line.endswith("\n"):  # nothing, or the beginning of an answer
            raise ContestantFailedError(
                self._name, f"its process ended unexpectedly: {self._last_words()}"
            )
        reply = json.loads(line)
        if "error" in reply:
            raise ContestantFailedError(self._name, reply["error"])
        return reply["result"]

    def _last_words(self) -> str:
        try:
            status = self._process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
            status = self._process.wait()
        said = last_line(self._log)
        return f"exit status {status}" + (f", {said}" if said else "")

    def _kill(self) -> None:
        with suppress(ProcessLookupError):  # it has already ended
            os.killpg(self._process.pid, signal.SIGKILL)


def module_command(module: str, *arguments: str, python: str | None = None) -> list[str]:
    """Return the command that runs a module.

    Args:
        module: its name.
        *arguments: that it is given.
        python: the interpreter, with an import path of its own; None: this one, with that of this
            process.
    """
    paths = [path for path in sys.path if isinstance(path, str)] if python is None else []
    return [python or sys.executable, "-c", _START, str(len(paths)), *paths, module, *arguments]


class ChildProcess(JsonProcess):
    """Runs a Python module with the arguments NAME and THREADS, offline."""

    def __init__(
        self,
        module: str,
        name: str,
        threads: int,
        library_threads: int | None = None,
        python: str | None = None,
        limit_s: float | None = None,
    ) -> None:
        """Start the process.

        Args:
            module: the module to run; it answers as `child.serve` does.
            name: the name of the contestant.
            threads: the number of cores it may use.
            library_threads: threads that its numeric libraries start; None: `threads`.
            python: the interpreter; None: this one.
            limit_s: as of `JsonProcess`.
        """
        command = module_command(module, name, str(threads), python=python)
        super().__init__(name, command, _environment(library_threads or threads), limit_s)


def free_port() -> int:
    """Return a port of the loopback address that no program listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def last_line(log: IO[bytes]) -> str:
    """Return the last line of what a process wrote; empty: it wrote nothing."""
    log.seek(0)
    lines = log.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def _read_lines(stream: IO[str], lines: SimpleQueue[str]) -> None:
    """Put the lines of a stream into a queue, and an empty line at its end."""
    for line in stream:
        lines.put(line)
    lines.put("")


def _environment(library_threads: int) -> dict[str, str]:
    return {
        **os.environ,
        **dict.fromkeys(_THREAD_VARIABLES, str(library_threads)),
        # Contestants load from a folder. Without this, waiting for an unreachable hub would count
        # as loading time.
        "HF_HUB_OFFLINE": "1",
        "PYTHONIOENCODING": "utf-8",
    }
