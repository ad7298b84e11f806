"""Servers as contestants of `embedlib bench --serve`: started, waited for, ended."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from embedlib.measuring.process import (
    ContestantFailedError,
    free_port,
    last_line,
    module_command,
)

START_TIMEOUT_S = 600.0
END_TIMEOUT_S = 60.0
_POLL_S = 0.05


class Server:
    """A server of ours in a process of its own."""

    def __init__(
        self, name: str, module: str, arguments: Sequence[str] = (), *, has_port_option: bool
    ) -> None:
        """Start it on a free port, and wait until it is ready.

        Args:
            name: for messages.
            module: to run.
            arguments: that it is given.
            has_port_option: whether the port comes as `--port`, or as the last argument.

        Raises:
            ContestantFailedError: it ended, or is not ready in time.
        """
        self._port = free_port()
        self._name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close
        port = ["--port", str(self._port)] if has_port_option else [str(self._port)]
        self._process = subprocess.Popen(
            module_command(module, *arguments, *port),
            stdout=subprocess.DEVNULL,  # the access log; who serves keeps it elsewhere
            stderr=self._errors,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """The address of its embeddings route."""
        return f"http://127.0.0.1:{self._port}/v1/embeddings"

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

    def _wait(self) -> None:
        until = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise ContestantFailedError(self._name, last_line(self._errors) or "it ended")
            with (
                suppress(OSError),  # a process in its start
                closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)) as asked,
            ):
                asked.request("GET", "/ready")
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
