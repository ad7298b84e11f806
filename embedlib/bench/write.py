"""How fast a destination takes rows: written alone, beside a peer, and by `index`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from embedlib.bench.options import WriteOptions
from embedlib.bench.write_peers import LangChainPeer, QdrantClientPeer
from embedlib.embedder import Embedder
from embedlib.errors import SinkError, typed_line
from embedlib.indexing.pipeline import index
from embedlib.indexing.rows import Document, Row, row_digest, row_id
from embedlib.indexing.sinks.opening import open_sink
from embedlib.indexing.sinks.protocol import Sink, Target, Tell
from embedlib.measuring.markdown import markdown
from embedlib.measuring.spread import aba_ratios
from embedlib.measuring.texts import docstrings
from embedlib.vectors.arrays import Vectors

BENCH_MODEL = "embedlib bench-write"
"""Stored as the model's name, so that only rows of a former measurement are dropped."""

_FINGERPRINT = "bench-write:0"

WritePeer = LangChainPeer | QdrantClientPeer


@dataclass(frozen=True, kw_only=True)
class WriteResult:
    """Rates, one number per round."""

    destination: str
    num_rows: int
    dim: int
    batch_rows: int
    rows_per_s: list[float] = field(default_factory=list)
    """Writing alone, vectors ready, the search index not built."""
    finish_s: list[float] = field(default_factory=list)
    """Building the search index."""
    peer_rows_per_s: dict[str, list[float]] = field(default_factory=dict)
    """By peer; `rows_per_s` then has one turn before them and one after each round."""
    encode_s: list[float] = field(default_factory=list)
    """`encode` alone, before and after each turn of `index_s`."""
    index_s: list[float] = field(default_factory=list)
    """The same texts through `embedlib.index`, without building the search index."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Why a peer could not be measured, by peer."""

    @property
    def peer_ratio(self) -> dict[str, float]:
        """By peer, how many times as fast embedlib is in the turns around it; the median."""
        return {
            name: statistics.median(aba_ratios(self.rows_per_s, rates))
            for name, rates in self.peer_rows_per_s.items()
        }

    @property
    def index_ratio(self) -> float | None:
        """Time of `index` over that of `encode` just before and after; the median."""
        if not self.index_s:
            return None
        return statistics.median(1 / ratio for ratio in aba_ratios(self.encode_s, self.index_s))

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {**asdict(self), "peer_ratio": self.peer_ratio, "index_ratio": self.index_ratio}


def run_write_bench(options: WriteOptions, report: Tell) -> WriteResult:
    """Measure a destination; it must be new, or hold rows of a former measurement.

    Raises:
        SinkError: it holds other rows, or cannot be used.
        ConfigError: the peer is missing, or needs another destination.
    """
    with closing(open_sink(options.url)) as sink:
        _refuse_other_rows(sink)
        destination = sink.name
    peers: list[WritePeer] = []
    try:
        for peer in _make_peers(options):  # a later one may refuse what an earlier one took
            peers.append(peer)
        return _measure(options, destination, list(peers), report)
    finally:
        for peer in peers:
            try:
                peer.close()
            except Exception as error:  # of another library; the figures are there
                report(f"{peer.name}: what it wrote may be left: {typed_line(error)}")


