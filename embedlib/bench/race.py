"""Contestants side by side: each in a process of its own, bulk passes in turns.

However many processes there are, only one of them computes at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np

from embedlib.bench.contestants.own import BATCH_SIZES, OURS
from embedlib.bench.options import ReportLine
from embedlib.bench.peers import PEERS
from embedlib.config import Config
from embedlib.errors import EmbedlibError
from embedlib.measuring.child import Memory
from embedlib.measuring.process import ChildProcess, ContestantFailedError, Process
from embedlib.measuring.spread import ratios_in_turns
from embedlib.packages.installing import install_line
from embedlib.vectors.arrays import Vectors

PROBE_TEXTS = 128
"""About as many texts are spent on each batch size tried, each twice."""

PROBE_SECONDS = 60
"""When the search has taken as long, the best size so far is taken."""

MAX_PASS_SECONDS = 300
"""Of a bulk pass: torch in bfloat16 takes longer where the CPU has no instructions for it."""

MAX_CALL_SECONDS = 3600
"""Of anything else that a peer is asked: exporting a large model takes long, and one that hangs is
left out."""

StartProcess = Callable[[str, int, "int | None"], Process]
"""`start_contestant`, or a fake in a test."""


def start_contestant(
    name: str,
    threads: int,
    library_threads: int | None,
    pythons: Mapping[str, str] = MappingProxyType({}),
) -> ChildProcess:
    """Start the process of a contestant, with its own interpreter where it has one."""
    limit_s = None if name in OURS else MAX_CALL_SECONDS
    return ChildProcess(
        *("embedlib.bench.worker", name, threads, library_threads, pythons.get(name)),
        limit_s=limit_s,
    )


@dataclass(frozen=True, kw_only=True)
class Course:
    """What all contestants of a race are given."""

    folder: Path
    """The model."""
    texts: Sequence[str]
    """Of one bulk pass."""
    queries: Sequence[str]
    config: Config
    """Its `num_threads` is for all contestants, its `max_batch_tokens` for embedlib's."""
    rounds: int


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What loading a model took."""

    first_vector_s: float
    """From starting Python to having the first vector."""
    constructor_s: float
    memory_mib: Memory
    precision: str
    versions: dict[str, str]


@dataclass(kw_only=True)
class Entry:
    """A contestant in its process, and its bulk passes so far."""

    name: str
    process: Process
    loaded: Loaded
    batch_size: int | None = None
    bulk_s: list[float] = field(default_factory=list)
    failure: str | None = None
    """Why it stopped taking turns."""

    def bulk(self) -> None:
        """Take a turn: embed all texts."""
        self.bulk_s.append(self.process.call("bulk", batch_size=self.batch_size))

    def rates(self, amount: int) -> list[float]:
        """Return `amount` per second, for each bulk pass."""
        return [amount / seconds for seconds in self.bulk_s]

    def stats(self) -> dict[str, float]:
        """Return what the contestant has counted."""
        counts: dict[str, float] = self.process.call("stats")
        return counts


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A peer that could not be measured."""

    name: str
    reason: str


@contextmanager
def open_race(
    course: Course, scratch: Path, report: ReportLine, start: StartProcess
) -> Iterator[Race]:
    """Hold a race, and end its processes.

    Args:
        course: what the contestants are given.
        scratch: a folder for caches and vectors; the caller removes it.
        report: called with progress.
        start: starts the process of a contestant.

    Raises:
        EmbedlibError: a contestant failed, and the caller has not caught it.
    """
    with ExitStack() as stack:
        try:
            yield Race(course, scratch, stack, report, start)
        except ContestantFailedError as error:
            raise EmbedlibError(str(error)) from error


