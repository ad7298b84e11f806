"""The order of events of `embedlib bench --serve`: the server beside the same model in process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embedlib.bench.options import ReportLine, ServeBenchOptions
from embedlib.bench.peers import EMBEDLIB
from embedlib.bench.race import Course, Entry, Race, StartProcess, open_race, start_contestant
from embedlib.bench.result import provenance
from embedlib.bench.run import QUERY_INTERVAL_S
from embedlib.bench.serve_result import ServerAlone, ServeResult, ServerFigures
from embedlib.bench.servers import Server
from embedlib.bench.shapes import find_or_write
from embedlib.measuring.process import (
    ChildProcess,
    ContestantFailedError,
    Process,
    module_command,
)
from embedlib.measuring.spread import Latency, Spread, ratios_in_turns
from embedlib.measuring.texts import QUERIES, docstrings, read_lines
from embedlib.system.cores import usable_cores

CONNECTIONS = 8
"""That send bulk requests."""
BACKFILL_CONNECTIONS = 4
"""That send bulk requests beside queries."""
REQUEST_TEXTS = (128, 32)
"""Texts of a bulk request; the second where a server refuses the first, as some do."""
CLIENTS = 1400
"""That connect at once."""
CLIENT_REQUESTS = 5
"""Of each of them."""
CONNECT_TIMEOUT_S = 30.0
RATE_CONNECTIONS = 16
"""That send requests of one text to a server whose engine answers at once."""


@dataclass(kw_only=True)
class _Contestant:
    """A server, and what was measured of it so far."""

    name: str
    url: str
    model: str
    request_texts: int
    server: Server | None
    """None: it was started by others."""
    bulk_s: list[float] = field(default_factory=list)
    client_cpu_s: float = 0.0
    server_cpu_s: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)
    during_bulk_ms: list[float] = field(default_factory=list)
    has_failed: bool = False

    @property
    def address(self) -> dict[str, str]:
        """Of a request, for the client."""
        return {"url": self.url, "model": self.model}


def run_serve(
    options: ServeBenchOptions,
    *,
    machine: Mapping[str, str],
    command: str = "",
    report: ReportLine = lambda _: None,
    start: StartProcess = start_contestant,
) -> ServeResult:
    """Measure a server beside the same model in process, and beside other servers.

    Args:
        options: what to run.
        machine: facts about this machine to keep with the result.
        command: what the user typed, to keep with the result.
        report: called with progress, one line at a time.
        start: starts the process that holds the model.

    Raises:
        EmbedlibError: the model or the texts cannot be read, or embedlib itself failed.
    """
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="embedlib-bench-")))
        texts = (
            docstrings(options.num_texts)
            if options.texts_path is None
            else read_lines(options.texts_path, options.num_texts)
        )
        course = Course(
            folder=find_or_write(options.model, options.config, scratch).path,
            texts=texts,
            queries=QUERIES,
            config=options.config,
            rounds=options.rounds,
        )
        race = stack.enter_context(open_race(course, scratch, report, start))
        client = stack.enter_context(ChildProcess("embedlib.bench.http_client", "client", 1))
        client.call("set_texts", texts=course.texts, queries=course.queries)
        bench = _ServeBench(race, client, options, stack)
        bench.run()
        return bench.result(provenance(machine, command))


class _ServeBench:
    """A run in progress; its phases are in the order of the methods."""

    def __init__(
        self, race: Race, client: Process, options: ServeBenchOptions, stack: ExitStack
    ) -> None:
        self.race = race
        self.client = client
        self.options = options
        self.contestants: list[_Contestant] = []
        self.in_process_ms: list[float] = []
        self.in_process_during_bulk_ms: list[float] = []
        self.alone: ServerAlone | None = None
        self._stack = stack

    @property
    def ours(self) -> Entry:
        """The model in process."""
        return self.race.ours[0]

    def run(self) -> None:
        """Run all phases."""
        self._enter_ours()
        for name, url in self.options.urls.items():
            try:
                self._enter(name, url, self.options.model, None)
            except ContestantFailedError as error:
                self.race.skip(name, error.reason)
        self._race_bulk()
        self._race_queries()
        self._measure_mixed()
        self.race.report("a server whose engine answers at once")
        fake = module_command("embedlib.bench.fake_server")
        with closing(Server("embedlib serve", fake)) as server:
            self.alone = self._measure_alone(server)

    def _enter_ours(self) -> None:
        """Load the model in process, then in a server, which computes in the same precision."""
        self.race.start_cold(EMBEDLIB)
        self.race.ours.append(self.race.enter(EMBEDLIB))
        self.race.report("embedlib serve: starting")
        config, folder = self.options.config, str(self.race.course.folder)
        arguments = [
            *("serve", folder, "--name", f"served={folder}"),
            *("--threads", str(config.num_threads)),
            # As the model in process, whatever the environment sets, and nothing measured beside.
            *("--device", "cpu", "--no-prepare"),
            *("--engine-cache-dir", str(self.race.cache_of(EMBEDLIB))),
        ]
        # Any other one than float32 is found in the cache.
        is_float32 = self.ours.loaded.precision == "float32"
        arguments += ["--precision", "float32" if is_float32 else "auto"]
        if config.max_batch_tokens is not None:
            arguments += ["--max-batch-tokens", str(config.max_batch_tokens)]
        command = module_command("embedlib", *arguments)
        server = self._stack.enter_context(closing(Server("embedlib serve", command)))
        self._enter("embedlib serve", server.url, "served", server)

    def _enter(self, name: str, url: str, model: str, server: Server | None) -> None:
        """Find the number of texts that a server takes, and do one bulk pass.

        Raises:
            ContestantFailedError: it cannot be reached, or refuses them.
        """
        for request_texts in REQUEST_TEXTS:
            status = self.client.call("status", url=url, model=model, request_texts=request_texts)
            if status == 200:
                contestant = _Contestant(
                    name=name, url=url, model=model, request_texts=request_texts, server=server
                )
                self._bulk(contestant)
                self.contestants.append(contestant)
                return
        raise ContestantFailedError(name, f"{url} answers {REQUEST_TEXTS[-1]} texts with {status}")

    @contextmanager
    def _leaving_out(self, contestant: _Contestant) -> Iterator[None]:
        """Leave out a server of others that fails in the block."""
        try:
            yield
        except ContestantFailedError as error:
            if contestant.server is not None:
                raise
            contestant.has_failed = True
            self.race.skip(contestant.name, error.reason)

    @property
    def running(self) -> list[_Contestant]:
        """The servers that have not failed."""
        return [each for each in self.contestants if not each.has_failed]

    def _bulk(self, contestant: _Contestant) -> dict[str, float]:
        done: dict[str, float] = self.client.call(
            "bulk",
            **contestant.address,
            request_texts=contestant.request_texts,
            connections=CONNECTIONS,
        )
        return done

    def _race_bulk(self) -> None:
        """Do the bulk passes: one in process before the first, between any two, and at the end."""
        self.ours.bulk()
        for number in range(1, self.options.rounds + 1):
            self.race.report(f"bulk, round {number} of {self.options.rounds}")
            for contestant in self.contestants:
                with self._leaving_out(contestant):
                    self._take_turn(contestant)
                self.ours.bulk()

    def _take_turn(self, contestant: _Contestant) -> None:
        if contestant.has_failed:
            return  # but its place between two turns of ours stays
        server = contestant.server
        before = server.cpu_s if server else 0.0
        done = self._bulk(contestant)
        contestant.bulk_s.append(done["seconds"])
        contestant.client_cpu_s += done["client_cpu_s"]
        contestant.server_cpu_s += (server.cpu_s if server else 0.0) - before

    def _race_queries(self) -> None:
        """Ask single queries, in turns as well: their share of the time in each round."""
        seconds = self.options.query_seconds / self.options.rounds
        for number in range(1, self.options.rounds + 1):
            self.race.report(f"queries, round {number} of {self.options.rounds}")
            self.in_process_ms += self.ours.process.call("query", seconds=seconds)
            for contestant in self.running:
                with self._leaving_out(contestant):
                    done = self.client.call("query", **contestant.address, seconds=seconds)
                    contestant.latencies_ms += done["latencies_ms"]

    def _measure_mixed(self) -> None:
        """Ask queries beside bulk."""
        self.race.report("queries beside bulk")
        seconds = self.options.query_seconds
        mixed = self.ours.process.call(
            "mixed", seconds=seconds, interval_s=QUERY_INTERVAL_S, batch_size=None
        )
        self.in_process_during_bulk_ms = mixed["latencies_ms"]
        for contestant in self.running:
            with self._leaving_out(contestant):
                done = self.client.call(
                    "mixed",
                    **contestant.address,
                    seconds=seconds,
                    interval_s=QUERY_INTERVAL_S,
                    request_texts=contestant.request_texts,
                    connections=BACKFILL_CONNECTIONS,
                )
                contestant.during_bulk_ms = done["latencies_ms"]

    def _measure_alone(self, server: Server) -> ServerAlone:
        about = {"url": server.url, "model": "fake"}
        before = server.cpu_s
        rate = self.client.call(
            "query", **about, seconds=self.options.query_seconds, connections=RATE_CONNECTIONS
        )
        cpu_s = server.cpu_s - before
        num_requests = len(rate["latencies_ms"])
        crowd = self.client.call(
            "crowd",
            **about,
            clients=CLIENTS,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            requests=CLIENT_REQUESTS,
        )
        return ServerAlone(
            requests_per_s=num_requests / rate["seconds"],
            requests_per_core_s=num_requests / max(cpu_s, 1e-9),
            latency=Latency.of(rate["latencies_ms"]),
            clients=CLIENTS,
            crowd_requests=CLIENTS * CLIENT_REQUESTS,
            crowd_failures=crowd["failures"],
            crowd_latency=Latency.of(crowd["latencies_ms"]) if crowd["latencies_ms"] else None,
            client_share=_share(rate["client_cpu_s"], rate["seconds"]),
        )

    def result(self, about_run: dict[str, Any]) -> ServeResult:
        """Return what was found."""
        assert self.alone is not None, "run comes first; this is a bug in embedlib"
        course = self.race.course
        return ServeResult(
            **about_run,
            model=self.options.model,
            precision=self.ours.loaded.precision,
            num_texts=len(course.texts),
            num_different_texts=len(set(course.texts)),
            num_tokens=self.race.num_tokens,
            threads=course.config.num_threads,
            rounds=course.rounds,
            connections=CONNECTIONS,
            versions=self.ours.loaded.versions,
            in_process_texts_per_s=Spread.of(self.ours.rates(len(course.texts))),
            in_process_query=Latency.of(self.in_process_ms),
            in_process_during_bulk=Latency.of(self.in_process_during_bulk_ms),
            servers=tuple(map(self._figures, self.running)),
            skipped=tuple(self.race.skipped),
            alone=self.alone,
        )

    def _figures(self, contestant: _Contestant) -> ServerFigures:
        rates = [len(self.race.course.texts) / seconds for seconds in contestant.bulk_s]
        query, wall_s = Latency.of(contestant.latencies_ms), sum(contestant.bulk_s)
        place, num_servers = self.contestants.index(contestant), len(self.contestants)
        ours = self.ours.rates(len(self.race.course.texts))
        ratios = [1 / ratio for ratio in ratios_in_turns(ours, rates, place, num_servers)]
        return ServerFigures(
            name=contestant.name,
            request_texts=contestant.request_texts,
            texts_per_s=Spread.of(rates),
            bulk_ratio=Spread.of(ratios),
            query=query,
            query_more_ms=query.p50_ms - Latency.of(self.in_process_ms).p50_ms,
            during_bulk=Latency.of(contestant.during_bulk_ms),
            client_share=_share(contestant.client_cpu_s, wall_s),
            server_share=_share(contestant.server_cpu_s, wall_s) if contestant.server else None,
        )


def _share(cpu_s: float, wall_s: float) -> float:
    """Return the share of the cores of this process that some seconds of computing are."""
    return cpu_s / wall_s / usable_cores()
