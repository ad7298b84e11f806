"""Runs a model on an NVIDIA GPU with TensorRT-LLM.

Only one thread may call `LLM.encode`, which blocks it while a batch is launched. That thread
launches one batch after the other and leaves the vectors on the GPU. They are copied to the host on
a separate stream while the next batch computes; a second thread waits for the copies.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Collection
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embedlib.engines.base import Batch, EngineLimits
from embedlib.engines.gpu_errors import is_out_of_memory, loss_of, run_error
from embedlib.engines.tensorrt_llm.runtime import GRAPH_TOKENS, load_library, make_llm
from embedlib.engines.tensorrt_llm.support import batch_tokens, check_supported
from embedlib.engines.torch_gpus import take_share
from embedlib.errors import (
    EmbedlibError,
    EngineBuildError,
    EngineRunError,
    first_line,
)
from embedlib.models.reading.files import ModelFiles
from embedlib.models.spec import ModelSpec
from embedlib.threads.closing import CLOSE_SECONDS, WorkerThread, check_ended

MAX_INFLIGHT_BULK: Final = 2
"""One computing, one launched after it."""
MAX_INFLIGHT_QUERIES: Final = 2


class TensorRTLLMEngine:
    """A model on a GPU. See `embedlib.engines.base.Engine`."""

    def __init__(
        self,
        files: ModelFiles,
        folder: Path,
        *,
        excluded: Collection[str] = (),
        max_batch_tokens: int | None = None,
        max_inflight_bulk: int | None = None,
        gpu_memory_fraction: float = 0.9,
        cache_dir: Path,
    ) -> None:
        """Load an engine directory onto the GPU.

        Args:
            files: the model that the directory was compiled from, or the directory itself.
            folder: the engine directory.
            excluded: roles of linear layers that are not stored in FP8.
            max_batch_tokens: token budget of a batch; None: this engine's default.
            max_inflight_bulk: maximum bulk batches in flight; None: this engine's default.
            gpu_memory_fraction: maximum share of the GPU's memory to use.
            cache_dir: cache of tuned and compiled kernels, of all models.

        Raises:
            EngineUnavailableError: if tensorrt-llm cannot be loaded or is too old.
            EngineUnsupportedError: if the model has a trait this engine does not implement.
            ModelWeightsError: if the directory's tensors do not match the model.
            EngineBuildError: if TensorRT-LLM could not load it.
        """
        spec = files.spec
        check_supported(spec)
        load_library()
        from embedlib.engines.tensorrt_llm.model import register

        self._give_back = take_share(0, gpu_memory_fraction)
        try:
            self._llm = make_llm(
                folder / files.transformer_dir.relative_to(files.folder),
                register(files, folder, excluded),
                max_seq_tokens=spec.max_seq_tokens,
                batch_tokens=batch_tokens(spec, max_batch_tokens),
                cache_dir=cache_dir,
            )
            model_engine = self._llm._encoder_executor.model_engine
            self._max_batch_seqs = int(model_engine.batch_size)
            # TensorRT-LLM may adjust the requested limits, and reports them nowhere else.
            self.limits = _limits(spec, model_engine, max_inflight_bulk)
        except EmbedlibError:
            self._free()
            raise
        except Exception as error:
            self._free()
            if is_out_of_memory(error):
                raise EngineBuildError(
                    f"engine tensorrt_llm: the GPU has too little memory for {folder}: "
                    f"{first_line(error)}; a smaller max_batch_tokens needs less"
                ) from error
            raise EngineBuildError(
                f"engine tensorrt_llm: loading {folder} failed: {first_line(error)}"
            ) from error
        self._lost: str | None = None
        self._copies = torch.cuda.Stream()
        self._graph_done: Any = None
        """The event after the last batch that a CUDA graph may have computed."""
        self._submitted: SimpleQueue[_Pending | None] = SimpleQueue()
        self._launched: SimpleQueue[_Pending | None] = SimpleQueue()
        self._threads = [
            WorkerThread(target, name)
            for name, target in (
                ("embedlib-tensorrt-llm", self._launch_all),
                ("embedlib-tensorrt-llm-copies", self._finish_all),
            )
        ]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            self.close()
            raise

    @property
    def lost(self) -> str | None:
        """Why no batch will be computed any more, and what to do; None while batches may be."""
        return self._lost

    def submit(self, batch: Batch, on_done: Callable[[], None]) -> _Pending:
        """Start a batch and return at once.

        Raises:
            EngineRunError: the GPU is lost.
        """
        if self._lost is not None:
            raise EngineRunError(f"engine tensorrt_llm: {self._lost}")
        pending = _Pending(batch, on_done)
        self._submitted.put(pending)
        return pending

    def close(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """Wait for what is in flight and free the GPU's memory.

        Raises:
            CloseTimeoutError: a thread still runs after `timeout` seconds. The memory is not freed,
                since the thread may use it; calling this again waits again.
        """
        if self._llm is None:
            return
        self._submitted.put(None)
        check_ended("engine tensorrt_llm", self._threads, timeout)
        self._free()

    def _free(self) -> None:
        llm = getattr(self, "_llm", None)
        self._llm = None
        try:
            if llm is not None:
                llm.shutdown()
            # The model's modules form reference cycles, and torch caches the memory they free.
            del llm
            gc.collect()
            torch.cuda.empty_cache()
        except RuntimeError as error:  # a kernel failed earlier; its batch has got the error
            logging.getLogger(__name__).warning("closing the GPU: %s", first_line(error))
        finally:
            self._give_back()

    def _launch_all(self) -> None:
        """Launch batches; the first thread runs this."""
        while (pending := self._submitted.get()) is not None:
            try:
                self._launch(pending)
            except BaseException as error:  # no exception may end this thread
                pending.error = error
                self._check_lost()
            self._launched.put(pending)
            del pending  # otherwise the last batch would be kept until the next one arrives
        self._launched.put(None)

    def _launch(self, pending: _Pending) -> None:
        batch = pending.batch
        bounds = batch.cu_seqlens.tolist()
        token_ids = batch.token_ids.tolist()
        sequences = [token_ids[a:b] for a, b in pairwise(bounds)]
        step = self._max_batch_seqs
        for first in range(0, len(sequences), step):
            vectors = self._encode(sequences[first : first + step])
            self._copies.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._copies):
                # Into pinned memory, as a non-blocking copy requires.
                pending.parts.append(vectors.to("cpu", non_blocking=True))
            pending.on_gpu.append(vectors)
        pending.copied = torch.cuda.Event()
        pending.copied.record(self._copies)

    def _encode(self, sequences: list[list[int]]) -> Tensor:
        """Return float32[B, D] on the GPU, which may not have computed it yet.

        A CUDA graph reads its input when it runs, from host memory that all graphs share. In
        1.3.0rc22, `encode` may overwrite that memory with the next input too early (later versions
        wait, in `EncoderCUDAGraphRunner.retire_staging`). So this waits for one graph before it
        launches the next.
        """
        may_be_graph = len(sequences) == 1 and len(sequences[0]) <= GRAPH_TOKENS[-1]
        if may_be_graph and self._graph_done is not None:
            self._graph_done.synchronize()
        vectors: Tensor = self._llm.encode(
            sequences, copy_logits_to_host=False, return_raw_logits=True
        )
        if may_be_graph:
            self._graph_done = torch.cuda.Event()
            self._graph_done.record(torch.cuda.current_stream())
        return vectors

    def _finish_all(self) -> None:
        """Wait for copies and call back; the second thread runs this."""
        while (pending := self._launched.get()) is not None:
            try:
                if pending.copied is not None:
                    pending.copied.synchronize()
            except BaseException as error:  # no exception may end this thread
                pending.error = error
                self._lose(error)
            pending.on_gpu.clear()
            pending.on_done()
            del pending

    def _check_lost(self) -> None:
        """Find out whether a batch failed because an earlier one had lost the GPU."""
        try:
            torch.cuda.current_stream().synchronize()
        except BaseException as error:
            self._lose(error)

    def _lose(self, error: BaseException) -> None:
        """Give the GPU up, if this error of waiting for it says that it is lost."""
        self._lost = self._lost or loss_of(error)


class _Pending:
    """A batch in flight."""

    def __init__(self, batch: Batch, on_done: Callable[[], None]) -> None:
        self.batch = batch
        self.on_done = on_done
        self.on_gpu: list[Tensor] = []
        """The vectors on the GPU, kept until they are copied."""
        self.parts: list[Tensor] = []
        self.copied: Any = None
        """The event after its copies."""
        self.error: BaseException | None = None

    def result(self) -> NDArray[np.float32]:
        """Return float32[B, D]."""
        if self.error is not None:
            raise run_error("tensorrt_llm", self.error) from self.error
        # Concatenating copies, so that torch can reuse its pinned memory.
        vectors = np.concatenate([part.numpy() for part in self.parts])
        return vectors.astype(np.float32, copy=False)


def _limits(spec: ModelSpec, model_engine: Any, max_inflight_bulk: int | None) -> EngineLimits:
    """Return the limits that TensorRT-LLM settled on.

    Raises:
        EngineBuildError: if the model's longest sequence exceeds them.
    """
    for name in ("max_seq_len", "max_num_tokens"):
        limit = int(getattr(model_engine, name))
        if limit < spec.max_seq_tokens:
            raise EngineBuildError(
                f"engine tensorrt_llm has {name} = {limit}, less than this model's "
                f"{spec.max_seq_tokens} tokens; max_seq_tokens = {limit} would work"
            )
    num_bulk = max_inflight_bulk or MAX_INFLIGHT_BULK
    return EngineLimits(
        embedding_dim=spec.embedding_dim,
        is_padded=False,
        max_batch_tokens=int(model_engine.max_num_tokens),
        num_parallel_batches=1,
        max_inflight_batches=num_bulk + MAX_INFLIGHT_QUERIES,
        max_inflight_bulk=num_bulk,
    )
