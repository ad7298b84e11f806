"""How much memory this process may still take: of the machine, its cgroups and its own limits."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from embedlib.system.cgroups import Cgroup, ReadFile, own_cgroups, read_system_file

GIB: Final = 1 << 30

CgroupFiles = tuple[tuple[str, ...], str, str]
CGROUP_V2_FILES: Final[CgroupFiles] = (("memory.max", "memory.high"), "memory.current", "")
CGROUP_V1_FILES: Final[CgroupFiles] = (
    ("memory.limit_in_bytes",),
    "memory.usage_in_bytes",
    "total_",
)
"""The files of limits and of the use, and how the rows of memory.stat begin that also count the
groups below. Nothing is refused above memory.high, but the kernel slows down what is there."""
FILE_PAGES: Final = ("active_file", "inactive_file")
"""Rows of memory.stat: pages of files, which count as used and are dropped before anything is
refused. MemAvailable counts them as free too. Source: `si_mem_available` of Linux, mm/show_mem.c,
which leaves out only what keeps the system from swapping."""
UNLIMITED_BYTES: Final = 1 << 60
"""cgroup v1 writes "no limit" as a number just below 2**63."""
ON_MACHINE: Final = "available on this machine"
"""What limits a room that nobody has limited."""


@dataclass(frozen=True)
class Room:
    """Memory that this process may still take, and what limits it."""

    num_bytes: int
    limit: str

    @property
    def remedy(self) -> str:
        """What gives more of it."""
        return "use a machine with more memory" if self.limit == ON_MACHINE else "raise that limit"


def gib(num_bytes: float, digits: int = 1) -> str:
    """Return a number of bytes as "3.2 GiB"."""
    return f"{num_bytes / GIB:.{digits}f} GiB"


def digits_apart(one: float, other: float) -> int:
    """Return how many digits `gib` needs to tell two amounts apart; at least one."""
    return next((each for each in range(1, 9) if gib(one, each) != gib(other, each)), 9)


@dataclass(frozen=True)
class Memory:
    """What this process may still take; None where the system sets or tells no limit."""

    room: Room | None = None
    """Memory for data. Pages of mapped files do not count: the system drops them when it must."""
    address_room: Room | None = None
    """Address space, in which mapped files count."""

    def for_each_of(self, count: int) -> Memory:
        """Return an equal share for each of several devices."""
        rooms = (self.room, self.address_room)
        return Memory(*(room and Room(room.num_bytes // count, room.limit) for room in rooms))

    def too_small(self, data_bytes: int, file_bytes: int) -> Room | None:
        """Return the limit that so much data and so large mapped files exceed; None: they fit."""
        needs = ((self.room, data_bytes), (self.address_room, data_bytes + file_bytes))
        exceeded = [room for room, num_bytes in needs if room and num_bytes > room.num_bytes]
        return min(exceeded, key=lambda room: room.num_bytes, default=None)

    def shortage(self, data_bytes: int, file_bytes: int) -> tuple[str, str, Room] | None:
        """Return what is needed and the limit in words, and `too_small`; None: it fits.

        The words read "3.2 GiB of memory" and "3.1 GiB (memory limit of its cgroup)", with as many
        digits as tell them apart.
        """
        limit = self.too_small(data_bytes, file_bytes)
        if limit is None:
            return None
        kind, needed = "memory", data_bytes
        if limit is self.address_room:
            kind, needed = "address space", data_bytes + file_bytes
        digits = digits_apart(needed, limit.num_bytes)
        told = f"{gib(limit.num_bytes, digits)} ({limit.limit})"
        return f"{gib(needed, digits)} of {kind}", told, limit


def address_limit() -> int:
    """Return the limit of `ulimit -v` in bytes; `resource.RLIM_INFINITY`: none."""
    return resource.getrlimit(resource.RLIMIT_AS)[0]


def data_limit() -> int:
    """Return the limit of `ulimit -d` in bytes; `resource.RLIM_INFINITY`: none."""
    return resource.getrlimit(resource.RLIMIT_DATA)[0]


def read_memory(
    read: ReadFile = read_system_file,
    address_limit: Callable[[], int] = address_limit,
    data_limit: Callable[[], int] = data_limit,
) -> Memory:
    """Return what this process may still take now.

    Args:
        read: returns the content of a system file.
        address_limit: returns the limit of `ulimit -v` in bytes.
        data_limit: returns the limit of `ulimit -d` in bytes.
    """
    of_data = _of_process(read, "VmData:", data_limit(), "limit set by ulimit -d")
    rooms = [*_of_machine(read), *_of_cgroups(read), *([of_data] if of_data else [])]
    return Memory(
        room=min(rooms, key=lambda room: room.num_bytes, default=None),
        address_room=_of_process(read, "VmSize:", address_limit(), "limit set by ulimit -v"),
    )


def _of_process(read: ReadFile, field: str, limit: int, name: str) -> Room | None:
    """Return what a limit of this process leaves; `field` of its status has what it has taken."""
    if limit == resource.RLIM_INFINITY:
        return None
    used = _field(read("/proc/self/status"), field) * 1024
    return Room(max(0, limit - used), name)


def _of_machine(read: ReadFile) -> Iterator[Room]:
    text = read("/proc/meminfo")
    if "MemAvailable:" in text:
        yield Room(_field(text, "MemAvailable:") * 1024, ON_MACHINE)


def _of_cgroups(read: ReadFile) -> Iterator[Room]:
    """Yield what is left in each cgroup that limits the memory of this process.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html, section Memory, and
    https://docs.kernel.org/admin-guide/cgroup-v1/memory.html.
    """
    for group in own_cgroups(read, "memory"):
        yield from _of_cgroup(read, group, *(CGROUP_V2_FILES if group.is_v2 else CGROUP_V1_FILES))


def _of_cgroup(
    read: ReadFile, group: Cgroup, limit_files: tuple[str, ...], used_file: str, prefix: str
) -> Iterator[Room]:
    limits = [group.text(read, name) for name in limit_files]
    used = group.text(read, used_file)
    # Others are "max", or there is no such cgroup.
    known = [int(limit) for limit in limits if limit.isdigit() and int(limit) < UNLIMITED_BYTES]
    if not known or not used.isdigit():
        return
    stat = group.text(read, "memory.stat")
    reclaimed = sum(_field(stat, prefix + name) for name in FILE_PAGES)
    yield Room(max(0, min(known) - max(0, int(used) - reclaimed)), "memory limit of its cgroup")


def _field(text: str, name: str) -> int:
    """Return the number behind a name at the start of a line; 0 if there is none."""
    for line in text.splitlines():
        words = line.split()
        if words and words[0] == name:
            return int(words[1])
    return 0