def _measure(
    options: WriteOptions, destination: str, peers: list[WritePeer], report: Tell
) -> WriteResult:
    rows = _make_rows(options.num_rows)
    random = np.random.default_rng(0)
    vectors = random.standard_normal((options.num_rows, options.dim), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    result = WriteResult(
        destination=destination,
        num_rows=options.num_rows,
        dim=options.dim,
        batch_rows=options.batch_rows,
    )
    num_turns = options.rounds + bool(peers)
    for number in range(1, num_turns + 1):
        report(f"writing, turn {number} of {num_turns}")
        with closing(_open_bench_sink(options.url, options.dim)) as sink:
            result.rows_per_s.append(_write(sink, rows, vectors, options.batch_rows))
            if number == num_turns and options.num_rows <= 100_000:
                report("building the search index")
                started = time.perf_counter()
                sink.finish()
                result.finish_s.append(time.perf_counter() - started)
        if number <= options.rounds:
            _take_turns(peers, rows, vectors, result, report)
    if options.model is not None:
        _measure_index(options, result, report)
    return result


def _make_peers(options: WriteOptions) -> Iterator[WritePeer]:
    if options.vs_langchain:
        yield LangChainPeer(options.url, options.dim)
    if options.vs_qdrant_client:
        for has_defaults in (False, True):
            yield QdrantClientPeer(options.url, options.dim, has_defaults=has_defaults)


def _take_turns(
    peers: list[WritePeer],
    rows: Sequence[Row],
    vectors: Vectors,
    result: WriteResult,
    report: Tell,
) -> None:
    """Let each peer write; one that fails is left out, and so is what was measured of it."""
    for peer in list(peers):
        report(peer.name)
        try:
            peer.prepare()
            rate = peer.write(rows[: peer.max_rows], vectors[: peer.max_rows])
        except Exception as error:  # of another library
            peers.remove(peer)
            result.peer_rows_per_s.pop(peer.name, None)
            result.skipped[peer.name] = typed_line(error)
            report(f"{peer.name}: not measured: {result.skipped[peer.name]}")
        else:
            result.peer_rows_per_s.setdefault(peer.name, []).append(rate)


def _make_rows(num_rows: int) -> list[Row]:
    """Rows with real text of about 270 bytes and small metadata."""
    texts = docstrings(min(num_rows, 2000))
    rows = []
    for number in range(num_rows):
        text = texts[number % len(texts)][:270]
        metadata = {"source": f"file-{number // 10}.txt", "page": number % 10}
        rows.append(
            Row(
                id=row_id(f"file-{number}", 0),
                source_id=f"file-{number}",
                chunk=0,
                text=text,
                metadata=metadata,
                digest=row_digest(text, metadata, _FINGERPRINT),
            )
        )
    return rows


def _refuse_other_rows(sink: Sink) -> None:
    state = sink.inspect()
    if state is not None and state.model != BENCH_MODEL:
        raise SinkError(
            f"{sink.name} holds rows of {state.model!r}; bench-write needs a new destination"
        )


def _open_bench_sink(url: str, dim: int, fingerprint: str = _FINGERPRINT) -> Sink:
    sink = open_sink(url)
    try:
        _refuse_other_rows(sink)
        target = Target(
            dim=dim,
            similarity="cosine",
            fingerprint=fingerprint,
            model=BENCH_MODEL,
            recreate=True,
        )
        sink.begin(target, lambda _: None)
    except BaseException:
        sink.close()
        raise
    return sink


def _write(sink: Sink, rows: Sequence[Row], vectors: Vectors, batch_rows: int) -> float:
    started = time.perf_counter()
    for start in range(0, len(rows), batch_rows):
        part = slice(start, start + batch_rows)
        sink.write(rows[part], vectors[part])
    sink.digests([rows[-1].id])  # until all can be read
    return len(rows) / (time.perf_counter() - started)


class _NoIndex:
    """A sink that builds no search index, so that only the load is compared."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def begin(self, target: Target, tell: Tell) -> None:
        """Do nothing: `_open_bench_sink` has begun the load."""

    def finish(self) -> None:
        """Do nothing: the search index is not part of what is compared."""


def _measure_index(options: WriteOptions, result: WriteResult, report: Tell) -> None:
    assert options.model is not None
    texts = docstrings(options.num_texts)
    documents = [Document(id=f"d{number}", text=text) for number, text in enumerate(texts)]
    with Embedder(options.model, on_truncate="ignore") as embedder:
        dim = embedder.get_embedding_dimension()

        def encode() -> None:
            started = time.perf_counter()
            embedder.encode_document(texts)
            result.encode_s.append(time.perf_counter() - started)

        embedder.encode_document(texts[:200])  # the first batches prepare the engine
        report("encode alone")
        encode()
        for number in range(1, options.rounds + 1):
            report(f"index, round {number} of {options.rounds}")
            with closing(_open_bench_sink(options.url, dim, embedder.fingerprint)) as sink:
                started = time.perf_counter()
                index(documents, _NoIndex(sink), embedder=embedder, chunk=False)
                result.index_s.append(time.perf_counter() - started)
            encode()


def render(result: WriteResult) -> str:
    """Return the result as a Markdown table."""
    rows = [
        (result.destination, ""),
        (
            f"writing {result.num_rows:,} x {result.dim}, batches of {result.batch_rows:,}",
            f"{_spread(result.rows_per_s, ',.0f')} rows/s",
        ),
    ]
    if result.finish_s:
        rows.append(("building the search index", f"{_spread(result.finish_s, '.1f')} s"))
    for name, rates in result.peer_rows_per_s.items():
        rows.append((name, f"{_spread(rates, ',.0f')} rows/s"))
        rows.append(("embedlib, times as fast", f"{result.peer_ratio[name]:.1f}x"))
    rows += [(name, f"not measured: {reason}") for name, reason in result.skipped.items()]
    if result.index_s:
        rows.append(("encode alone", f"{_spread(result.encode_s, '.2f')} s"))
        rows.append(("index of the same texts", f"{_spread(result.index_s, '.2f')} s"))
        rows.append(("index over encode", f"{result.index_ratio:.3f}"))
    return markdown(rows)


def _spread(values: Sequence[float], form: str) -> str:
    median = format(statistics.median(values), form)
    if len(values) == 1:
        return median
    return f"{median} ({format(min(values), form)} to {format(max(values), form)})"
