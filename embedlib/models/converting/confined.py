"""Takes away from this process what reading a file does not need: sockets and other programs.

Opened files stay readable, and files can be written: a converted model is. The reader of pickles
runs nothing of them, so this is a second wall, for an error in the first.

Source: Linux, Documentation/userspace-api/seccomp_filter.rst, and the tables of system calls of
x86-64 and arm64; the numbers never change.
"""

from __future__ import annotations

import ctypes
import platform
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

_PR_SET_SECCOMP: Final = 22
_PR_SET_NO_NEW_PRIVS: Final = 38
_MODE_FILTER: Final = 2
_ALLOW: Final = 0x7FFF0000
_EPERM: Final = 0x00050000 | 1
_LOAD: Final = 0x20
"""BPF_LD | BPF_W | BPF_ABS."""
_EQUALS: Final = 0x15
"""BPF_JMP | BPF_JEQ | BPF_K."""
_AT_LEAST: Final = 0x35
"""BPF_JMP | BPF_JGE | BPF_K."""
_RETURN: Final = 0x06
_NUMBER_AT: Final = 0
_ARCHITECTURE_AT: Final = 4
_X32: Final = 0x40000000
"""Numbers of x86-64's second table start here."""

_ARCHITECTURES: Final[Mapping[str, tuple[int, tuple[int, ...]]]] = {
    # socket, connect, sendto, sendmsg, bind, fork, vfork, execve, ptrace, execveat, io_uring
    "x86_64": (0xC000003E, (41, 42, 44, 46, 49, 57, 58, 59, 101, 322, 425)),
    # socket, bind, connect, sendto, sendmsg, execve, ptrace, execveat, io_uring
    "aarch64": (0xC00000B7, (198, 200, 203, 206, 211, 221, 117, 281, 425)),
}
"""By machine: how the kernel calls it, and the system calls that are refused."""


class _Program(ctypes.Structure):
    _fields_ = [("size", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def confine() -> str:
    """Refuse sockets and the start of programs from now on; return what refuses them."""
    if sys.platform == "linux" and _filter_calls():
        return "seccomp"
    socket.socket = _refuse  # type: ignore[misc, assignment]
    socket.create_connection = _refuse
    return "Python"


def _filter_calls() -> bool:
    """Let the kernel refuse system calls; return whether it does."""
    if platform.machine() not in _ARCHITECTURES:
        return False
    architecture, numbers = _ARCHITECTURES[platform.machine()]
    steps = _steps(architecture, numbers)
    content = b"".join(struct.pack("<HBBI", *step) for step in steps)
    library = ctypes.CDLL(None, use_errno=True)
    program = _Program(len(steps), content)
    if library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return bool(library.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0) == 0)


def _steps(architecture: int, numbers: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Return the filter: (code, steps to skip if true, if false, operand)."""
    last = len(numbers) + 4
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUALS, 0, last - 1, architecture),  # of another table: refused
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, last - 3, 0, _X32),
    ]
    for number in numbers:
        steps.append((_EQUALS, last - len(steps), 0, number))
    return [*steps, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _EPERM)]


def _refuse(*args: Any, **options: Any) -> NoReturn:
    raise PermissionError("this process opens no socket")
