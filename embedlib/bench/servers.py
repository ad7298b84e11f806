"""Servers as contestants: started, waited for, ended."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from embedlib.measuring.process import ContestantFailedError, free_port, last_line

START_TIMEOUT_S = 600.0
END_TIMEOUT_S = 60.0
_POLL_S = 0.02
_ENDS_WITH_PARENT: Final = (
    "import ctypes, os, sys; libc = ctypes.CDLL(None); "
    "hasattr(libc, 'prctl') and libc.prctl(1, 15); os.execvp(sys.argv[1], sys.argv[1:])"
)
"""Runs a program that the kernel ends if the one that started it is killed; on Linux alone.

Source: prctl(2), PR_SET_PDEATHSIG, which outlives execve."""


class Server:
    """A server in a process of its own."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        ready: str = "/ready",
        writes_errors_to_stdout: bool = False,
    ) -> None:
        """Start it on a free port, and wait until it is ready.

        Args:
            name: for messages.
            command: the program and its arguments; `--port` and a number come behind them.
            ready: the path that answers with 200 once it is ready.
            writes_errors_to_stdout: or only an access log, which who serves keeps elsewhere.

        Raises:
            ContestantFailedError: it ended, or is not ready in time.
        """
        self.port = free_port()
        self._name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _ENDS_WITH_PARENT, *command, "--port", str(self.port)],
            stdout=self._errors if writes_errors_to_stdout else subprocess.DEVNULL,
            stderr=self._errors,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        try:
            self._wait(ready)
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """The address of its embeddings route."""
        return f"http://127.0.0.1:{self.port}/v1/embeddings"

    @property
    def process_id(self) -> int:
        """Of the process that serves."""
        return self._process.pid

    @property
    def cpu_s(self) -> float:
        """Seconds that its threads have computed."""
        return cpu_seconds(self.process_id)

    def close(self) -> None:
        """End it as its users do."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _wait(self, ready: str) -> None:
        until = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise ContestantFailedError(self._name, last_line(self._errors) or "it ended")
            with (
                suppress(OSError),  # a process in its start
                closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)) as asked,
            ):
                asked.request("GET", ready)
                if asked.getresponse().status == http.HTTPStatus.OK:
                    return
            time.sleep(_POLL_S)
        raise ContestantFailedError(self._name, f"it is not ready after {START_TIMEOUT_S:.0f} s")


def cpu_seconds(process: int) -> float:
    """Return the seconds that the threads of a process have computed; nan without /proc.

    Source: proc_pid_stat(5), fields 14 and 15; the second field may hold spaces.
    """
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return float("nan")
    words = text.rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
