"""Gives memory back: pages of mapped weights that were packed, and what the library has freed."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from embedlib.models.weights.mapped import let_go
from embedlib.threads.closing import WorkerThread

_T = TypeVar("_T")

LOOK_SECONDS: Final = 0.02
"""Between two times that pages are let go; from memory, some 60 MiB are read meanwhile."""
MAX_FREED_BYTES: Final = 48 << 20
"""To return less takes more time. Source: docs/measurements/memory.md, stages."""


@dataclass(frozen=True)
class LibraryMapping:
    """Where the library has mapped a file; lives as long as the compiled model that reads it."""

    start: int
    num_bytes: int


MappedFile: TypeAlias = NDArray[np.uint8] | LibraryMapping
"""A file that we have mapped, or that the library has."""


def let_all_go(files: Sequence[MappedFile]) -> None:
    """Let the pages of mapped files go; who reads them again gets them from the file."""
    let_go(file for file in files if not isinstance(file, LibraryMapping))
    for file in files:
        if isinstance(file, LibraryMapping):
            place = ctypes.c_void_p(file.start), ctypes.c_size_t(file.num_bytes)
            ctypes.CDLL(None).madvise(*place, mmap.MADV_DONTNEED)


@contextmanager
def letting_go(files: Sequence[MappedFile]) -> Iterator[None]:
    """Let the pages of mapped files go again and again while the block runs, and at its end.

    Each page is read once or twice, from front to back, and is then only in the way: the packed
    copy is what is computed with.
    """
    if not files:
        yield
        return
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(LOOK_SECONDS):
            let_all_go(files)

    thread = WorkerThread(look, "embedlib-openvino-pages")
    try:  # Ctrl-C may come while it is started; it would look for ever, also at others' memory
        thread.start()
        yield
    finally:
        is_over.set()
        if thread.ident is not None:
            thread.join()
        let_all_go(files)


def return_freed() -> None:
    """Return freed memory to the system; where the C library is not glibc it does so itself."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class FreedMemory:
    """Bounds what of the memory that the library has freed stays with this process."""

    def __init__(self) -> None:
        self._resident = _resident_bytes()
        """What this process had in memory when freed memory was last returned."""

    def bound(self) -> None:
        """Return freed memory to the system if this process has grown by more than the bound."""
        if _resident_bytes() > self._resident + MAX_FREED_BYTES:
            self.give_back()

    def give_back(self) -> None:
        """Return freed memory to the system."""
        return_freed()
        self._resident = _resident_bytes()


def _resident_bytes() -> int:
    """Return what this process has in memory; 0 where the system does not tell."""
    try:
        # Source: proc_pid_statm(5): the size, then what is resident, in pages.
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def mapped_by(
    path: Path, load: Callable[[], Sequence[_T]]
) -> tuple[Sequence[_T], list[MappedFile]]:
    """Return what the library loads, and where it has mapped a file for that.

    The second is empty where it is not certain that all new mappings of the file are of this load:
    another thread may have mapped it meanwhile, and its address may be given back at any time.

    Args:
        path: the file.
        load: for each thing that it returns, which holds the mapping, the file is mapped once.
    """
    before = set(_mappings(path))
    loaded = load()
    new: list[MappedFile] = [mapping for mapping in _mappings(path) if mapping not in before]
    return loaded, new if len(new) == len(loaded) else []


def _mappings(path: Path) -> list[LibraryMapping]:
    """Return where a whole file is mapped to be shared; nowhere if this is not Linux."""
    try:
        # Names may have any character but this one, which is escaped there.
        *lines, _ = Path("/proc/self/maps").read_bytes().split(b"\n")
    except OSError:
        return []
    size = -(-path.stat().st_size // mmap.PAGESIZE) * mmap.PAGESIZE
    name = os.fsencode(os.path.realpath(path))
    found = []
    for line in lines:
        # Source: proc_pid_maps(5): address, permissions, offset, device, inode, path.
        addresses, permissions, *_, file = line.split(maxsplit=5)
        if permissions == b"r--s" and file == name:
            start, end = (int(part, 16) for part in addresses.split(b"-"))
            if end - start == size:
                found.append(LibraryMapping(start, end - start))
    return found
