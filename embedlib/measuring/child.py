"""The child's end of a contestant's process: answers calls that arrive as JSON lines.

A line is {"call": name, "arguments": {...}}; the answer is one line, {"result": ...} or
{"error": "..."}. The process ends when its standard input does. `process.JsonProcess` is the
parent's end.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import IO, Literal

from embedlib.errors import typed_line

_MIB = 1 << 20
_STATUS_LINES = {"VmHWM:": "peak", "RssAnon:": "anonymous"}


def serve_standard_streams(calls: object) -> None:
    """Answer requests from standard input on standard output.

    Libraries print to standard output, too; what they print goes to standard error instead.
    """
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(calls, sys.stdin, replies)


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
