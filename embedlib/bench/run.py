"""The order of events of `embedlib bench`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from embedlib.bench.findings import (
    closeness,
    limits_of,
    of_the_limit,
    weights_mib,
    why_not_comparable,
)
from embedlib.bench.options import BenchOptions, ReportLine
from embedlib.bench.peers import BY_TOKENS, EMBEDLIB, FLOAT32, PEERS
from embedlib.bench.race import Course, Entry, Race, StartProcess, open_race, start_contestant
from embedlib.bench.result import (
    BenchResult,
    ContestantResult,
    DuringBulk,
    Limits,
    Start,
    provenance,
)
from embedlib.bench.shapes import find_or_write
from embedlib.errors import ConfigError
from embedlib.measuring.process import ContestantFailedError, Process
from embedlib.measuring.sgemm import SGEMM, linear_shapes
from embedlib.measuring.spread import Latency, Spread, aba_ratios
from embedlib.measuring.texts import QUERIES, docstrings, read_lines, texts_of_about
from embedlib.models.folders import read_folder
from embedlib.models.hub import ModelFolder
from embedlib.models.reading.files import ModelFiles, is_scoring_model
from embedlib.models.reading.tokenizer_files import load_tokenizer

QUERY_INTERVAL_S = 0.1
"""Between two queries during a bulk job, at least."""

MIN_INTERVAL_QUERIES = 10
"""The same in lone queries of that contestant: the queries alone take a tenth of the machine."""

SGEMM_SECONDS = 0.5
"""Per library, precision and round."""


def run_bench(
    options: BenchOptions,
    *,
    machine: Mapping[str, str],
    command: str = "",
    report: ReportLine = lambda _: None,
    start: StartProcess | None = None,
) -> BenchResult:
    """Run embedlib and its peers side by side.

    Args:
        options: what to run.
        machine: facts about this machine to keep with the result.
        command: what the user typed, to keep with the result.
        report: called with progress, one line at a time.
        start: starts the process of a contestant; None: as `options` say.

    Raises:
        EmbedlibError: the model or the texts cannot be read, or embedlib itself failed. A peer that
            fails is left out and named in the result.
    """
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="embedlib-bench-")))
        folder = find_or_write(options.model, options.config, scratch)
        files = _files(options.model, folder.path)
        texts, origin = _texts(options, files)
        course = Course(
            folder=folder.path,
            texts=texts,
            queries=QUERIES,
            config=options.config,
            rounds=options.rounds,
        )
        start = start or partial(start_contestant, pythons=options.pythons)
        race = stack.enter_context(open_race(course, scratch, report, start))
        bench = _Bench(race, options, files)
        bench.run()
        about_run = provenance(machine, command)
        return bench.result(folder, origin, about_run)


def _files(model: str, folder: Path) -> ModelFiles:
    """Return the files of a model that makes one dense vector of a text.

    Raises:
        ConfigError: it makes something else.
    """
    if is_scoring_model(folder):
        raise ConfigError(f"{model} computes scores; rerankers are measured with --task rerank")
    files = read_folder(folder)
    if files.spec.late_interaction is not None or files.spec.is_sparse:
        raise ConfigError(f"{model} makes no dense vector of a text, and only those are measured")
    return files


def _texts(options: BenchOptions, files: ModelFiles) -> tuple[list[str], str]:
    """Return the texts of a bulk pass, and where they come from."""
    if options.texts_path is not None:
        return read_lines(options.texts_path, options.num_texts), options.texts_path.name
    origin = "documentation strings of Python's library"
    if options.text_tokens is None:
        return docstrings(options.num_texts), origin
    made = texts_of_about(options.text_tokens, options.num_texts, load_tokenizer(files))
    if not made:
        raise ConfigError(
            f"text_tokens = {options.text_tokens}: embedlib has no text of this length; give less, "
            "or your own texts as texts_path"
        )
    return made, f"pieces of {origin}"


@dataclass(kw_only=True)
class _Figures:
    """What was measured of a contestant so far, beside its bulk passes."""

    entry: Entry
    cold: Start
    memory_after_bulk: dict[str, float] = field(default_factory=dict)
    latencies_ms: list[float] = field(default_factory=list)
    vectors: Any = None
    during_bulk: DuringBulk | None = None
    during_bulk_failure: str | None = None


class _Bench:
    """A run in progress; its phases are in the order of the methods."""

    def __init__(self, race: Race, options: BenchOptions, files: ModelFiles) -> None:
        self.race = race
        self.options = options
        self.files = files
        self.figures: list[_Figures] = []
        self.products: list[dict[str, dict[str, float]]] = []
        self.reads: list[float] = []
        self.stats: dict[str, float] = {}
        self.mean_query_tokens = 0.0

    @property
    def ours(self) -> _Figures:
        return self.figures[0]

    def run(self) -> None:
        """Run all phases."""
        self._enter_all()
        self._race_bulk()
        self.stats = self.ours.entry.stats()
        self._race_queries()
        for figures in self.figures:
            self._measure_mixed(figures)

    def _enter_all(self) -> None:
        """Start every contestant, embedlib first, and let each warm up."""
        for name in (EMBEDLIB, FLOAT32):
            self.race.ours.append(self._enter(name))
        for name in self.options.vs:
            try:
                self.race.peers.append(self._enter(name))
            except ContestantFailedError as error:
                self.race.skip(name, error.reason)

    @contextmanager
    def _leaving_out(self, figures: _Figures) -> Iterator[None]:
        """Leave out a peer that fails in the block, and what was measured of it."""
        try:
            yield
        except ContestantFailedError as error:
            if figures.entry in self.race.ours:
                raise
            self.race.skip(figures.entry.name, error.reason)
            self.figures = [one for one in self.figures if one is not figures]

    def _enter(self, name: str) -> Entry:
        """Start a contestant twice: first with nothing prepared, then to stay."""
        cold = self.race.start_cold(name)
        entry = self.race.enter(name)
        self.figures.append(_Figures(entry=entry, cold=Start.of(cold)))
        return entry

    def _race_bulk(self) -> None:
        """Measure bulk passes in turns, and the machine's own limits after each round."""
        # One thread per library call: the process that measures starts its own threads.
        with self.race.start(SGEMM, 1) as limits:
            self.race.take_turns(lambda: self._measure_limits(limits))
        for figures in self.figures:
            with self._leaving_out(figures):
                self._keep_bulk(figures)

    def _keep_bulk(self, figures: _Figures) -> None:
        """Fetch what a contestant has of its bulk passes.

        Raises:
            ContestantFailedError: it failed in one, or its vectors have no cosines to embedlib's.
        """
        entry = figures.entry
        failure = entry.failure
        if failure is None:
            figures.memory_after_bulk = entry.process.call("memory")
            figures.vectors = self.race.vectors(entry)
            if entry in self.race.peers:
                failure = why_not_comparable(figures.vectors, self.figures[1].vectors)
        if failure is not None:
            raise ContestantFailedError(entry.name, failure)

    def _measure_limits(self, process: Process) -> None:
        shapes = linear_shapes(self.files.spec.encoder)
        self.products.append(process.call("measure", shapes=shapes, seconds=SGEMM_SECONDS))
        self.reads.append(process.call("read", seconds=SGEMM_SECONDS))

    def _race_queries(self) -> None:
        """Measure single queries, one after the other, in turns."""
        before = self.ours.entry.stats()["num_tokens"]
        seconds = self.options.query_seconds / self.options.rounds
        for number in range(1, self.options.rounds + 1):
            self.race.report(f"queries, round {number} of {self.options.rounds}")
            # Back and forth: who comes first in every round finds its memory and caches colder.
            for figures in self.figures if number % 2 else reversed(self.figures):
                with self._leaving_out(figures):
                    figures.latencies_ms += figures.entry.process.call("query", seconds=seconds)
        after = self.ours.entry.stats()["num_tokens"]
        self.mean_query_tokens = (after - before) / len(self.ours.latencies_ms)

    def _measure_mixed(self, figures: _Figures) -> None:
        """Measure a contestant's queries beside its own bulk job."""
        entry = figures.entry
        self.race.report(f"{entry.name}: queries during a bulk job")
        lone_s = Latency.of(figures.latencies_ms).p50_ms / 1e3
        interval_s = max(QUERY_INTERVAL_S, MIN_INTERVAL_QUERIES * lone_s)
        try:
            mixed = entry.process.call(
                "mixed",
                seconds=self.options.query_seconds,
                interval_s=interval_s,
                batch_size=entry.batch_size,
            )
        except ContestantFailedError as error:
            if entry in self.race.ours:
                raise
            figures.during_bulk_failure = error.reason
            return
        rates_without = [self.race.num_tokens / seconds for seconds in mixed["without_s"]]
        rates_with = [self.race.num_tokens / seconds for seconds in mixed["with_s"]]
        losses = [1 - 1 / ratio for ratio in aba_ratios(rates_without, rates_with)]
        figures.during_bulk = DuringBulk(
            query=Latency.of(mixed["latencies_ms"]),
            query_interval_ms=interval_s * 1e3,
            tokens_per_s_without=Spread.of(rates_without),
            tokens_per_s_with=Spread.of(rates_with),
            bulk_loss=Spread.of(losses),
        )

    def result(self, folder: ModelFolder, origin: str, about_run: dict[str, Any]) -> BenchResult:
        """Return what was found."""
        limits = limits_of(self.files.spec.encoder, self.products, self.reads)
        return BenchResult(
            **about_run,
            model=self.options.model,
            revision=folder.revision,
            texts=origin,
            num_texts=len(self.race.course.texts),
            num_different_texts=len(set(self.race.course.texts)),
            num_tokens=self.race.num_tokens,
            num_truncated=self.race.num_truncated,
            mean_query_tokens=self.mean_query_tokens,
            threads=self.options.config.num_threads,
            rounds=self.options.rounds,
            contestants=tuple(self._contestant(figures, limits) for figures in self.figures),
            skipped=tuple(self.race.skipped),
            weights_mib=weights_mib(self.files),
            padding_share=self.stats["padding_share"],
            engine_idle_share=None
            if self.files.spec.encoder.is_table
            else self.stats["engine_idle_share"],
            limits=limits,
        )

    def _contestant(self, figures: _Figures, limits: Limits) -> ContestantResult:
        """Return what a contestant did."""
        entry, peers = figures.entry, self.race.peers
        query = Latency.of(figures.latencies_ms)
        tokens_per_s = Spread.of(entry.rates(self.race.num_tokens))
        ratios = [
            Spread.of(self.race.ratios(ours, entry)) if entry in peers else None
            for ours in self.race.ours
        ]
        own = PEERS[entry.name].own_batches if entry.name in PEERS else BY_TOKENS
        return ContestantResult(
            name=entry.name,
            precision=entry.loaded.precision,
            versions=entry.loaded.versions,
            batches=own or f"{entry.batch_size} texts",
            tokens_per_s=tokens_per_s,
            texts_per_s=Spread.of(entry.rates(len(self.race.course.texts))),
            embedlib_ratio=ratios[0],
            float32_ratio=ratios[1],
            query=query,
            query_ratio=query.p50_ms / Latency.of(self.ours.latencies_ms).p50_ms
            if entry in peers
            else None,
            during_bulk=figures.during_bulk,
            during_bulk_failure=figures.during_bulk_failure,
            cold_start=figures.cold,
            warm_start=Start.of(entry.loaded),
            memory_after_load_mib=entry.loaded.memory_mib,
            memory_after_bulk_mib=figures.memory_after_bulk,
            closeness=closeness(figures.vectors, self.figures[1].vectors),
            of_the_limit=of_the_limit(
                limits,
                entry.loaded.precision,
                tokens_per_s.median,
                query.p50_ms,
                self.mean_query_tokens,
            ),
        )
