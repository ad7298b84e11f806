"""The order of events of `embedlib bench`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from embedlib.bench.contestants import EMBEDLIB, missing_modules
from embedlib.bench.options import BenchOptions, ReportLine
from embedlib.bench.race import Course, Entry, Race, StartProcess, open_race, start_contestant
from embedlib.bench.result import (
    BenchResult,
    ContestantResult,
    DuringBulk,
    Sgemm,
    Skipped,
    Start,
    provenance,
)
from embedlib.bench.shapes import find_or_write
from embedlib.measuring.process import ContestantFailedError, Process
from embedlib.measuring.sgemm import ROWS, SGEMM, flop_per_token, linear_shapes
from embedlib.measuring.spread import Latency, Spread, aba_ratios
from embedlib.measuring.texts import QUERIES, docstrings, read_lines
from embedlib.models.reading.files import read_model_files
from embedlib.models.spec import Encoder

QUERY_INTERVAL_S = 0.1
"""Between two queries during a bulk job."""

SGEMM_SECONDS = 1.0
"""Per library and round."""


def run_bench(
    options: BenchOptions,
    *,
    machine: Mapping[str, str],
    embedlib_version: str,
    command: str = "",
    report: ReportLine = lambda _: None,
    start: StartProcess = start_contestant,
) -> BenchResult:
    """Run embedlib and its peers side by side.

    Args:
        options: what to run.
        machine: facts about this machine to keep with the result.
        embedlib_version: the version to keep with the result.
        command: what the user typed, to keep with the result.
        report: called with progress, one line at a time.
        start: starts the process of a contestant.

    Raises:
        EmbedlibError: the model or the texts cannot be read, or embedlib itself failed. A peer that
            fails is left out and named in the result.
    """
    if options.texts_path is None:
        texts, origin = docstrings(options.num_texts), "documentation strings of Python's library"
    else:
        texts, origin = read_lines(options.texts_path, options.num_texts), options.texts_path.name
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="embedlib-bench-")))
        folder = find_or_write(options.model, options.config, scratch)
        encoder = read_model_files(folder.path).spec.encoder
        course = Course(
            folder=folder.path,
            texts=texts,
            queries=QUERIES,
            config=options.config,
            rounds=options.rounds,
        )
        race = stack.enter_context(open_race(course, scratch, report, start))
        bench = _Bench(race, options, encoder)
        bench.enter_all()
        bench.race_bulk()
        stats = bench.ours.entry.stats()
        bench.race_queries()
        during_bulk = bench.measure_mixed()
        return BenchResult(
            **provenance(machine, embedlib_version, command),
            model=options.model,
            revision=folder.revision,
            precision="float32",
            texts=origin,
            num_texts=len(texts),
            num_tokens=race.num_tokens,
            num_truncated=race.num_truncated,
            mean_query_tokens=bench.mean_query_tokens,
            threads=options.config.num_threads,
            rounds=options.rounds,
            contestants=tuple(map(bench.result, bench.figures)),
            skipped=tuple(bench.skipped),
            during_bulk=during_bulk,
            padding_share=stats["padding_share"],
            engine_idle_share=stats["engine_idle_share"],
            sgemm=bench.sgemm_result(),
        )


@dataclass(kw_only=True)
class _Figures:
    """What was measured of a contestant so far, beside its bulk passes."""

    entry: Entry
    cold: Start
    memory_after_bulk: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)
    vectors: Any = None


class _Bench:
    """A run in progress; its phases are in the order of the methods."""

    def __init__(self, race: Race, options: BenchOptions, encoder: Encoder) -> None:
        self.race = race
        self.options = options
        self.encoder = encoder
        self.figures: list[_Figures] = []
        self.skipped: list[Skipped] = []
        self.sgemm: dict[str, list[float]] = {}
        self.mean_query_tokens = 0.0

    @property
    def ours(self) -> _Figures:
        return self.figures[0]

    def enter_all(self) -> None:
        """Start every contestant, embedlib first, and let each warm up."""
        self.race.ours.append(self._enter(EMBEDLIB))
        for name in self.options.vs:
            missing = missing_modules(name)
            if missing:
                reason = f'{", ".join(missing)} missing; pip install "embedlib[bench]"'
                self._skip(name, reason)
                continue
            try:
                self.race.peers.append(self._enter(name))
            except ContestantFailedError as error:
                self._skip(name, error.reason)

    def _skip(self, name: str, reason: str) -> None:
        self.race.report(f"{name}: not measured: {reason}")
        self.skipped.append(Skipped(name=name, reason=reason))

    def _enter(self, name: str) -> Entry:
        """Start a contestant twice: first with nothing prepared, then to stay."""
        self.race.report(f"{name}: starting, first with nothing prepared, then again")
        with self.race.start(name) as process:
            cold = self.race.load(name, process)
            process.call("fill_cache", cache_dir=str(self.race.cache_of(name)))
        entry = self.race.enter(name)
        self.figures.append(_Figures(entry=entry, cold=Start.of(cold)))
        return entry

    def race_bulk(self) -> None:
        """Measure bulk passes in turns, and the machine's own limit after each round."""
        # One thread per library call: the process that measures starts its own threads.
        with self.race.start(SGEMM, 1) as sgemm:
            self.race.take_turns(lambda: self._measure_sgemm(sgemm))
        for figures in self.figures:
            figures.memory_after_bulk = figures.entry.process.call("peak_memory_mib")
            figures.vectors = self.race.vectors(figures.entry)

    def _measure_sgemm(self, process: Process) -> None:
        shapes = linear_shapes(self.encoder)
        rates = process.call("measure", shapes=shapes, seconds=SGEMM_SECONDS)
        for library, rate in rates.items():
            self.sgemm.setdefault(library, []).append(rate)

    def race_queries(self) -> None:
        """Measure single queries, one after the other, in turns."""
        before = self.ours.entry.stats()["num_tokens"]
        seconds = self.options.query_seconds / self.options.rounds
        for number in range(1, self.options.rounds + 1):
            self.race.report(f"queries, round {number} of {self.options.rounds}")
            for figures in self.figures:
                figures.latencies_ms += figures.entry.process.call("query", seconds=seconds)
        after = self.ours.entry.stats()["num_tokens"]
        self.mean_query_tokens = (after - before) / len(self.ours.latencies_ms)

    def measure_mixed(self) -> DuringBulk:
        """Measure our queries beside our bulk job."""
        self.race.report("queries during a bulk job")
        mixed = self.ours.entry.process.call(
            "mixed", seconds=self.options.query_seconds, interval_s=QUERY_INTERVAL_S
        )
        rates_without = [self.race.num_tokens / seconds for seconds in mixed["without_s"]]
        rates_with = [self.race.num_tokens / seconds for seconds in mixed["with_s"]]
        losses = [1 - 1 / ratio for ratio in aba_ratios(rates_without, rates_with)]
        return DuringBulk(
            query=Latency.of(mixed["latencies_ms"]),
            query_interval_ms=QUERY_INTERVAL_S * 1e3,
            tokens_per_s_without=Spread.of(rates_without),
            tokens_per_s_with=Spread.of(rates_with),
            bulk_loss=Spread.of(losses),
        )

    def result(self, figures: _Figures) -> ContestantResult:
        """Return what a contestant did."""
        entry, ours = figures.entry, self.ours
        ratio = query_ratio = max_difference = None
        query = Latency.of(figures.latencies_ms)
        if figures is not ours:
            ratio = Spread.of(self.race.ratios(ours.entry, entry))
            query_ratio = query.p50_ms / Latency.of(ours.latencies_ms).p50_ms
            max_difference = float(np.abs(figures.vectors - ours.vectors).max())
        return ContestantResult(
            name=entry.name,
            versions=entry.loaded.versions,
            batch_size=entry.batch_size,
            tokens_per_s=Spread.of(entry.rates(self.race.num_tokens)),
            texts_per_s=Spread.of(entry.rates(len(self.race.course.texts))),
            embedlib_ratio=ratio,
            query=query,
            query_ratio=query_ratio,
            cold_start=figures.cold,
            warm_start=Start.of(entry.loaded),
            peak_memory_after_load_mib=entry.loaded.peak_memory_mib,
            peak_memory_after_bulk_mib=figures.memory_after_bulk,
            max_difference=max_difference,
        )

    def sgemm_result(self) -> Sgemm:
        """Return the machine's limit and our share of it."""
        flop = flop_per_token(self.encoder)
        gflop_per_s = {
            library: Spread.of([value / 1e9 for value in values])
            for library, values in self.sgemm.items()
        }
        ceiling = max(rate.median for rate in gflop_per_s.values()) * 1e9 / flop
        ours = Spread.of(self.ours.entry.rates(self.race.num_tokens))
        return Sgemm(
            rows=ROWS,
            flop_per_token=flop,
            gflop_per_s=gflop_per_s,
            ceiling_tokens_per_s=ceiling,
            embedlib_share=ours.median / ceiling,
        )
