"""`RayEmbedder`: stands in for an `Embedder`, and lets the workers of a cluster do its work."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import tokenizers

from embedlib.config import AnySimilarity, Config
from embedlib.errors import ConfigError, EmbedlibError
from embedlib.indexing import Sink, SinkState, Target, Tell, Vectors, tell_nobody
from embedlib.indexing.workers import BadRows, SinkThread, Span, Tally, join_vectors
from embedlib_ray.cluster import connected
from embedlib_ray.destination import SharedSink, check_one_machine, for_worker, is_shared
from embedlib_ray.failures import cause_of
from embedlib_ray.load import ShardedLoad
from embedlib_ray.model import config_for, name_for_workers, open_first, plan_for, start_elsewhere
from embedlib_ray.pool import WorkerPool
from embedlib_ray.worker import MakeEmbedder, ModelPlan

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of typing from Python 3.11 on

    from embedlib.types import ConfigOptions

_PART_TEXTS = 256
"""Texts of one call of `embed`; more are divided among the workers."""


@dataclass(frozen=True, kw_only=True)
class ClusterCounts:
    """What the workers have done, and how they are."""

    num_texts: int
    num_tokens: int
    num_truncated: int
    num_workers: int
    num_retries: int


class RayEmbedder:
    """A model on the workers of a Ray cluster, for `embedlib.index`; this process loads none.

    It has the members of `embedlib.indexing.TextEmbedder`. Close it to free the workers.
    """

    def __init__(
        self,
        model: str | MakeEmbedder,
        *,
        address: str = "auto",
        num_workers: int | None = None,
        config: Config | None = None,
        state: SinkState | None = None,
        destination: str = "",
        tell: Tell | None = None,
        **options: Unpack[ConfigOptions],
    ) -> None:
        """Start the workers; returns when the first one has loaded the model.

        Args:
            model: a name, or a folder or pack that all machines see under this path; or a function
                that makes an object with the members of `TextEmbedder`, in each worker.
            address: "auto", "local" or "HOST:PORT", see docs/scale.md.
            num_workers: how many; None: one for each GPU, or else for each machine. More share
                these processes.
            config: options of the model.
            state: what a destination holds, for the precision; None: nothing that matters.
            destination: its name.
            tell: takes a line for the user, from any thread.
            **options: fields of `Config`, instead of `config`.

        Raises:
            ConfigError: there is no such cluster, or an option is wrong.
            ModelNotFoundError: a worker does not find the model.
        """
        if config is not None and options:
            raise ConfigError(f"pass {', '.join(options)} inside config, or leave config out")
        config = config or Config.from_options(options)
        self._tell = tell or tell_nobody
        self._lock = threading.Lock()
        self._loads: list[SharedSink | None] = []
        """What the workers write to, of each load that runs; None: this process writes."""
        self._shared: SharedSink | None = None
        """What a worker that starts now writes to."""
        with ExitStack() as stack:
            stack.enter_context(connected(address))
            self._plan = plan_for(config, num_workers)
            self._model = ModelPlan(
                model=name_for_workers(model),
                config=config_for(config, self._plan.num_gpus),
                state=state,
                destination=destination,
            )
            first = open_first(self._plan, self._model, self._tell)
            self._identity = first.identity
            for note in first.identity.notes:
                self._tell(note)
            memory_bytes = self._plan.memory_for(first.identity.memory_bytes)
            self._pool = WorkerPool(
                partial(start_elsewhere, self._plan, memory_bytes), self._open, self._tell
            )
            stack.callback(self._pool.close)
            self._pool.grow(first.worker, first.node, self._plan.shares)
            self._closing = stack.pop_all()

    def close(self) -> None:
        """End the workers, and the connection if this opened it; may be called twice."""
        self._closing.close()

    def __enter__(self) -> RayEmbedder:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def model_name(self) -> str:
        """The name the workers loaded the model by."""
        return self._identity.model_name

    @property
    def fingerprint(self) -> str:
        """A digest of everything that decides a vector; the same on all workers."""
        return self._identity.fingerprint

    def get_embedding_dimension(self) -> int:
        """Return D of the vectors."""
        return self._identity.dim

    @property
    def similarity_fn_name(self) -> AnySimilarity:
        """How the vectors are compared."""
        return self._identity.similarity

    @property
    def precision(self) -> str | None:
        """What the workers compute in."""
        return self._identity.precision

    @property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """The model's tokenizer, in this process."""
        return self._identity.tokenizer

    @property
    def max_seq_length(self) -> int:
        """The most tokens of a sequence."""
        return self._identity.max_seq_length

    def count_room(self, _role: Literal["document"], /) -> int:
        """Return how many tokens of text fit."""
        return self._identity.room

    def submit_batch(
        self,
        texts: Sequence[str],
        *,
        role: Literal["document"],
        chunks: Sequence[Sequence[Span]] | None = None,
    ) -> Future[Vectors]:
        """Start to embed documents, divided among the workers; see `Embedder.submit_batch`."""
        slices = [slice(at, at + _PART_TEXTS) for at in range(0, len(texts), _PART_TEXTS)]
        parts = [
            self._pool.submit("embed", list(texts[part]), None if chunks is None else chunks[part])
            for part in slices
        ]
        return _joined(parts, self._identity.dim)

    def stats(self) -> ClusterCounts:
        """Return the counters of all workers."""
        num_texts, num_tokens, num_truncated = self._pool.totals()
        return ClusterCounts(
            num_texts=num_texts,
            num_tokens=num_tokens,
            num_truncated=num_truncated,
            num_workers=self._pool.num_ready,
            num_retries=self._pool.num_retries,
        )

    def check_sink(self, sink: Sink, url: str | None) -> Sink:
        """Return the sink of a load: one that lets the workers write, if they can reach it.

        Without a URL this process writes.

        Raises:
            SinkError: they cannot, and are too many for one machine to write what they embed.
            ConfigError: they write for another load.
        """
        if url is not None and is_shared(sink):
            sink = SharedSink(sink, url)
        elif url is not None:
            check_one_machine(sink)
        self._check_free(sink)
        return sink

    def start_load(
        self,
        sink: Sink,
        thread: SinkThread,
        target: Target,
        bad_rows: BadRows,
        tally: Tally,
        batch_rows: int,
        /,
    ) -> ShardedLoad:
        """Start a load, see `embedlib.indexing.workers.ClusterEmbedder`.

        Raises:
            ConfigError: the workers write for another load.
            EmbedlibError: no worker can be opened.
        """
        shared = sink if isinstance(sink, SharedSink) else None
        with self._lock:
            self._check_free(sink)
            self._loads.append(shared)
        self._shared = shared
        try:
            self._pool.reopen()  # those, too, that the load before has given up
        except BaseException:  # a worker may have opened its sink, and holds a lock
            with suppress(EmbedlibError):
                self._end_load(shared)
            raise
        return ShardedLoad(
            self._pool,
            sink if shared is None else None,
            thread,
            bad_rows,
            tally,
            batch_rows=batch_rows,
            num_workers=self._plan.num_workers,
            end_writing=partial(self._end_load, shared),
        )

    def _check_free(self, sink: Sink) -> None:
        """Refuse to turn workers that write for a load to another destination."""
        if any(self._loads) or (self._loads and isinstance(sink, SharedSink)):
            raise ConfigError(
                "the workers write to one destination at a time, and another load runs; wait for "
                "its end, or open other workers with RayEmbedder(...)"
            )

    def _end_load(self, shared: SharedSink | None) -> None:
        self._shared = None
        try:
            if shared is not None:
                self._pool.close_sinks()
        finally:
            self._loads.remove(shared)

    def _open(self, worker: Any, number: int) -> Any:
        """Open a worker; Ray makes its calls in their order."""
        opened = worker.open.remote(self._model, self._identity.fingerprint)
        shared = self._shared
        if shared is None or shared.shared is None:
            return opened
        target = for_worker(shared.shared, number)
        return worker.open_sink.remote(shared.url, target, opened)


def open_workers(
    model: str,
    address: str,
    *,
    config: Config,
    num_workers: int | None,
    state: SinkState | None,
    destination: str,
    tell: Tell,
) -> RayEmbedder:
    """Open a model for `index(..., ray=...)`, see `embedlib.indexing.workers.OpenWorkers`."""
    return RayEmbedder(
        model,
        address=address,
        config=config,
        num_workers=num_workers,
        state=state,
        destination=destination,
        tell=tell,
    )


def _joined(parts: Sequence[Future[Vectors]], dim: int) -> Future[Vectors]:
    """Return a future of the vectors of all parts."""
    joined: Future[Vectors] = Future()
    joined.set_running_or_notify_cancel()

    def end(_: object) -> None:
        if not all(part.done() for part in parts):
            return
        with suppress(InvalidStateError):  # another part ended at the same moment, and was quicker
            try:
                vectors = join_vectors([part.result() for part in parts])
            except Exception as error:
                joined.set_exception(cause_of(error))
            else:
                joined.set_result(vectors)

    if not parts:
        joined.set_result(np.empty((0, dim), np.float32))
    for part in parts:
        part.add_done_callback(end)
    return joined
