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
from typing import IO

_MIB = 1 << 20


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
            lines = str(error).strip().splitlines()
            reply = {"error": f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def peak_memory_mib() -> float:
    """Return the peak resident memory of this process.

    Not `ru_maxrss` where it can be avoided: on Linux a child starts with its parent's.
    Source: proc_pid_status(5), `VmHWM`.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / _MIB
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / _MIB
