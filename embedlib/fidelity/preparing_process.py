"""The process beside an Embedder that measures faster precisions; `session.preparing` starts it.

It reads one line, the task as JSON, and prints one line, what it found. It ends at once when its
input ends: then the program that started it is gone.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

from embedlib.config import Config
from embedlib.engines.machine import Machine
from embedlib.engines.registry import find_kind
from embedlib.errors import EmbedlibError, typed_line
from embedlib.fidelity.preparing import prepare
from embedlib.session.preparing import Task

LOWEST_PRIORITY: Final = 19
PR_SET_PDEATHSIG: Final = 1
"""Source: linux/prctl.h."""
FIRST_TO_KILL: Final = "1000"
"""Source: proc_pid_oom_score_adj(5): the kernel ends such a process first when memory is short."""


def main(tasks: TextIO, answers: TextIO) -> None:
    """Do the task of one line of `tasks`; print one line that says what was found."""
    wake_without_parent()
    task = read_task(tasks.readline())
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_KILL, encoding="ascii")
    if task.is_background:
        lower_priority()
    end = partial(end_untried, task)
    threading.Thread(
        target=end_with_input, args=(tasks, end), name="embedlib-parent", daemon=True
    ).start()
    try:
        answer = prepare(task)
    except Exception as error:  # of a bug, too: nobody sees a traceback of this process
        answer = str(error) if isinstance(error, EmbedlibError) else typed_line(error)
    line = " ".join(answer.split()).encode("ascii", "backslashreplace").decode()  # a path, of bytes
    with suppress(OSError):  # nobody reads any more
        print(line, file=answers, flush=True)


def wake_without_parent() -> None:
    """Let the kernel wake this process when the one that started it ends, also if it is killed.

    It may have been stopped (`session.giving_way`), and so see no end of its input. The hangup
    signal that ends stopped processes does not come where the new parent is in the same session:
    the first process of a container is, and so is a server's master process there.
    """
    with suppress(AttributeError):  # not Linux
        # It also comes when the thread that started this process ends, which changes little.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)


def read_task(line: str) -> Task:
    """Return the task from its JSON."""
    content = json.loads(line)
    return Task(**{**content, "precisions": tuple(content["precisions"])})


def end_with_input(tasks: TextIO, end: Callable[[int], Any] = os._exit) -> None:
    """Wait until the input ends, and end this process."""
    with suppress(OSError, ValueError):
        tasks.read()
    end(1)


def end_untried(task: Task, status: int) -> None:
    """End this process, and say before that it died of nothing that it was trying."""
    try:
        config = Config(**task.options)
        kind = find_kind(config.engine, Machine())
        if kind.forget_process is not None:
            kind.forget_process(os.getpid(), config)
    finally:
        os._exit(status)


def lower_priority() -> None:
    """Let everything else on this machine go first; threads made later inherit it."""
    with suppress(OSError):
        os.nice(LOWEST_PRIORITY)
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
