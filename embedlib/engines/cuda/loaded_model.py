"""A model on a device: its weights, memory and recordings; it also prepares batches for them.

All slow work and all large allocations happen in the constructor and `warm_up`.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Literal

import numpy as np
import torch

from embedlib.engines.base import Batch
from embedlib.engines.cuda import reference
from embedlib.engines.cuda.attention import AttentionName, choose_attention
from embedlib.engines.cuda.buffers import Workspace
from embedlib.engines.cuda.device import DTYPES, Device, open_device
from embedlib.engines.cuda.device_weights import HostWeights, WeightLoader
from embedlib.engines.cuda.executor import Executor, attention_shape, device_batch
from embedlib.engines.cuda.groups import groups_of
from embedlib.engines.cuda.inputs import Ints, fill, layout_of, split, tile_queries
from embedlib.engines.cuda.jobs import Prepared
from embedlib.engines.cuda.limits import MAX_FEW_ROWS, batch_room, most_short_tokens
from embedlib.engines.cuda.lowering import build_plan
from embedlib.engines.cuda.prefix_keys import prefix_keys, prefix_steps
from embedlib.engines.cuda.short_batches import TOKENS_PER_SEQ, ShortBatches, bucket_sizes
from embedlib.engines.first_tokens import batch_of_one, can_keep_prefix
from embedlib.engines.gpu_errors import is_out_of_memory
from embedlib.engines.gpu_memory import MAX_PREFIX_TOKENS
from embedlib.errors import EmbedlibError, EngineBuildError, EngineOutOfMemoryError, first_line
from embedlib.models.compiled.pooled_rows import POOLED_ROWS
from embedlib.models.spec import ModelSpec
from embedlib.models.weights.tensor_roles import linear_roles

CudaPrecision = Literal["fp8", "bf16", "fp16", "float32"]


class LoadedModel:
    """A model loaded onto a device, ready to run batches."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: HostWeights,
        *,
        precision: CudaPrecision,
        excluded: Collection[str],
        device: str,
        max_batch_tokens: int,
        memory_fraction: float,
        attention: AttentionName,
        keeps_prefix: bool,
        bucket_tokens: Sequence[int] | None,
    ) -> None:
        """Load the weights, allocate memory and record the short batches; call `warm_up` next.

        The arguments are those of `CudaEngine`.

        Raises:
            EngineUnavailableError: the device does not exist.
            EngineUnsupportedError: the engine or the device cannot run this model or precision.
            EngineBuildError: the model does not fit into memory, or its first computation fails.
        """
        is_fp8 = precision == "fp8"
        quantized = set(linear_roles(spec.encoder)) - set(excluded) if is_fp8 else ()
        self._spec = spec
        self.plan = build_plan(spec, quantized, splits_pooled=is_fp8 and POOLED_ROWS in excluded)
        self._prefix_steps = prefix_steps(self.plan)
        self.device = open_device(device, precision, memory_fraction)
        dtype = DTYPES[precision]
        # A sequence of the model's full length must fit, even if it exceeds the token budget.
        room = batch_room(spec, max_batch_tokens)
        has_prefix = keeps_prefix and can_keep_prefix(spec)
        self.prefix_tokens = min(MAX_PREFIX_TOKENS, room) if has_prefix else 0
        self._tile_queries = tile_queries(spec.encoder, is_short=False, itemsize=dtype.itemsize)
        sizes = bucket_tokens or bucket_sizes(most_short_tokens(spec.encoder, precision), room)
        self._build_errors = partial(_build_errors, precision, room, memory_fraction)
        try:
            with self._build_errors():
                self._load(weights, dtype, room, attention, sizes)
        except BaseException:
            self.close()
            raise

    def warm_up(self) -> None:
        """Launch a few tokens as a long batch; the thread that launches all batches must call this.

        This compiles the kernels for the tile size of long batches, which no recording uses, and
        lets libraries create their state for this thread: cuBLAS a handle and its memory.

        Raises:
            EngineBuildError: the computation fails or runs out of memory.
        """
        with self._build_errors():
            self.device.enter()
            self.device.warm_up(self._launch_tokens)

    def check_room(self, batch: Batch) -> None:
        """Reject a batch that is larger than the allocated memory.

        Raises:
            EngineOutOfMemoryError: the batch has too many tokens or sequences.
        """
        num_tokens, space = len(batch.token_ids), self.workspace
        if num_tokens > space.max_tokens or batch.num_seqs > space.max_seqs:
            raise EngineOutOfMemoryError(
                f"engine cuda: a batch of {num_tokens} tokens in {batch.num_seqs} sequences; there "
                f"is room for {space.max_tokens} tokens in {space.max_seqs} sequences"
            )

    def prepare(self, batch: Batch, num_kept: Ints, *, is_prefix: bool = False) -> Prepared:
        """Lay out a long batch on the host and divide its launches into groups.

        Args:
            batch: a batch that has passed `check_room`.
            num_kept: int32[B], tokens before each sequence whose keys are already kept.
            is_prefix: it is a prefix whose keys are to be kept.
        """
        layout = layout_of(batch, self.plan.pooled_modes, self._tile_queries)
        values = np.empty(layout.size, np.int32)
        fill(values, batch, layout, self._spec, self.plan.pooled_modes, num_kept)
        # Functions that take whole sequences cannot read kept keys.
        is_whole = not num_kept.any()
        groups = groups_of(
            self._prefix_steps if is_prefix else self.plan.steps,
            layout,
            split(values, layout),
            batch.seq_lens,
            self._spec.encoder,
            self.executor.served_whole if is_whole else (),
        )
        return Prepared(layout, values, groups, batch.cu_seqlens if is_whole else None)

    def close(self) -> None:
        """Free the device's memory; no batch may be in flight."""
        # Before the next engine takes their stream: from 2.12 on torch frees with a recording what
        # cuBLAS has on its stream, and other recordings there would use it all the same. Source:
        # https://github.com/pytorch/pytorch/issues/193402.
        for name in ("executor", "short", "workspace"):  # what exists, if loading failed
            vars(self).pop(name, None)
        self.device.close()

    def _load(
        self,
        weights: HostWeights,
        dtype: torch.dtype,
        room: int,
        attention: AttentionName,
        sizes: Sequence[int],
    ) -> None:
        """Do what takes the device's memory, in a frame that an error can be separated from."""
        spec, on_device = self._spec, self.device.torch_device
        loaded = WeightLoader(spec, weights, dtype, on_device).load(self.plan)
        kernels = kernels_for(self.device)
        served_whole = choose_attention(
            attention,
            self.plan,
            attention_shape(spec.encoder),
            has_bias=loaded.position_bias is not None,
            dtype=dtype,
            device=on_device,
            capability=self.device.capability,
            own=kernels.attend,
        )
        kept = prefix_keys(spec, self.prefix_tokens, dtype, on_device)
        self.executor = Executor(spec, self.plan, loaded, kernels, served_whole, kept)
        max_seqs = max(1, room // TOKENS_PER_SEQ)
        self.workspace = Workspace(self.plan, room, max_seqs, dtype, on_device)
        self.short = ShortBatches(spec, self.plan, self.executor, dtype, self.device, sizes)

    def _launch_tokens(self) -> None:
        # As many as cuBLAS multiplies.
        num_tokens = min(MAX_FEW_ROWS + 1, self._spec.max_seq_tokens)
        batch, num_kept = batch_of_one(np.zeros(num_tokens, np.int32)), np.zeros(1, np.int32)
        prepared = self.prepare(batch, num_kept)
        values = torch.from_numpy(prepared.values).to(self.device.torch_device)
        # Without ends our kernel computes attention; other functions have already had a trial.
        on_device = device_batch(values, prepared.layout)
        for group in prepared.groups:
            self.executor.run(group, on_device, self.workspace)


@contextmanager
def _build_errors(
    precision: CudaPrecision, max_tokens: int, memory_fraction: float
) -> Iterator[None]:
    """Convert errors of loading and warming up into a one-line `EngineBuildError`.

    Raises:
        EngineBuildError: the block ran out of memory, or raised an error of another library.
    """
    try:
        yield
    except EmbedlibError as error:
        _clear_frames(error)
        raise
    except Exception as error:  # such as a product or kernel that this torch lacks on this GPU
        _clear_frames(error)
        if is_out_of_memory(error):
            raise EngineBuildError(
                f"engine cuda: the model and batches of {max_tokens} tokens do not fit into "
                f"{memory_fraction:g} of the GPU's memory; lower max_batch_tokens or "
                "max_seq_tokens, free memory, or use precision='fp8'"
            ) from error
        raise EngineBuildError(
            f"engine cuda: precision {precision} failed on this device: {type(error).__name__}: "
            f"{first_line(error)}; use another precision or another version of torch"
        ) from error


def _clear_frames(error: BaseException | None) -> None:
    """Drop the local variables of functions that an error has left.

    Weights and buffers are among them. The error would keep them on the device for as long as a
    caller keeps the error, who may want to load a smaller model meanwhile.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def kernels_for(device: Device) -> ModuleType:
    """Return the module whose functions launch a plan's steps on a device."""
    if device.torch_device.type == "cpu":
        return reference
    from embedlib.engines.cuda import kernels

    return kernels
