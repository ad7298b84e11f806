"""The order of events of a benchmark run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from embedlib.bench.contestants import BATCH_SIZES, EMBEDLIB, OURS, missing_modules
from embedlib.bench.options import BenchOptions
from embedlib.bench.result import (
    BenchResult,
    ContestantResult,
    DuringBulk,
    Latency,
    Sgemm,
    Skipped,
    Spread,
    Start,
    aba_ratios,
)
from embedlib.errors import EmbedlibError
from embedlib.measuring.process import ChildProcess, ContestantFailedError, Process
from embedlib.measuring.provenance import checkout_commit, now
from embedlib.measuring.sgemm import ROWS, SGEMM, flop_per_token, linear_shapes
from embedlib.measuring.texts import QUERIES, docstrings, read_lines
from embedlib.models.hub import ModelFolder, find_model
from embedlib.models.reading.files import read_model_files
from embedlib.models.spec import Encoder

QUERY_INTERVAL_S = 0.1
"""Between two queries during a bulk job."""

SGEMM_SECONDS = 1.0
"""Per library and round."""

PROBE_TEXTS = 128
"""About so many texts are spent on each batch size tried, each twice."""

StartProcess = Callable[[str, int, "int | None"], Process]
"""`ChildProcess`, or what takes its place in a test."""


@dataclass(kw_only=True)
class _Entry:
    """A contestant on the course and what was measured of it so far."""

    name: str
    process: Process
    cold: Start
    warm: Start
    versions: dict[str, str]
    memory_after_load: float
    memory_after_bulk: float = 0.0
    batch_size: int | None = None
    bulk_s: list[float] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)
    vectors: Any = None


def run_bench(
    options: BenchOptions,
    *,
    machine: Mapping[str, str],
    embedlib_version: str,
    command: str = "",
    report: Callable[[str], None] = lambda _: None,
    start: StartProcess = ChildProcess,
) -> BenchResult:
    """Run embedlib and its peers side by side.

    Args:
        options: what to run.
        machine: facts about this machine to keep with the result.
        embedlib_version: what to keep as the version measured.
        command: what the user typed, to keep with the result.
        report: is told about progress, one line at a time.
        start: starts the process of a contestant.

    Raises:
        EmbedlibError: the model or the texts cannot be read, or embedlib itself failed. A peer that
            fails is left out and named in the result.
    """
    config = options.config
    folder = find_model(options.model, config)
    encoder = read_model_files(folder.path).spec.encoder
    if options.texts_path is None:
        texts, origin = docstrings(options.num_texts), "documentation strings of Python's library"
    else:
        texts, origin = read_lines(options.texts_path, options.num_texts), options.texts_path.name
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="embedlib-bench-")))
        bench = _Bench(options, folder, encoder, texts, scratch, stack, report, start)
        try:
            bench.enter_all()
            bench.race_bulk()
            stats = bench.ours.process.call("stats")
            bench.race_queries()
            during_bulk = bench.measure_mixed()
            mean_query_tokens = bench.mean_query_tokens
        except ContestantFailedError as error:
            raise EmbedlibError(str(error)) from error
        return BenchResult(
            date=now(),
            command=command,
            embedlib_version=embedlib_version,
            commit=checkout_commit(),
            machine=dict(machine),
            model=options.model,
            revision=folder.revision,
            precision="float32",
            texts=origin,
            num_texts=len(texts),
            num_tokens=bench.num_tokens,
            num_truncated=bench.num_truncated,
            mean_query_tokens=mean_query_tokens,
            threads=config.num_threads,
            rounds=options.rounds,
            contestants=bench.results(),
            skipped=tuple(bench.skipped),
            during_bulk=during_bulk,
            padding_share=stats["padding_share"],
            engine_idle_share=stats["engine_idle_share"],
            sgemm=bench.sgemm_result(),
        )


class _Bench:
    """A run in progress: its contestants, and the phases in the order of their methods.

    However many processes there are, only one of them computes at a time.
    """

    def __init__(
        self,
        options: BenchOptions,
        folder: ModelFolder,
        encoder: Encoder,
        texts: list[str],
        scratch: Path,
        stack: ExitStack,
        report: Callable[[str], None],
        start: StartProcess,
    ) -> None:
        self.options = options
        self.folder = folder
        self.encoder = encoder
        self.texts = texts
        self.scratch = scratch
        self.stack = stack
        self.report = report
        self.start = start
        self.threads = options.config.num_threads
        self.entries: list[_Entry] = []
        self.skipped: list[Skipped] = []
        self.sgemm: dict[str, list[float]] = {}
        self.num_tokens = self.num_truncated = 0
        self.mean_query_tokens = 0.0

    @property
    def ours(self) -> _Entry:
        return self.entries[0]

    @property
    def peers(self) -> list[_Entry]:
        return self.entries[1:]

    def enter_all(self) -> None:
        """Start every contestant, embedlib first, and let each warm up."""
        self.entries.append(self._enter(EMBEDLIB))
        before = self.ours.process.call("stats")
        self.ours.process.call("bulk", batch_size=None)
        after = self.ours.process.call("stats")
        self.num_tokens = int(after["num_tokens"] - before["num_tokens"])
        self.num_truncated = int(after["num_truncated"] - before["num_truncated"])
        for name in self.options.vs:
            missing = missing_modules(name)
            if missing:
                reason = f'{", ".join(missing)} missing; pip install "embedlib[bench]"'
                self._skip(name, reason)
                continue
            try:
                entry = self._enter(name)
                if name not in OURS:
                    entry.batch_size = self._best_batch_size(entry.process)
                entry.process.call("bulk", batch_size=entry.batch_size)
            except ContestantFailedError as error:
                self._skip(name, error.reason)
                continue
            self.entries.append(entry)

    def _skip(self, name: str, reason: str) -> None:
        self.report(f"{name}: not measured: {reason}")
        self.skipped.append(Skipped(name=name, reason=reason))

    def _enter(self, name: str) -> _Entry:
        """Start a contestant twice: first with nothing prepared, then to stay."""
        self.report(f"{name}: starting, first with nothing prepared, then again")
        cache = self.scratch / name
        cache.mkdir()
        with self.start(name, self.threads, None) as process:
            cold, _ = self._load(name, process, cache)
            process.call("fill_cache", cache_dir=str(cache))
        process = self.stack.enter_context(self.start(name, self.threads, None))
        warm, loaded = self._load(name, process, cache)
        process.call("set_texts", texts=self.texts, queries=QUERIES)
        return _Entry(
            name=name,
            process=process,
            cold=cold,
            warm=warm,
            versions=loaded["versions"],
            memory_after_load=loaded["peak_memory_mib"],
        )

    def _load(self, name: str, process: Process, cache: Path) -> tuple[Start, dict[str, Any]]:
        budget = self.options.config.max_batch_tokens
        loaded: dict[str, Any] = process.call(
            "load",
            folder=str(self.folder.path),
            cache_dir=str(cache),
            threads=self.threads,
            options={"max_batch_tokens": budget} if name in OURS else {},
            query=QUERIES[0],
        )
        return Start(first_vector_s=process.age_s, constructor_s=loaded["constructor_s"]), loaded

    def _best_batch_size(self, process: Process) -> int:
        stride = max(1, len(self.texts) // PROBE_TEXTS)
        process.call("bulk", batch_size=BATCH_SIZES[0], stride=stride)
        seconds: dict[int, float] = {}
        for size in (*BATCH_SIZES, *reversed(BATCH_SIZES)):
            measured = process.call("bulk", batch_size=size, stride=stride)
            seconds[size] = min(measured, seconds.get(size, measured))
        return min(seconds, key=seconds.__getitem__)

    def race_bulk(self) -> None:
        """Bulk passes in turns, ours between any two of the peers', and the machine's own limit."""
        shapes = linear_shapes(self.encoder)
        # One thread per library call: the threads are this process's own.
        with self.start(SGEMM, self.threads, 1) as sgemm:
            self._bulk(self.ours)
            for number in range(1, self.options.rounds + 1):
                self.report(f"bulk, round {number} of {self.options.rounds}")
                for peer in self.peers:
                    self._bulk(peer)
                    self._bulk(self.ours)
                if not self.peers:
                    self._bulk(self.ours)
                rates = sgemm.call("measure", shapes=shapes, seconds=SGEMM_SECONDS)
                for library, rate in rates.items():
                    self.sgemm.setdefault(library, []).append(rate)
        for entry in self.entries:
            entry.memory_after_bulk = entry.process.call("peak_memory_mib")
            path = self.scratch / f"{entry.name}.npy"
            entry.process.call("save_vectors", path=str(path))
            entry.vectors = np.load(path)

    def _bulk(self, entry: _Entry) -> None:
        entry.bulk_s.append(entry.process.call("bulk", batch_size=entry.batch_size))

    def race_queries(self) -> None:
        """Single queries, one after the other, in turns."""
        before = self.ours.process.call("stats")["num_tokens"]
        seconds = self.options.query_seconds / self.options.rounds
        for number in range(1, self.options.rounds + 1):
            self.report(f"queries, round {number} of {self.options.rounds}")
            for entry in self.entries:
                entry.latencies_ms += entry.process.call("query", seconds=seconds)
        after = self.ours.process.call("stats")["num_tokens"]
        self.mean_query_tokens = (after - before) / len(self.ours.latencies_ms)

    def measure_mixed(self) -> DuringBulk:
        """Our queries beside our bulk job."""
        self.report("queries during a bulk job")
        mixed = self.ours.process.call(
            "mixed", seconds=self.options.query_seconds, interval_s=QUERY_INTERVAL_S
        )
        rates_without = [self.num_tokens / seconds for seconds in mixed["without_s"]]
        rates_with = [self.num_tokens / seconds for seconds in mixed["with_s"]]
        losses = [1 - 1 / ratio for ratio in aba_ratios(rates_without, rates_with)]
        return DuringBulk(
            query=Latency.of(mixed["latencies_ms"]),
            query_interval_ms=QUERY_INTERVAL_S * 1e3,
            tokens_per_s_without=Spread.of(rates_without),
            tokens_per_s_with=Spread.of(rates_with),
            bulk_loss=Spread.of(losses),
        )

    def results(self) -> tuple[ContestantResult, ...]:
        """Return what each contestant did, embedlib first."""
        return tuple(self._result(place, entry) for place, entry in enumerate(self.entries))

    def _result(self, place: int, entry: _Entry) -> ContestantResult:
        ratio = query_ratio = max_difference = None
        query = Latency.of(entry.latencies_ms)
        if place:
            # Our turn before this peer's, and the one after it, of every round.
            num_peers = len(self.peers)
            ours = [self.num_tokens / seconds for seconds in self.ours.bulk_s]
            ratios = []
            for number, seconds in enumerate(entry.bulk_s):
                before = number * num_peers + place - 1
                ratios += aba_ratios(ours[before : before + 2], [self.num_tokens / seconds])
            ratio = Spread.of(ratios)
            query_ratio = query.p50_ms / Latency.of(self.ours.latencies_ms).p50_ms
            max_difference = float(np.abs(entry.vectors - self.ours.vectors).max())
        return ContestantResult(
            name=entry.name,
            versions=entry.versions,
            batch_size=entry.batch_size,
            tokens_per_s=Spread.of([self.num_tokens / seconds for seconds in entry.bulk_s]),
            texts_per_s=Spread.of([len(self.texts) / seconds for seconds in entry.bulk_s]),
            embedlib_ratio=ratio,
            query=query,
            query_ratio=query_ratio,
            cold_start=entry.cold,
            warm_start=entry.warm,
            peak_memory_after_load_mib=entry.memory_after_load,
            peak_memory_after_bulk_mib=entry.memory_after_bulk,
            max_difference=max_difference,
        )

    def sgemm_result(self) -> Sgemm:
        """Return the machine's limit and our share of it."""
        rates = {library: Spread.of(values) for library, values in self.sgemm.items()}
        flop = flop_per_token(self.encoder)
        ceiling = max(rate.median for rate in rates.values()) / flop
        ours = Spread.of([self.num_tokens / seconds for seconds in self.ours.bulk_s])
        return Sgemm(
            rows=ROWS,
            flop_per_token=flop,
            gflop_per_s={
                library: Spread.of([value / 1e9 for value in rate.values])
                for library, rate in rates.items()
            },
            ceiling_tokens_per_s=ceiling,
            embedlib_share=ours.median / ceiling,
        )
