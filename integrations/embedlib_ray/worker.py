"""What runs on the machines of the cluster: a model, and the way of rows to their destination."""

from __future__ import annotations

import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import tokenizers

import embedlib
from embedlib.config import AnySimilarity, Config
from embedlib.errors import ConfigError, EmbedlibError
from embedlib.indexing import (
    BadRow,
    IndexReport,
    Row,
    Sink,
    SinkState,
    Target,
    TextEmbedder,
    Vectors,
    open_sink,
    tell_nobody,
)
from embedlib.indexing.workers import (
    Group,
    Load,
    SinkThread,
    Span,
    Tally,
    join_vectors,
    open_embedder,
    precision_to_store,
)

CALLS = 2
"""Shards that a worker takes at the same time: one is embedded while another is looked up or
written."""

MakeEmbedder = Callable[[], TextEmbedder]


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """How a worker makes its embedder.

    Attributes:
        model: a name; or a function that makes an embedder of another kind.
        config: options of the model.
        state: what the destination holds, for the precision.
        destination: its name.
        version: of embedlib, where this was made.
    """

    model: str | MakeEmbedder
    config: Config = field(default_factory=Config)
    state: SinkState | None = None
    destination: str = ""
    version: str = embedlib.__version__


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What the driver must know of the model; it loads none."""

    model_name: str
    fingerprint: str
    dim: int
    similarity: AnySimilarity
    precision: str | None
    tokenizer: tokenizers.Tokenizer
    room: int
    max_seq_length: int
    memory_bytes: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What a worker has embedded since it began; `worker` differs after each start."""

    worker: str
    num_texts: int
    num_tokens: int
    num_truncated: int


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What became of a shard.

    Attributes:
        report: counts of its rows.
        bad_rows: rows that cannot be embedded or stored.
        ids: of the rows that were embedded, if the worker was to return their vectors.
        vectors: float32[N, D] of these, or a list of float32[T, D] with a vector per token.
    """

    report: IndexReport
    bad_rows: list[BadRow]
    ids: list[UUID]
    vectors: Vectors | None


class Worker:
    """The actor: one model, and one connection to the destination. Several threads may call it.

    All workers of a machine, or of a GPU, are calls of one such process: the weights are there
    once.
    """

    def __init__(self) -> None:
        self._opening = threading.Lock()
        self._name = str(uuid4())
        self._embedder: TextEmbedder | None = None
        self._sink: Sink | None = None
        self._place: tuple[str, Target] | None = None
        self._thread: SinkThread | None = None

    def open(self, plan: ModelPlan, fingerprint: str | None) -> Identity:
        """Load the model, and say what it is.

        Args:
            plan: how to make it.
            fingerprint: what it must be; None: this is the first worker.

        Raises:
            ConfigError: it makes weights of tokens.
            EmbedlibError: it cannot be loaded here, makes other vectors, or embedlib is another
                version here.
        """
        notes: list[str] = []
        with _errors_name_the_machine():
            if plan.version != embedlib.__version__:
                raise EmbedlibError(
                    f"embedlib is {embedlib.__version__} here and {plan.version} in the program "
                    "that starts the workers; install the same version on all machines"
                )
            with self._opening:
                embedder = self._embedder = self._embedder or _make_embedder(plan, notes.append)
            _check_not_sparse(embedder)
            if fingerprint is not None and embedder.fingerprint != fingerprint:
                raise EmbedlibError(
                    f"{embedder.model_name!r} has the fingerprint {embedder.fingerprint}, and "
                    f"{fingerprint} on the first worker; give all machines the same files, and "
                    "name a precision (--precision)"
                )
        return Identity(
            model_name=embedder.model_name,
            fingerprint=embedder.fingerprint,
            dim=embedder.get_embedding_dimension(),
            similarity=embedder.similarity_fn_name,
            precision=precision_to_store(embedder),
            tokenizer=embedder.tokenizer,
            room=embedder.count_room("document"),
            max_seq_length=embedder.max_seq_length,
            memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
            notes=tuple(notes),
        )

    def node(self) -> str:
        """Return Ray's id of the machine."""
        import ray  # tests call a worker without it

        return str(ray.get_runtime_context().get_node_id())

    def open_sink(self, url: str, target: Target, _opened: Identity) -> None:
        """Become a writer of the destination, after `open`; of another one no more.

        Raises:
            SinkError: it cannot be reached from here.
        """
        if self._place == (url, target):
            return
        self.close_sink()
        with _errors_name_the_machine(), ExitStack() as stack:
            sink = open_sink(url)
            stack.callback(sink.close)
            sink.begin(target, tell_nobody)
            stack.pop_all()
        self._sink, self._thread, self._place = sink, SinkThread(), (url, target)

    def load(self, rows: list[Row]) -> tuple[Loaded, Counts]:
        """Look rows up, embed those that have changed, and write them.

        Raises:
            EmbedlibError: none of them can be embedded, or the destination does not answer.
        """
        assert self._sink is not None, "open_sink comes first"
        report, bad_rows = self._run(rows, self._sink, self._thread)
        return Loaded(report=report, bad_rows=bad_rows, ids=[], vectors=None), self._counts()

    def embed_rows(self, rows: list[Row]) -> tuple[Loaded, Counts]:
        """Embed rows and return their vectors; the driver writes them.

        Raises:
            EmbedlibError: none of them can be embedded.
        """
        found = _Collector()
        report, bad_rows = self._run(rows, found, _CallingThread())
        vectors = found.vectors(self._loaded.get_embedding_dimension())
        loaded = Loaded(report=report, bad_rows=bad_rows, ids=found.ids, vectors=vectors)
        return loaded, self._counts()

    def _run(self, rows: list[Row], sink: Any, thread: Any) -> tuple[IndexReport, list[BadRow]]:
        bad_rows: Any = _BadRows()
        tally = Tally(self._loaded, tell_nobody, None)
        num_rows = len(rows)
        load = Load(self._loaded, sink, thread, bad_rows, tally, num_rows, first_rows=num_rows)
        try:
            load.add(Group(rows=rows, num_documents=0))
            load.end()
        finally:
            load.cancel()
        return tally.report(len(bad_rows.rows)), bad_rows.rows

    def embed(
        self, texts: list[str], chunks: Sequence[Sequence[Span]] | None = None
    ) -> tuple[Vectors, Counts]:
        """Return float32[N, D] of texts, or a list of arrays: see `Embedder.submit_batch`.

        Raises:
            EmbedlibError: they cannot be embedded.
        """
        late = {} if chunks is None else {"chunks": chunks}
        vectors = self._loaded.submit_batch(texts, role="document", **late).result()
        return vectors, self._counts()

    def close_sink(self) -> None:
        """Wait until every row is applied, and give the destination up."""
        sink, thread = self._sink, self._thread
        self._sink = self._thread = self._place = None
        if sink is None or thread is None:
            return
        try:
            # A server that applies rows later has applied all when it shows one; to count them
            # each worker would read every row.
            thread.submit(lambda: next(sink.scan(), None)).result()
        finally:
            thread.submit(sink.close)
            thread.close(None)

    @property
    def _loaded(self) -> TextEmbedder:
        assert self._embedder is not None, "open comes first"
        return self._embedder

    def _counts(self) -> Counts:
        stats = self._loaded.stats()
        return Counts(
            worker=self._name,
            num_texts=getattr(stats, "num_texts", 0),
            num_tokens=stats.num_tokens,
            num_truncated=stats.num_truncated,
        )


