"""Computes a model with one of its layers in memory: the reference of a model that does not fit.

A layer is compiled, computes every batch that is at hand, and is dropped for the next one. Of a
batch only the output of its latest layer is kept. So each weight is read and packed once for all
batches that are computed together: those that are submitted until the first layer is compiled.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeAlias

from embedlib.engines.base import Batch, InFlight
from embedlib.engines.openvino.core import loaded_core
from embedlib.engines.openvino.graphs.graph import build_stages
from embedlib.engines.openvino.graphs.graph_options import GraphOptions
from embedlib.engines.openvino.graphs.stages import HIDDEN, Request
from embedlib.engines.openvino.library import ov
from embedlib.engines.openvino.pages import letting_go, return_freed
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.engines.openvino.running.compiled import run_error
from embedlib.engines.openvino.running.inputs import infer_batch, is_token, last_line
from embedlib.engines.openvino.running.kept_prefixes import KeptPrefixes
from embedlib.engines.openvino.running.tiny_batches import compute_tiny_batches
from embedlib.engines.openvino.sizes.stage_sizes import MAX_TOGETHER_TOKENS
from embedlib.errors import EngineBuildError, EngineRunError
from embedlib.models.spec import ModelSpec
from embedlib.models.weights.mapped import mapped_files
from embedlib.models.weights.tensor_roles import ArraysByRole
from embedlib.threads.closing import CLOSE_SECONDS, WorkerThread, check_ended

MAX_INFLIGHT: Final = 1 << 16
"""A batch that waits holds token ids alone, so there may be many."""


class LayerwiseEngine:
    """A model whose layers take turns in memory. See `embedlib.engines.base.Engine`."""

    def __init__(self, spec: ModelSpec, weights: ArraysByRole, layout: Layout) -> None:
        """Build the graphs of the layers; compile none.

        Args:
            spec: the model.
            weights: its weights, in mapped files: they are read again for other batches.
            layout: threads and token budget; both lanes share a layer, in float32.

        Raises:
            EngineBuildError: OpenVINO could not build the graphs.
        """
        self.limits = replace(
            layout.limits(spec),
            max_inflight_batches=MAX_INFLIGHT,
            max_inflight_bulk=MAX_INFLIGHT,
        )
        (settings,) = layout.settings(spec)
        try:
            core = loaded_core()
            product = layout.multiplier(core)
            options = GraphOptions(multiplier=product, max_stages=spec.encoder.num_layers)
            graphs = build_stages(spec, weights, options)
        except RuntimeError as error:
            raise EngineBuildError(
                f"engine openvino: building failed: {last_line(error)}"
            ) from error
        layers = _Layers(core, graphs, weights, settings, is_per_token=self.limits.is_per_token)
        self._jobs: _Jobs = SimpleQueue()
        self._thread = WorkerThread(
            partial(_work, layers, self._jobs), "embedlib-openvino-layerwise"
        )
        # Not `self`: the engine must be free to be collected.
        self._end = weakref.finalize(self, self._jobs.put, None)
        self._thread.start()

    def submit(self, batch: Batch, on_done: Callable[[], None]) -> _BatchInFlight:
        """Queue a batch and return at once."""
        job = _BatchInFlight(batch, on_done)
        self._jobs.put(job)
        return job

    def close(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """Wait for what is in flight and free the weights.

        Raises:
            CloseTimeoutError: the thread still runs after `timeout` seconds; it frees what it uses
                when it ends.
        """
        self._end()
        check_ended("engine openvino", [self._thread], timeout)


class _BatchInFlight(InFlight):
    """A batch between two layers.

    Its `vectors` are those of the latest layer, float32[B, L, H], or the result of the last one;
    after an `error` the layers to come are left out.
    """

    @property
    def num_tokens(self) -> int:
        """Tokens of the batch with its padding."""
        return self.batch.num_seqs * int(self.batch.seq_lens.max())

    def cancel(self) -> None:
        """Leave out the layers to come; see `CancellablePending`."""
        self.error = self.error or EngineRunError("engine openvino: the batch was cancelled")


_Jobs: TypeAlias = "SimpleQueue[_BatchInFlight | None]"
"""Batches in order; None ends the thread."""


@dataclass(frozen=True)
class _Layers:
    """The layers of a model: the first one embeds the tokens too, the last one pools."""

    core: ov.Core
    graphs: list[ov.Model]
    weights: ArraysByRole
    """The graphs read them in place."""
    settings: dict[str, Any]
    is_per_token: bool

    def compute(
        self, first: _BatchInFlight, others: Callable[[], list[_BatchInFlight]]
    ) -> list[_BatchInFlight]:
        """Compute batches, layer by layer; return them with their results or errors.

        Args:
            first: one of the batches.
            others: returns the others; called when the first layer is compiled.
        """
        jobs = [first]
        try:
            with letting_go(mapped_files(self.weights)):
                for number, graph in enumerate(self.graphs):
                    if all(job.error for job in jobs):
                        break
                    layer = self.core.compile_model(graph, "CPU", self.settings)
                    if number == 0:
                        jobs += others()
                    self._compute_layer(layer, jobs, is_last=number == len(self.graphs) - 1)
                    del layer
                    return_freed()
        except (RuntimeError, MemoryError) as error:
            _fail(jobs, run_error(error))
        except BaseException as error:  # for the caller of `result`
            _fail(jobs, error)
        return jobs

    def _compute_layer(
        self, layer: ov.CompiledModel, jobs: list[_BatchInFlight], *, is_last: bool
    ) -> None:
        request = Request([layer])
        prefixes = KeptPrefixes.of([layer])
        nothing, is_settled = prefixes.none(), True
        for job in jobs:
            if job.error:
                continue
            given = {} if job.vectors is None else {HIDDEN: job.vectors}
            try:
                if not is_settled:
                    compute_tiny_batches(request, prefixes, job.vectors)
                    is_settled = True
                output = infer_batch(request, job.batch, {**nothing.arrays, **given}).copy()
            except (RuntimeError, MemoryError) as error:
                job.error, is_settled = run_error(error), False
            else:
                is_rows = is_last and self.is_per_token
                job.vectors = output[is_token(job.batch, output.shape[1])] if is_rows else output


def _fail(jobs: list[_BatchInFlight], error: BaseException) -> None:
    for job in jobs:
        job.error = job.error or error


def _work(layers: _Layers, jobs: _Jobs) -> None:
    """Compute batches until None comes. Takes no reference to the engine."""
    waiting: deque[_BatchInFlight | None] = deque()
    while (first := waiting.popleft() if waiting else jobs.get()) is not None:
        done = layers.compute(first, partial(_others, first.num_tokens, waiting, jobs))
        del first  # or it would live until the next one
        while done:
            done.pop(0).on_done()


def _others(
    num_tokens: int, waiting: deque[_BatchInFlight | None], jobs: _Jobs
) -> list[_BatchInFlight]:
    """Take what waits, as long as it is no more than `MAX_TOGETHER_TOKENS` with these."""
    while not jobs.empty():
        waiting.append(jobs.get())
    taken: list[_BatchInFlight] = []
    while waiting and (job := waiting[0]) is not None:
        num_tokens += job.num_tokens
        if num_tokens > MAX_TOGETHER_TOKENS:
            break
        taken.append(job)
        waiting.popleft()
    return taken
