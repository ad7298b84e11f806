"""Runs a model on an NVIDIA GPU; see the package's docstring for how."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from queue import SimpleQueue
from types import ModuleType
from typing import Final, Literal

import numpy as np
import torch

from embedlib.engines.base import Batch, EngineLimits, Lane
from embedlib.engines.cuda import reference
from embedlib.engines.cuda.attention import AttentionName, choose_attention
from embedlib.engines.cuda.buffers import Workspace
from embedlib.engines.cuda.device import DTYPES, Device, Event, open_device
from embedlib.engines.cuda.device_weights import HostWeights, WeightLoader
from embedlib.engines.cuda.executor import Executor, attention_shape, device_batch
from embedlib.engines.cuda.groups import groups_of
from embedlib.engines.cuda.inputs import (
    Ints,
    check,
    fill,
    layout_of,
    split,
    tile_queries,
)
from embedlib.engines.cuda.jobs import Job, Prepared
from embedlib.engines.cuda.lowering import build_plan, linear_roles
from embedlib.engines.cuda.plan import Step
from embedlib.engines.cuda.prefix_keys import can_keep_prefix, prefix_keys, prefix_steps
from embedlib.engines.cuda.prefixes import (
    MAX_PREFIX_TOKENS,
    Prefixes,
    batch_of_one,
    without_first,
)
from embedlib.engines.cuda.results import Results
from embedlib.engines.cuda.short_batches import TOKENS_PER_SEQ, ShortBatches
from embedlib.engines.cuda.turns import Turn, Turns
from embedlib.engines.pooled_rows import POOLED_ROWS
from embedlib.errors import EngineBuildError, EngineOutOfMemoryError
from embedlib.models.spec import ModelSpec, Pooling

Precision = Literal["fp8", "bf16", "fp16", "float32"]

MAX_BATCH_TOKENS: Final = 16_384
"""Enough rows to fill the matrix units; an estimate, to be measured."""
MAX_INFLIGHT_BULK: Final = 2
"""One computing, one ready."""
MAX_INFLIGHT_QUERIES: Final = 2


class CudaEngine:
    """A model on an NVIDIA GPU. See `embedlib.engines.base.Engine`.

    Three threads: one launches, one waits for the device and lets more be launched, one waits for
    vectors and tells who is done. `submit` and all of them share the `Turns` and nothing else.
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
        attention: AttentionName = "auto",
        keeps_prefix: bool = True,
    ) -> None:
        """Load the weights and record the short batches.

        Args:
            spec: the model.
            weights: its weights by role, or those of an engine directory (`engine_directory`).
            precision: of the linear layers; what is not FP8 is bfloat16 with "fp8".
            excluded: roles of linear layers that "fp8" leaves in bfloat16, and "pooled_rows" for
                the pooled rows of all layers (`engines.pooled_rows`), which wants the model's own
                weights.
            device: cuda, cuda:N, or cpu, where plain torch emulates the kernels, for tests.
            max_batch_tokens: token budget of a batch; None: an estimate of the best.
            max_inflight_bulk: bulk batches taken at once; None: one computing and one ready.
            memory_fraction: of the GPU's memory that may be used.
            attention: what computes attention of long batches, see `attention`; "own": our kernel.
            keeps_prefix: keep the keys of a common beginning, see `prefixes`; a benchmark that
                embeds the same text again and again must not.

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
        is_fp8 = precision == "fp8"
        quantized = set(linear_roles(spec.encoder)) - set(excluded) if is_fp8 else ()
        plan = build_plan(spec, quantized, splits_pooled=is_fp8 and POOLED_ROWS in excluded)
        self._spec = spec
        self._plan = plan
        self._device = open_device(device, precision, memory_fraction)
        dtype = DTYPES[precision]
        # A sequence of the model's full length is a batch, whatever the budget.
        room = max(max_tokens, spec.max_seq_tokens)
        try:
            on_device = self._device.torch_device
            loaded = WeightLoader(spec, weights, dtype, on_device).load(plan)
            kernels = kernels_for(self._device)
            self._served_whole = choose_attention(
                attention,
                plan,
                attention_shape(spec.encoder),
                has_bias=loaded.position_bias is not None,
                dtype=dtype,
                device=on_device,
                capability=self._device.capability,
                own=kernels.attend,
            )
            has_prefix = keeps_prefix and can_keep_prefix(spec)
            prefix_tokens = min(MAX_PREFIX_TOKENS, room) if has_prefix else 0
            kept = prefix_keys(spec, prefix_tokens, dtype, on_device)
            self._executor = Executor(spec, plan, loaded, kernels, self._served_whole, kept)
            self._workspace = Workspace(
                plan, room, max(1, room // TOKENS_PER_SEQ), dtype, on_device
            )
            self._short = ShortBatches(spec, plan, self._executor, dtype, self._device)
            self._tile_queries = tile_queries(spec.encoder, is_short=False, itemsize=dtype.itemsize)
            self._device.warm_up(self._launch_token)
        except torch.OutOfMemoryError as error:
            raise EngineBuildError(
                f"engine cuda: the model and batches of {room} tokens do not fit into "
                f"{memory_fraction:g} of the GPU's memory; lower max_batch_tokens or "
                "max_seq_tokens, free memory, or use precision='fp8'"
            ) from error
        self._prefixes = Prefixes(prefix_tokens)
        self._prefix_steps = prefix_steps(plan)
        self._turns: Turns[Job] = Turns()
        self._changed = threading.Condition()
        """Guards the turns and `_is_closing`."""
        self._is_closing = False
        self._num_open = 0
        """Batches taken and not done."""
        self._results = Results(self._device)
        self._launched: SimpleQueue[tuple[Turn[Job], Event] | None] = SimpleQueue()
        """Groups."""
        self._leaving: SimpleQueue[Job | None] = SimpleQueue()
        """Batches whose vectors are being copied."""
        self._threads = [
            threading.Thread(target=target, name=f"embedlib-cuda-{name}", daemon=True)
            for name, target in (
                ("launch", self._launch_all),
                ("wait", self._wait_all),
                ("end", self._end_all),
            )
        ]
        for thread in self._threads:
            thread.start()

    @property
    def limits(self) -> EngineLimits:
        """What the scheduler must know."""
        return self._limits

    def submit(self, batch: Batch, on_done: Callable[[], None]) -> Job:
        """Start a batch and return at once."""
        check(batch, self._spec)
        num_kept = self._prefixes.begin_use(batch)
        rest = without_first(batch, num_kept)
        try:
            self._check_room(rest)
            is_short = self._short.fits(rest)
            prepared = None if is_short else self._prepare(rest, num_kept, self._plan.steps)
        except BaseException:
            self._prefixes.end_use(num_kept)
            raise
        job = Job(rest, num_kept, on_done, prepared)
        self._add(job)
        prefix = self._prefixes.propose(batch)
        if prefix is not None:
            self._add(self._keep_prefix(prefix))
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

    def _launch_token(self) -> None:
        """Launch one token as a long batch: its tiles have a size that no recording has."""
        batch, num_kept = batch_of_one(np.zeros(1, np.int32)), np.zeros(1, np.int32)
        prepared = self._prepare(batch, num_kept, self._plan.steps)
        values = torch.from_numpy(prepared.values).to(self._device.torch_device)
        # Without ends, as behind a kept prefix: what serves whole sequences has had its trial.
        on_device = device_batch(values, prepared.layout)
        for group in prepared.groups:
            self._executor.run(group, on_device, self._workspace)

    def _keep_prefix(self, ids: Ints) -> Job:
        """Return the job that computes a prefix's keys and values."""
        batch, num_kept = batch_of_one(ids), np.zeros(1, np.int32)
        prepared = self._prepare(batch, num_kept, self._prefix_steps)

        def keep() -> None:
            self._prefixes.keep(ids if job.error is None else ids[:0])

        job = Job(batch, num_kept, keep, prepared, has_vectors=False)
        return job

    def _add(self, job: Job) -> None:
        with self._changed:
            if job.prepared is None:
                self._turns.add_short(job)
            else:
                num_groups = len(job.prepared.groups)
                self._turns.add_long(job, num_groups, is_query=job.batch.lane is Lane.QUERY)
            self._num_open += 1
            self._changed.notify()

    def _check_room(self, batch: Batch) -> None:
        num_tokens, space = len(batch.token_ids), self._workspace
        if num_tokens > space.max_tokens or batch.num_seqs > space.max_seqs:
            raise EngineOutOfMemoryError(
                f"engine cuda: a batch of {num_tokens} tokens in {batch.num_seqs} sequences; there "
                f"is room for {space.max_tokens} tokens in {space.max_seqs} sequences"
            )

    def _prepare(self, batch: Batch, num_kept: Ints, steps: Sequence[Step]) -> Prepared:
        """Lay a long batch out, and say where its launches may be interrupted."""
        layout = layout_of(batch, self._plan.pooled_modes, self._tile_queries)
        values = np.empty(layout.size, np.int32)
        fill(values, batch, layout, self._spec, self._plan.pooled_modes, num_kept)
        # Functions that take whole sequences know nothing of keys that are kept.
        is_whole = not num_kept.any()
        groups = groups_of(
            steps,
            layout,
            split(values, layout),
            batch.seq_lens,
            self._spec.encoder,
            self._served_whole if is_whole else (),
        )
        return Prepared(layout, values, groups, batch.cu_seqlens if is_whole else None)

    # On the launching thread.

    def _launch_all(self) -> None:
        self._device.enter()
        while (turn := self._next_turn()) is not None:
            try:
                self._launch(turn)
                if turn.group is not None:
                    self._launched.put((turn, self._device.mark()))
            except BaseException as error:  # whoever waits must hear of it
                self._fail(turn, error)
            else:
                if turn.is_last:
                    self._leaving.put(turn.job)
            del turn  # or the last batch would live until the next one
        self._launched.put(None)
        self._leaving.put(None)

    def _next_turn(self) -> Turn[Job] | None:
        with self._changed:
            while (turn := self._turns.next()) is None:
                if self._is_closing and not self._num_open:
                    return None
                self._changed.wait()
            return turn

    def _launch(self, turn: Turn[Job]) -> None:
        job = turn.job
        if turn.group is None or job.prepared is None:
            vectors = self._short.launch(job.batch, job.num_kept)
            job.arrival = job.vectors = self._results.start(vectors)
            return
        if turn.group == 0:
            values = self._device.upload(job.prepared.values)
            job.on_device = device_batch(values, job.prepared.layout, job.prepared.ends)
        assert job.on_device is not None, "the first group comes first; this is a bug in embedlib"
        self._executor.run(job.prepared.groups[turn.group], job.on_device, self._workspace)
        if turn.is_last and job.has_vectors:
            vectors = self._executor.finish(job.on_device, self._workspace)
            job.arrival = job.vectors = self._results.start(vectors)
        elif turn.is_last:
            job.arrival = self._device.mark()

    def _fail(self, turn: Turn[Job], error: BaseException) -> None:
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
            del item, turn  # or the last batch would live until the next one

    # On the ending thread.

    def _end_all(self) -> None:
        while (job := self._leaving.get()) is not None:
            assert job.arrival is not None, "all of it was launched; this is a bug in embedlib"
            try:
                job.arrival.synchronize()
            except BaseException as error:  # a kernel failed; the device is lost with it
                job.error = error
            self._end(job)
            del job  # or the last batch would live until the next one

    # On the launching or the ending thread.

    def _end(self, job: Job) -> None:
        job.on_device = None
        self._prefixes.end_use(job.num_kept)
        job.on_done()
        with self._changed:
            self._num_open -= 1
            self._changed.notify()


def kernels_for(device: Device) -> ModuleType:
    """Return the functions that launch a plan's steps on a device."""
    if device.torch_device.type == "cpu":
        return reference
    from embedlib.engines.cuda import kernels

    return kernels
