"""The control groups that this process is in, in which Linux limits memory and processor time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

ReadFile = Callable[[str], str]
"""Returns the content of a system file; empty if there is none."""

CGROUP_ROOT: Final = PurePosixPath("/sys/fs/cgroup")


def read_system_file(path: str) -> str:
    """Return the content of a system file; empty if there is none."""
    try:
        # Names of processes, cut after 15 bytes, and of cgroups are not always UTF-8.
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


@dataclass(frozen=True)
class Cgroup:
    """One control group; its files may not exist."""

    folder: PurePosixPath
    is_v2: bool
    """Whether its files are those of version 2."""

    def text(self, read: ReadFile, name: str) -> str:
        """Return the content of a file without blanks around it; empty if there is none."""
        return read(str(self.folder / name)).strip()


def own_cgroups(read: ReadFile, controller: str) -> Iterator[Cgroup]:
    """Yield each control group that this process is in, and each of their parents.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html and
    https://docs.kernel.org/admin-guide/cgroup-v1/cgroups.html.

    Args:
        read: returns the content of a system file.
        controller: what they limit, "memory" or "cpu"; in version 1 each has groups of its own.
    """
    for line in read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        is_v2 = controllers == ""
        if is_v2:
            root = CGROUP_ROOT
        elif controller in controllers.split(","):
            root = CGROUP_ROOT / controller
        else:
            continue
        # In a container the path may be the host's, and the container's own cgroup is the root:
        # folders that do not exist have no limit.
        inside = PurePosixPath(path.lstrip("/"))
        for part in (inside, *inside.parents):
            yield Cgroup(root / part, is_v2)
