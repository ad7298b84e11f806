"""How many cores a process may keep busy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from embedlib.system.cgroups import read_system_file
from embedlib.system.cores import allowed_cores, cpu_limit, usable_cores

V2 = "/sys/fs/cgroup"
V1 = "/sys/fs/cgroup/cpu"
IN_V2 = {"/proc/self/cgroup": "0::/a/b\n"}
IN_V1 = {"/proc/self/cgroup": "4:memory:/m\n3:cpu,cpuacct:/a\n1:cpuset:/c\n"}


@pytest.mark.parametrize(
    ("files", "limit", "cores"),
    [
        pytest.param({}, None, 8, id="nothing is known"),
        pytest.param({**IN_V2, f"{V2}/a/b/cpu.max": "max 100000\n"}, None, 8, id="no limit"),
        pytest.param({**IN_V2, f"{V2}/a/b/cpu.max": "200000 100000\n"}, 2, 2, id="two cores"),
        pytest.param({**IN_V2, f"{V2}/a/b/cpu.max": "150000 100000\n"}, 1.5, 2, id="a part"),
        pytest.param({**IN_V2, f"{V2}/a/b/cpu.max": "20000 100000\n"}, 0.2, 1, id="less than one"),
        pytest.param({**IN_V2, f"{V2}/a/b/cpu.max": "0 100000\n"}, 0, 1, id="none at all"),
        pytest.param({**IN_V2, f"{V2}/a/b/cpu.max": "1600000 100000\n"}, 16, 8, id="more"),
        pytest.param(
            {**IN_V2, f"{V2}/a/b/cpu.max": "400000 100000\n", f"{V2}/a/cpu.max": "30000 10000\n"},
            3,
            3,
            id="a parent allows less",
        ),
        pytest.param(
            {"/proc/self/cgroup": "0::/host/path\n", f"{V2}/cpu.max": "300000 100000\n"},
            3,
            3,
            id="a container that sees the host's path",
        ),
        pytest.param(
            {"/proc/self/cgroup": "0::/a:b\n", f"{V2}/a:b/cpu.max": "300000 100000\n"},
            3,
            3,
            id="a name with a colon",
        ),
        pytest.param(
            {**IN_V1, f"{V1}/a/cpu.cfs_quota_us": "50000\n", f"{V1}/a/cpu.cfs_period_us": "25000"},
            2,
            2,
            id="cgroup v1",
        ),
        pytest.param(
            {**IN_V1, f"{V1}/a/cpu.cfs_quota_us": "-1\n", f"{V1}/a/cpu.cfs_period_us": "100000\n"},
            None,
            8,
            id="cgroup v1 without a limit",
        ),
        pytest.param(
            {**IN_V1, f"{V1}/a/cpu.cfs_quota_us": "50000\n"}, None, 8, id="a part of what time"
        ),
    ],
)
def test_no_more_threads_than_the_container_lets_compute(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], limit: float | None, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))

    def read(path: str) -> str:
        return files.get(path, "")

    assert (cpu_limit(read), usable_cores(read)) == (limit, cores)


def test_a_system_file_may_have_any_bytes_or_be_missing(tmp_path: Path) -> None:
    """That of a process has its name, which is cut after 15 bytes."""
    place = tmp_path / "status"
    assert read_system_file(str(place)) == ""
    place.write_bytes(b"Name:\t" + "ы".encode()[:1] + b"\nVmSize: 4 kB\n")
    assert read_system_file(str(place)).endswith("\nVmSize: 4 kB\n")


def test_where_there_is_no_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert allowed_cores() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert allowed_cores() == 1
