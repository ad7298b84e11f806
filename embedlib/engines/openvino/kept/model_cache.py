"""The cache of compiled models on disk: one folder for each, held by one process at a time.

What OpenVINO compiled for one precision or CPU may give wrong vectors, or end the process, under
another, and OpenVINO's own cache does not tell them apart. So the name of a folder stands for
everything that the compiled model depends on. A model from the cache is tried before it is used
(`compiling`), and a mark says that it is being tried: a process that finds the mark of another
knows that the other one died of it.

    KEY/model.blob    the compiled model: its stages, one behind the other; of a large model without
                      the weights, which are read from the model's own file
    KEY/tried         the vectors that it gave when it was compiled: float32, without their shape
    KEY/entry.json    what KEY stands for, the shape, and where stages lie; written last, its time
                      says when the model was last used
    KEY/trying        it is being tried now, by the process of this id
    KEY/deaths        one byte for each process that died while it tried the model
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import OTHER_CACHE
from embedlib.threads.interrupts import sigterm_waits

FORMAT: Final = 3
"""Of these folders."""
MAX_DEATHS: Final = 2
"""After so many a model is not cached again: it was compiled anew in between."""
UNUSED_SECONDS: Final = 30 * 24 * 3600
"""A compiled model that nobody used for so long is removed."""
PART_ALIGNMENT: Final = 4096
"""Bytes; constants of a stage are read in place."""

_BLOB, _PART, _TRIED, _ENTRY, _TRYING, _DEATHS = (
    "model.blob",
    "model.blob.part",
    "tried",
    "entry.json",
    "trying",
    "deaths",
)
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WeightsFile:
    """The file of a large model, whose graph is kept without weights."""

    path: Path
    is_packed_at_once: bool
    """Whether matrices are packed when a model is imported, not when it first computes: those that
    are stored in float32 are."""


@dataclass(frozen=True)
class ModelCache:
    """Where compiled models of one set of weights are kept."""

    folder: Path
    """Of the compiled models of all models."""
    weights: str
    """Stands for the content of the weights."""
    file: WeightsFile | None = None
    """The file that has the weights of kept models; None: they have their own."""

    @contextmanager
    def entry(self, facts: Mapping[str, object]) -> Iterator[CacheEntry | None]:
        """Hold the place of a compiled model; other processes wait for it meanwhile.

        Yields None if the folder cannot be used, or if the model has ended too many processes.

        Args:
            facts: everything else that the compiled model depends on, JSON values.
        """
        known = {"format": FORMAT, "weights": self.weights, **facts}
        key = json.dumps(known, sort_keys=True)
        name = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
        entry = CacheEntry(self.folder / name, known)
        with ExitStack() as held:
            try:
                entry.path.mkdir(parents=True, exist_ok=True)
                with TemporaryFile(dir=entry.path):
                    pass  # the folder is writable
                held.enter_context(_lock(entry.path, fcntl.LOCK_EX))
                is_usable = entry.recover()
            except OSError as error:
                _logger.warning("compiled models are not cached: %s; %s", error, OTHER_CACHE)
                is_usable = False
            yield entry if is_usable else None


@dataclass(frozen=True)
class Kept:
    """What is kept of a compiled model."""

    vectors: NDArray[np.float32]
    """Those that it must give."""
    parts: Sequence[tuple[int, int]]
    """Of the file, where each stage of the model begins and ends."""


@dataclass(frozen=True)
class CacheEntry:
    """The place of one compiled model; only the process that holds its lock uses it."""

    path: Path
    facts: Mapping[str, object]

    @property
    def blob(self) -> Path:
        """The compiled model, as OpenVINO exported it."""
        return self.path / _BLOB

    def recover(self) -> bool:
        """Put right what a dead process left; return whether the place may be used.

        Raises:
            OSError: the folder cannot be written.
        """
        deaths = self.path / _DEATHS
        if (self.path / _TRYING).exists():
            with deaths.open("ab") as stream:
                stream.write(b"x")
            self.drop("a process died while it loaded it")
        (self.path / _PART).unlink(missing_ok=True)
        if deaths.exists() and deaths.stat().st_size >= MAX_DEATHS:
            _logger.warning(
                "%s is not used: %s processes died while they loaded the compiled model in it; "
                "remove the folder to try again",
                self.path,
                deaths.stat().st_size,
            )
            return False
        return True

    def kept(self) -> Kept | None:
        """Return what must be true of the compiled model; None: there is no whole one."""
        try:
            stored = json.loads((self.path / _ENTRY).read_bytes())
            parts = [(int(start), int(end)) for start, end in stored["parts"]]
            if self.blob.stat().st_size != parts[-1][1]:
                raise ValueError("its size has changed")
            content = (self.path / _TRIED).read_bytes()
            vectors = np.frombuffer(content, np.float32).reshape(stored["shape"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, LookupError) as error:
            self.drop(f"it is damaged ({error})")
            return None
        return Kept(vectors, parts)

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Mark the compiled model as being tried; only the end of the process leaves the mark.

        SIGTERM waits: a pool that is done sends it to workers that still load.

        Raises:
            OSError: the mark cannot be written.
        """
        mark = self.path / _TRYING
        with sigterm_waits():
            mark.touch()
            with suppress(OSError):  # of a full disk, which has room for an empty file
                mark.write_text(str(os.getpid()), encoding="ascii")
            try:
                yield
            finally:
                mark.unlink(missing_ok=True)

    def use(self) -> None:
        """Note that the compiled model was used now."""
        with suppress(OSError):
            os.utime(self.path / _ENTRY)

    def forget_deaths(self) -> None:
        """Note that a later load than the one that wrote the compiled model has ended well.

        So processes that died before were killed from outside.
        """
        with suppress(OSError):
            (self.path / _DEATHS).unlink(missing_ok=True)

    def write(
        self, exports: Sequence[Callable[[io.BytesIO], object]], vectors: NDArray[np.float32]
    ) -> bool:
        """Keep a compiled model; return False if that failed.

        Args:
            exports: each writes a stage of the compiled model into a stream.
            vectors: those that it gives.
        """
        part = self.path / _PART
        try:
            remove_unused(self.path.parent)  # first: the disk may be full of it
            with part.open("wb") as file:
                parts = [_export(export, file) for export in exports]
            part.replace(self.blob)
            (self.path / _TRIED).write_bytes(vectors.tobytes())
            content = {"parts": parts, "shape": vectors.shape, **self.facts}
            (self.path / _ENTRY).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
        except OSError as error:
            self.drop(f"it cannot be written: {error}; {OTHER_CACHE}")
            return False
        return True

    def drop(self, reason: str) -> None:
        """Remove the compiled model; a process that has mapped it keeps it."""
        _logger.warning("the compiled model in %s is not used: %s", self.path, reason)
        for name in (_ENTRY, _TRYING, _TRIED, _BLOB, _PART):
            with suppress(OSError):  # the disk may take no change any more
                (self.path / name).unlink()


