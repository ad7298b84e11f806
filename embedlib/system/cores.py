"""How many cores this process may keep busy: those it may run on, and the time that it may take."""

from __future__ import annotations

import math
import os

from embedlib.system.cgroups import Cgroup, ReadFile, own_cgroups, read_system_file


def usable_cores(read: ReadFile = read_system_file) -> int:
    """Return how many threads of this process can compute all the time, at least 1.

    Where a container may take less processor time than its cores have, more threads use it up
    sooner in each period of a tenth of a second, and then all of them stand still to its end.

    Args:
        read: returns the content of a system file.
    """
    cores, share = allowed_cores(), cpu_limit(read)
    return cores if share is None else max(1, min(cores, math.ceil(share)))


def allowed_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_limit(read: ReadFile = read_system_file) -> float | None:
    """Return the processor time that cgroups allow, in cores; None: as much as there is.

    Args:
        read: returns the content of a system file.
    """
    limits = [_limit(group, read) for group in own_cgroups(read, "cpu")]
    return min((limit for limit in limits if limit is not None), default=None)


def _limit(group: Cgroup, read: ReadFile) -> float | None:
    """Return the limit of one cgroup.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html, cpu.max, and
    https://docs.kernel.org/scheduler/sched-bwc.html, cpu.cfs_quota_us.
    """
    if group.is_v2:
        quota, _, period = group.text(read, "cpu.max").partition(" ")
    else:
        quota, period = (group.text(read, f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    # No limit is "max", or -1 in version 1.
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None