def _make_embedder(plan: ModelPlan, tell: Callable[[str], None]) -> TextEmbedder:
    if not isinstance(plan.model, str):
        return plan.model()
    return open_embedder(plan.model, plan.config, plan.state, plan.destination, tell)


def _check_not_sparse(embedder: TextEmbedder) -> None:
    """Refuse a sparse model before a load begins: none of its texts could be embedded.

    Raises:
        ConfigError: it is one.
    """
    if isinstance(embedder, embedlib.Embedder) and embedder.spec.is_sparse:
        raise ConfigError(
            f"{embedder.model_name!r} is a sparse model, and workers make a vector of each text; "
            "take another model, or give it as sparse (--sparse) beside one in one process, "
            "without ray (--ray)"
        )


@contextmanager
def _errors_name_the_machine() -> Iterator[None]:
    """Let errors tell on which machine they were raised."""
    try:
        yield
    except EmbedlibError as error:
        place = f"(worker on {socket.gethostname()}, process {os.getpid()})"
        error.args = (f"{error} {place}", *error.args[1:])
        raise


@dataclass
class _BadRows:
    """Takes the bad rows of a shard."""

    rows: list[BadRow] = field(default_factory=list)

    def add(self, bad: BadRow) -> None:
        self.rows.append(bad)


@dataclass
class _Collector:
    """Takes vectors that the driver writes; it has looked the rows up already."""

    ids: list[UUID] = field(default_factory=list)
    _parts: list[Vectors] = field(default_factory=list)

    def digests(self, _ids: Sequence[UUID]) -> dict[UUID, bytes]:
        return {}

    def write(self, rows: Sequence[Row], vectors: Vectors) -> None:
        if rows:  # of no rows the vectors are float32[0, D], also where others are lists
            self.ids += [row.id for row in rows]
            self._parts.append(vectors)

    def vectors(self, dim: int) -> Vectors:
        return join_vectors(self._parts) if self._parts else np.empty((0, dim), np.float32)


class _CallingThread:
    """In place of a sink's thread: a collector answers at once."""

    def submit(self, function: Callable[..., object], *args: object) -> Future[object]:
        future: Future[object] = Future()
        future.set_result(function(*args))
        return future
