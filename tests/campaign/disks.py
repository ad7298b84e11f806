"""Full disks: a load on a file system that is too small, then with room, must end like any other.

The disk is a small tmpfs in a mount namespace of this process, which needs root or user namespaces.
Without them a limit on the size of files stands in: writes then fail at the same places.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.campaign.loads import Outcome, compare, draw_history, load
from tests.campaign.verdict import Judge, Verdict, finding

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
"""Source: sched.h of Linux."""
MS_REMOUNT, MS_REC, MS_PRIVATE = 0x20, 0x4000, 0x40000
"""Source: sys/mount.h of Linux."""

DESTINATIONS: Final = ("jsonl", "npy", "parquet", "edge", "pglocal")
DISK_KIB: Final = {
    "jsonl": (40, 600),
    "npy": (40, 600),
    "parquet": (40, 600),
    "edge": (100, 150_000),
    "pglocal": (20_000, 110_000),
}
"""Smallest and largest disk that is drawn: some loads end before they begin, some nearly fit."""
ROOMY_KIB: Final = 1_000_000
MOST_DOCUMENTS: Final = 400


@contextmanager
def open_judge(folder: Path) -> Iterator[Judge]:
    """Open a judge with a disk of its own, if this machine permits one."""
    disk = folder / "disk"
    disk.mkdir()
    folder.chmod(0o755)  # Postgres runs as another user if this is root
    can_mount = _own_mounts()

    def judge(rng: random.Random) -> Verdict:
        if can_mount:
            return judge_small_disk(rng, disk)
        return judge_limited_files(rng, disk)

    yield judge


def judge_small_disk(rng: random.Random, disk: Path) -> Verdict:
    """Load on a small tmpfs, make it larger, load again."""
    scheme = rng.choice(DESTINATIONS)
    size = rng.randrange(*DISK_KIB[scheme])
    _mount("tmpfs", disk, 0, f"size={size}k,mode=755")
    try:
        return _judge(
            *(rng, scheme, disk, f"{scheme} on {size} KiB", None),
            make_room=lambda: _mount("tmpfs", disk, MS_REMOUNT, f"size={ROOMY_KIB}k"),
        )
    finally:
        ctypes.CDLL(None).umount2(os.fsencode(disk), 2)  # MNT_DETACH: a server may still end


def judge_limited_files(rng: random.Random, disk: Path) -> Verdict:
    """Load with a limit on the size of files, load again without it."""
    scheme = rng.choice(("jsonl", "npy", "parquet"))
    size = rng.randrange(*DISK_KIB[scheme])
    place = disk / "limited"
    place.mkdir()
    try:
        what = f"{scheme} with files of at most {size} KiB"
        return _judge(rng, scheme, place, what, size << 10, make_room=lambda: None)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _judge(
    rng: random.Random,
    scheme: str,
    place: Path,
    what: str,
    largest_file: int | None,
    *,
    make_room: Callable[[], None],
) -> Verdict:
    """Judge a history of loads without room, and then of the same loads with room."""
    url = f"{scheme}:{place}/rows{'?table=t' if scheme == 'pglocal' else ''}"
    history = draw_history(rng, MOST_DOCUMENTS)
    ends: list[str] = []
    for source in history:
        first: Outcome = load(source, url, largest_file=largest_file)
        ends.append(first.verdict.kind)
        if first.verdict.is_finding:
            return finding(first.verdict.kind, f"{what}: {first.verdict.what}")
    make_room()
    for source in history:
        last = load(source, url)
        if last.verdict.kind != "done":
            return finding("the next run fails", f"{what} ({', '.join(ends)}): {last.verdict.what}")
    verdict = compare(url, history, f"{what} ({', '.join(ends)})")
    if verdict.is_finding or "refused" in ends:
        return verdict
    return Verdict("it fitted", verdict.what)


def _own_mounts() -> bool:
    """Leave the mounts of other processes alone from now on; False if that is not permitted."""
    libc = ctypes.CDLL(None)
    user, group = os.getuid(), os.getgid()
    if user == 0:
        has_left = libc.unshare(CLONE_NEWNS) == 0
    else:
        has_left = libc.unshare(CLONE_NEWNS | CLONE_NEWUSER) == 0
        if has_left:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {user} 1")
            Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    return bool(has_left and libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) == 0)


def _mount(kind: str, place: Path, flags: int, options: str) -> None:
    result = ctypes.CDLL(None, use_errno=True).mount(
        kind.encode(), os.fsencode(place), kind.encode(), flags, options.encode()
    )
    if result != 0:
        raise OSError(ctypes.get_errno(), f"mount {options}")
