"""The child's end of a contestant's process: answers calls that arrive as JSON lines.

A line is {"call": name, "arguments": {...}}; the answer is one line, {"result": ...} or
{"error": "..."}. The process ends when its standard input does. `process.JsonProcess` is the
parent's end.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO, Final, Literal

from embedlib.errors import typed_line

END_SECONDS: Final = 10
"""For what is going on when the input ends."""

_MIB = 1 << 20
_STATUS_LINES = {"VmHWM:": "peak", "RssAnon:": "anonymous"}


def serve_standard_streams(calls: object) -> None:
    """Answer requests from standard input on standard output.

    Libraries print to standard output, too; what they print goes to standard error instead.
    """
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if os.getpgrp() == os.getpid():  # not of somebody who tries it out in a shell's script
        threading.Thread(target=end_with_input, name="embedlib-parent", daemon=True).start()
    serve(calls, sys.stdin, replies)


def end_with_input(seconds: float = END_SECONDS) -> None:
    """Wait until the input ends, and kill this process group if it does not end by itself then.

    Where the parent was killed a call may go on for an hour, and nobody wants its result.
    """
    poll = select.poll()
    poll.register(0, 0)  # of no event but its end: the input itself is for `serve`
    poll.poll()
    time.sleep(seconds)
    os.killpg(0, signal.SIGKILL)


def serve(calls: object, requests: IO[str], replies: IO[str]) -> None:
    """Call the named method of `calls` for every request, until the requests end."""
    for line in requests:
        request = json.loads(line)
        try:
            reply = {"result": getattr(calls, request["call"])(**request["arguments"])}
        except Exception as error:  # the parent decides what to do about a failure
            import traceback

            traceback.print_exc()
            reply = {"error": typed_line(error)}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


Memory = dict[str, float]
"""In MiB: "peak" is the most that was ever resident, "anonymous" what no file backs now."""


def memory_of(process: int | Literal["self"]) -> Memory:
    """Return the memory of a process; without /proc, the peak of this one alone.

    Not `ru_maxrss` where it can be avoided: on Linux a child starts with its parent's.
    Source: proc_pid_status(5), `VmHWM` and `RssAnon`.
    """
    try:
        text = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / _MIB}
    lines = (line.split() for line in text.splitlines())
    kib = {words[0]: int(words[1]) for words in lines if words[0] in _STATUS_LINES}
    return {name: kib[line] * 1024 / _MIB for line, name in _STATUS_LINES.items() if line in kib}
