"""Runs a model on an NVIDIA GPU; see the package's docstring for how."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from queue import SimpleQueue
from types import ModuleType
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from embedlib.engines.base import Batch, EngineLimits, Lane
from embedlib.engines.cuda import reference
from embedlib.engines.cuda.buffers import Workspace
from embedlib.engines.cuda.device import DTYPES, Device, Event, open_device
from embedlib.engines.cuda.device_weights import HostWeights, WeightLoader
from embedlib.engines.cuda.executor import DeviceBatch, Executor, device_batch
from embedlib.engines.cuda.inputs import check, fill, layout_of
from embedlib.engines.cuda.lowering import build_plan, linear_roles
from embedlib.engines.cuda.short_batches import TOKENS_PER_SEQ, ShortBatches
from embedlib.engines.cuda.turns import Turn, Turns
from embedlib.errors import EngineBuildError, EngineOutOfMemoryError, EngineRunError
from embedlib.models.spec import ModelSpec, Pooling

Precision = Literal["fp8", "bf16", "fp16", "float32"]

MAX_BATCH_TOKENS: Final = 16_384
"""Enough rows to fill the matrix units; an estimate, to be measured."""
LAYERS_PER_GROUP: Final = 2
"""Launched without a look at what waits; on a model of 7 billion numbers some 6 ms, an estimate."""
MAX_INFLIGHT_BULK: Final = 2
"""One computing, one ready."""
MAX_INFLIGHT_QUERIES: Final = 2


class CudaEngine:
    """A model on an NVIDIA GPU. See `embedlib.engines.base.Engine`.

    Two threads: one launches, the other waits for the device and tells who is done. `submit` and
    both of them share the `Turns` and nothing else.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: HostWeights,
        *,
        precision: Precision,
        excluded: Collection[str] = (),
        device: str = "cuda",
        max_batch_tokens: int | None = None,
        max_inflight_bulk: int | None = None,
        memory_fraction: float = 0.9,
    ) -> None:
        """Load the weights and record the short batches.

        Args:
            spec: the model.
            weights: its weights by role, or those of an engine directory (`engine_directory`).
            precision: of the linear layers; what is not FP8 is bfloat16 with "fp8".
            excluded: roles of linear layers that "fp8" leaves in bfloat16.
            device: cuda, cuda:N, or cpu, where plain torch emulates the kernels, for tests.
            max_batch_tokens: token budget of a batch; None: an estimate of the best.
            max_inflight_bulk: bulk batches taken at once; None: one computing and one ready.
            memory_fraction: of the GPU's memory that may be used.

        Raises:
            EngineUnavailableError: there is no such device.
            EngineUnsupportedError: the engine or the device cannot run this.
            EngineBuildError: the model does not fit into memory.
        """
        num_bulk = max_inflight_bulk or MAX_INFLIGHT_BULK
        max_tokens = max_batch_tokens or MAX_BATCH_TOKENS
        self._limits = EngineLimits(
            embedding_dim=spec.embedding_dim,
            is_per_token=not any(isinstance(module, Pooling) for module in spec.modules),
            is_padded=False,
            max_batch_tokens=max_tokens,
            num_parallel_batches=1,
            max_inflight_batches=num_bulk + MAX_INFLIGHT_QUERIES,
            max_inflight_bulk=num_bulk,
        )
        quantized = set(linear_roles(spec.encoder)) - set(excluded) if precision == "fp8" else ()
        plan = build_plan(spec, quantized)
        self._spec = spec
        self._plan = plan
        self._groups = plan.groups(LAYERS_PER_GROUP)
        self._device = open_device(device, precision, memory_fraction)
        dtype = DTYPES[precision]
        # A sequence of the model's full length is a batch, whatever the budget.
        room = max(max_tokens, spec.max_seq_tokens)
        try:
            on_device = self._device.torch_device
            loaded = WeightLoader(spec, weights, dtype, on_device).load(plan)
            self._executor = Executor(spec, plan, loaded, kernels_for(self._device))
            self._workspace = Workspace(
                plan, room, max(1, room // TOKENS_PER_SEQ), dtype, on_device
            )
            self._short = ShortBatches(spec, plan, self._executor, dtype, self._device)
        except torch.OutOfMemoryError as error:
            raise EngineBuildError(
                f"engine cuda: the model and batches of {room} tokens do not fit into "
                f"{memory_fraction:g} of the GPU's memory; lower max_batch_tokens or "
                "max_seq_tokens, free memory, or use precision='fp8'"
            ) from error
        self._turns: Turns[_Job] = Turns(len(self._groups))
        self._changed = threading.Condition()
        """Guards the turns and `_is_closing`."""
        self._is_closing = False
        self._num_open = 0
        """Batches taken and not done."""
        self._launched: SimpleQueue[tuple[Turn[_Job], Event] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=target, name=f"embedlib-cuda-{name}", daemon=True)
            for name, target in (("launch", self._launch_all), ("wait", self._wait_all))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def limits(self) -> EngineLimits:
        """What the scheduler must know."""
        return self._limits

    def submit(self, batch: Batch, on_done: Callable[[], None]) -> _Job:
        """Start a batch and return at once."""
        check(batch, self._spec)
        self._check_room(batch)
        job = _Job(batch, on_done)
        with self._changed:
            if self._short.fits(batch):
                self._turns.add_short(job)
            else:
                self._turns.add_long(job, is_query=batch.lane is Lane.QUERY)
            self._num_open += 1
            self._changed.notify()
        return job

    def close(self) -> None:
        """Wait for what is in flight, then free the device."""
        with self._changed:
            if self._is_closing:
                return
            self._is_closing = True
            self._changed.notify()
        for thread in self._threads:
            thread.join()
        del self._executor, self._short, self._workspace
        self._device.close()

    def _check_room(self, batch: Batch) -> None:
        num_tokens, space = len(batch.token_ids), self._workspace
        if num_tokens > space.max_tokens or batch.num_seqs > space.max_seqs:
            raise EngineOutOfMemoryError(
                f"engine cuda: a batch of {num_tokens} tokens in {batch.num_seqs} sequences; there "
                f"is room for {space.max_tokens} tokens in {space.max_seqs} sequences"
            )

    # On the launching thread.

    def _launch_all(self) -> None:
        self._device.enter()
        while (turn := self._next_turn()) is not None:
            try:
                self._launch(turn)
                self._launched.put((turn, self._device.mark()))
            except BaseException as error:  # whoever waits must hear of it
                self._fail(turn, error)
            del turn  # or the last batch would live until the next one
        self._launched.put(None)

    def _next_turn(self) -> Turn[_Job] | None:
        with self._changed:
            while (turn := self._turns.next()) is None:
                if self._is_closing and not self._num_open:
                    return None
                self._changed.wait()
            return turn

    def _launch(self, turn: Turn[_Job]) -> None:
        job = turn.job
        if turn.group is None:
            job.vectors = self._short.launch(job.batch)
            return
        if turn.group == 0:
            layout = layout_of(job.batch, self._plan.pooled_modes)
            values = np.empty(layout.size, np.int32)
            fill(values, job.batch, layout, self._spec, self._plan.pooled_modes)
            job.on_device = device_batch(self._device.upload(values), layout)
        assert job.on_device is not None, "the first group comes first; this is a bug in embedlib"
        self._executor.run(self._groups[turn.group], job.on_device, self._workspace)
        if turn.is_last:
            vectors = self._executor.finish(job.on_device, self._workspace)
            job.vectors = self._device.download(vectors)

    def _fail(self, turn: Turn[_Job], error: BaseException) -> None:
        turn.job.error = error
        with self._changed:
            self._turns.drop(turn)
        self._end(turn.job)

    # On the waiting thread.

    def _wait_all(self) -> None:
        while (item := self._launched.get()) is not None:
            turn, event = item
            try:
                event.synchronize()
            except BaseException as error:  # a kernel failed; the device is lost with it
                turn.job.error = error
            with self._changed:
                self._turns.finish(turn)
                self._changed.notify()
            if turn.is_last:
                self._end(turn.job)
            del item, turn  # or the last batch would live until the next one

    # On either.

    def _end(self, job: _Job) -> None:
        job.on_device = None
        job.on_done()
        with self._changed:
            self._num_open -= 1
            self._changed.notify()


class _Job:
    """A batch on its way."""

    def __init__(self, batch: Batch, on_done: Callable[[], None]) -> None:
        self.batch = batch
        self.on_done = on_done
        self.on_device: DeviceBatch | None = None
        self.vectors: torch.Tensor | None = None
        self.error: BaseException | None = None

    def result(self) -> NDArray[np.float32]:
        """Return float32[B, D], or [T, D] without pooling."""
        if isinstance(self.error, torch.OutOfMemoryError):
            raise EngineOutOfMemoryError(f"engine cuda: {_first_line(self.error)}") from self.error
        if self.error is not None:
            raise EngineRunError(f"engine cuda: {_first_line(self.error)}") from self.error
        assert self.vectors is not None, "a batch has no result yet; this is a bug in embedlib"
        vectors: NDArray[np.float32] = self.vectors.numpy()
        return vectors


def kernels_for(device: Device) -> ModuleType:
    """Return the functions that launch a plan's steps on a device."""
    if device.torch_device.type == "cpu":
        return reference
    from embedlib.engines.cuda import kernels

    return kernels


def _first_line(error: BaseException) -> str:
    """The first line of a message; torch puts hints and stacks behind it."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