def _export(export: Callable[[io.BytesIO], object], file: io.BufferedWriter) -> tuple[int, int]:
    """Write a stage behind the others; return where it begins and ends."""
    start = -(-file.tell() // PART_ALIGNMENT) * PART_ALIGNMENT
    file.seek(start)
    sink = _Sink(file, start)
    export(sink)
    if sink.error is not None:
        raise sink.error
    return start, file.seek(0, io.SEEK_END)


class _Sink(io.BytesIO):
    """Passes to a file what OpenVINO exports, so that it never lies in memory as a whole.

    OpenVINO takes no other stream than a BytesIO. An error must not pass through its code; after
    one, nothing more is written.
    """

    def __init__(self, file: io.BufferedWriter, start: int) -> None:
        super().__init__()
        self._file = file
        self._start = start
        self.error: BaseException | None = None

    def write(self, content: Any) -> int:
        return self._do(lambda: self._file.write(content), len(content))

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        place += self._start if whence == io.SEEK_SET else 0
        return self._do(lambda: self._file.seek(place, whence) - self._start, 0)

    def tell(self) -> int:
        return self._do(lambda: self._file.tell() - self._start, 0)

    def _do(self, act: Callable[[], int], otherwise: int) -> int:
        if self.error is None:
            try:
                return act()
            except BaseException as error:  # Ctrl-C, too
                self.error = error
        return otherwise


def forget_trials(folder: Path, process: int) -> None:
    """Remove the marks of a process that was killed from outside: it died of no compiled model."""
    for mark in folder.glob(f"*/{_TRYING}"):
        with suppress(OSError, ValueError):
            if int(mark.read_text(encoding="ascii")) == process:
                mark.unlink()


def remove_unused(folder: Path) -> None:
    """Remove what nobody used for long."""
    now = time.time()
    for path in folder.iterdir():
        with suppress(OSError):
            if path.is_dir() and now - _last_used(path) > UNUSED_SECONDS:
                with _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    shutil.rmtree(path)


def _last_used(path: Path) -> float:
    entry = path / _ENTRY
    return (entry if entry.exists() else path).stat().st_mtime


@contextmanager
def _lock(path: Path, kind: int) -> Iterator[None]:
    """Hold the lock of a folder, or raise OSError where `kind` does not wait for who has it."""
    lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, kind)
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_UN)  # a forked process may hold a copy of the handle
        os.close(lock)