class Race:
    """A race in progress. The caller adds entries to `ours` and `peers`."""

    def __init__(
        self,
        course: Course,
        scratch: Path,
        stack: ExitStack,
        report: ReportLine,
        start: StartProcess,
    ) -> None:
        self.course = course
        self.report = report
        self.ours: list[Entry] = []
        self.peers: list[Entry] = []
        self.skipped: list[Skipped] = []
        self.num_tokens = self.num_truncated = 0
        """Of one bulk pass, as embedlib counts them."""
        self._scratch = scratch
        self._stack = stack
        self._start = start

    def skip(self, name: str, reason: str) -> None:
        """Name a peer that could not be measured, now and in the result."""
        self.report(f"{name}: not measured: {reason}")
        self.skipped.append(Skipped(name=name, reason=reason))

    def start(self, name: str, library_threads: int | None = None) -> Process:
        """Return the process of a contestant; the caller ends it."""
        return self._start(name, self.course.config.num_threads, library_threads)

    def load(self, name: str, process: Process) -> Loaded:
        """Load the model and compute a first vector."""
        config = self.course.config
        loaded = process.call(
            "load",
            folder=str(self.course.folder),
            cache_dir=str(self.cache_of(name)),
            threads=config.num_threads,
            options={"max_batch_tokens": config.max_batch_tokens} if name in OURS else {},
            query=self.course.queries[0],
        )
        return Loaded(
            first_vector_s=process.age_s,
            constructor_s=loaded["constructor_s"],
            memory_mib=loaded["memory_mib"],
            precision=loaded["precision"],
            versions=loaded["versions"],
        )

    def cache_of(self, name: str) -> Path:
        """Return a contestant's folder, which outlives its process."""
        folder = self._scratch / name
        folder.mkdir(exist_ok=True)
        return folder

    def start_cold(self, name: str) -> Loaded:
        """Start a contestant with nothing prepared, and let it keep what a later start finds.

        Raises:
            ContestantFailedError: a peer lacks a module, or the contestant failed.
        """
        self.report(f"{name}: starting, first with nothing prepared, then again")
        with self.start(name) as process:
            if name in PEERS and (missing := process.call("missing", peer=name)):
                remedy = PEERS[name].remedy or install_line("bench")
                raise ContestantFailedError(name, f"{', '.join(missing)} missing; {remedy}")
            cold = self.load(name, process)
            process.call("fill_cache", cache_dir=str(self.cache_of(name)))
        return cold

    def enter(self, name: str) -> Entry:
        """Start a contestant, find the best batch size of a peer, and do one bulk pass.

        Raises:
            ContestantFailedError: the contestant failed; its process has ended.
        """
        with ExitStack() as stack:
            process = stack.enter_context(self.start(name))
            entry = Entry(name=name, process=process, loaded=self.load(name, process))
            process.call("set_texts", texts=self.course.texts, queries=self.course.queries)
            if name in OURS:
                self._count_tokens(entry)
            else:
                if name not in PEERS or PEERS[name].own_batches is None:
                    entry.batch_size = self._best_batch_size(name, process)
                process.call("bulk", batch_size=entry.batch_size)
            self._stack.enter_context(stack.pop_all())
        return entry

    def _count_tokens(self, entry: Entry) -> None:
        before = entry.stats()
        entry.process.call("bulk", batch_size=None)
        after = entry.stats()
        self.num_tokens = int(after["num_tokens"] - before["num_tokens"])
        self.num_truncated = int(after["num_truncated"] - before["num_truncated"])

    def _best_batch_size(self, name: str, process: Process) -> int:
        """Try every size twice, up and down, on a part of the texts.

        Raises:
            ContestantFailedError: a pass over all texts would take too long.
        """
        stride = max(1, len(self.course.texts) // PROBE_TEXTS)
        spent = process.call("bulk", batch_size=BATCH_SIZES[0], stride=stride)
        seconds: dict[int, float] = {}
        for size in (*BATCH_SIZES, *reversed(BATCH_SIZES)):
            if seconds and spent > PROBE_SECONDS:
                break
            measured = process.call("bulk", batch_size=size, stride=stride)
            spent += measured
            seconds[size] = min(measured, seconds.get(size, measured))
        best = min(seconds, key=seconds.__getitem__)
        pass_s = seconds[best] * stride
        if pass_s > MAX_PASS_SECONDS:
            reason = f"a bulk pass takes {pass_s:,.0f} s of {MAX_PASS_SECONDS}; give fewer texts"
            raise ContestantFailedError(name, reason)
        return best

    def take_turns(self, end_round: Callable[[], None] = lambda: None) -> None:
        """Do the bulk passes: ours before the first, between any two, and after the last peer.

        A peer that fails has no more turns and says so in `failure`; the others' go on as before.

        Args:
            end_round: called after each round.
        """
        self._bulk_ours()
        for number in range(1, self.course.rounds + 1):
            self.report(f"bulk, round {number} of {self.course.rounds}")
            for peer in self.peers:
                self._bulk_peer(peer)
                self._bulk_ours()
            if not self.peers:
                self._bulk_ours()
            end_round()

    def _bulk_peer(self, peer: Entry) -> None:
        if peer.failure is None:
            try:
                peer.bulk()
            except ContestantFailedError as error:
                peer.failure = error.reason

    def _bulk_ours(self) -> None:
        for entry in self.ours:
            entry.bulk()

    def ratios(self, ours: Entry, peer: Entry) -> list[float]:
        """Return our rate over the peer's, for each turn of the peer."""
        place, num_peers = self.peers.index(peer), len(self.peers)
        return ratios_in_turns(ours.rates(1), peer.rates(1), place, num_peers)

    def vectors(self, entry: Entry) -> Vectors:
        """Return the result of the contestant's last bulk pass."""
        path = self._scratch / f"{entry.name}.npy"
        entry.process.call("save_vectors", path=str(path))
        vectors: Vectors = np.load(path)
        return vectors
