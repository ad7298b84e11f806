"""Programs that end as programs do, forked from a process that has imported what they need.

The imports take a core half a second, most of what such a program takes. A fork runs in `__main__`
and its interpreter is finalized as any other's, with all that happens there.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.waiting import WAIT_SECONDS

ROOT = Path(__file__).parents[2]
FORKS = """
import json, os, socket, sys
import embedlib.embedder, embedlib.testing, numpy, tokenizers

forks = socket.socket(fileno=int(sys.argv[1]))
while True:
    request, files, _, _ = socket.recv_fds(forks, 1 << 20, 2)
    if not request:
        sys.exit()
    process = os.fork()
    if process == 0:
        break
    for file in files:
        os.close(file)
    forks.sendall(b"%d\\n" % process)
    forks.sendall(b"%d\\n" % os.waitpid(process, 0)[1])
forks.close()
os.dup2(files[0], 1)
os.dup2(files[1], 2)
for file in files:
    os.close(file)
program, *sys.argv[1:] = json.loads(request)
del forks, request, files, file, process
exec(compile(program, "<program>", "exec"))
"""

RunProgram = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def run() -> Iterator[RunProgram]:
    """Return a function that runs a program, given in parts; a hang raises TimeoutError."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", FORKS, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        cwd=ROOT,
        # A fork has none of the threads of what was imported, so nothing may start any.
        env={**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
    )
    theirs.close()
    ours.settimeout(WAIT_SECONDS)
    answers = ours.makefile("r")

    def run(*parts: str, argument: object = "") -> subprocess.CompletedProcess[str]:
        program = "\n".join(textwrap.dedent(part) for part in parts)
        request = json.dumps([program, str(argument)]).encode()
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
            socket.send_fds(ours, [request], [out.fileno(), errors.fileno()])
            fork = int(answers.readline())
            try:
                status = int(answers.readline())
            except TimeoutError:
                os.kill(fork, signal.SIGKILL)
                raise
            out.seek(0)
            errors.seek(0)
            code = os.waitstatus_to_exitcode(status)
            return subprocess.CompletedProcess(program, code, out.read(), errors.read())

    yield run
    answers.close()
    ours.close()
    assert process.wait(WAIT_SECONDS) == 0
