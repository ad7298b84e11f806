"""The compiled models of one graph, and everything that they read, freed in a fixed order."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.base import Batch
from embedlib.engines.first_tokens import without_first
from embedlib.engines.openvino.graphs.stages import Request
from embedlib.engines.openvino.pages import letting_go
from embedlib.engines.openvino.running.compiling import Loaded
from embedlib.engines.openvino.running.inputs import infer_batch, is_token, last_line
from embedlib.engines.openvino.running.kept_prefixes import KeptPrefixes, Use
from embedlib.engines.openvino.running.tiny_batches import compute_tiny_batches
from embedlib.engines.openvino.sizes.padding import Padding
from embedlib.errors import EngineOutOfMemoryError, EngineRunError
from embedlib.threads.interrupts import is_of_handler

MAX_FEW_ROWS: Final = 64
MIN_MANY_ROWS: Final = 128
"""Between them oneDNN changes the form of the few matrices of a float32 file that it packs, and
keeps both. Source: docs/measurements/memory.md, packings."""


class CompiledModels:
    """Owns requests, compiled models and what they read in place.

    OpenVINO keeps pointers into the weights, or into the file that was imported, of which Python
    knows nothing. So what reads them is dropped first: requests, then compiled models. That
    happens when the last user has left (`leave`): every thread that computes is a user, and so is
    the engine. Nothing depends on the order in which Python destroys objects.

    Behind a batch that failed come `tiny_batches`. Of a compiled model with several streams nobody
    knows which of them a batch meets: its work goes to the model of queries from then on.
    """

    def __init__(
        self,
        loaded: Loaded,
        requests: Sequence[int],
        *,
        is_per_token: bool,
        padding: Padding,
    ) -> None:
        """Own compiled models, what they read, and requests of them.

        Args:
            loaded: the compiled models.
            requests: the compiled model of each request, by its index; the last has one stream.
            is_per_token: whether a result has one row per token.
            padding: of its batches.

        Raises:
            RuntimeError: a request could not be made; everything is freed.
        """
        self._compiled = loaded.models
        self._reads = loaded.reads
        self._files: Sequence[Any] = loaded.mapped_files
        self._padding = padding
        self._most_rows = 0
        self._requests: list[Request] = []
        self._behind_failure: list[Request] = []
        """Which takes the place of each request once one has failed; all are of the last model."""
        self._settling = threading.RLock()
        """Held by who computes tiny batches, and guards the counts below."""
        self._num_failed = 0
        """Batches."""
        self._num_settled = 0
        """Of them, those whose traces are gone."""
        self._num_users = 1
        """The engine, and every thread."""
        self._changing = threading.Lock()
        self._is_per_token = is_per_token
        self._prefixes = KeptPrefixes.of(loaded.models[0])
        try:
            for index in requests:
                request = Request(self._compiled[index])
                is_last = self._compiled[index] is self._compiled[-1]
                self._requests.append(request)
                self._behind_failure.append(request if is_last else Request(self._compiled[-1]))
        except RuntimeError:
            self.free()
            raise

    def enter(self) -> None:
        """Add a user, who leaves when it computes no more."""
        with self._changing:
            self._num_users += 1

    def leave(self) -> None:
        """Remove a user; the last one frees everything, in order."""
        with self._changing:
            self._num_users -= 1
            is_last = self._num_users == 0
        if is_last:
            self.free()

    def free(self) -> None:
        """Drop everything, what reads before what is read."""
        self._requests.clear()
        self._behind_failure.clear()
        self._compiled.clear()
        while self._reads:
            del self._reads[0]
        # A program may keep a model that it has closed.
        self._files, self._prefixes = (), KeptPrefixes({}, {})

    def request(self, number: int) -> Request:
        """Return a request; only its user may hold it, for one batch, and drops it behind that."""
        return self._requests[number]

    def compute(
        self, number: int, batch: Batch, before: Callable[[], object] = lambda: None
    ) -> NDArray[np.float32]:
        """Return float32[B, D], or float32[T, D] of every token.

        Args:
            number: of the request, which computes no other batch at the same time.
            batch: the sequences.
            before: called before each stage of the graph, if there are several.

        Raises:
            EngineOutOfMemoryError: the batch did not fit into memory.
            EngineRunError: it failed.
        """
        try:
            use = self._prefixes.use(batch)
            if use.num_before:
                batch = without_first(batch, np.full(batch.num_seqs, use.num_before, np.int32))
            return self._compute(number, batch, use, before)
        except (RuntimeError, MemoryError) as error:
            if is_of_handler(error):
                raise
            raise run_error(error) from error

    def _compute(
        self, number: int, batch: Batch, use: Use, before: Callable[[], object]
    ) -> NDArray[np.float32]:
        """Compute a batch; again where another one has failed meanwhile, behind which it may be.

        Where it has failed itself then, once: two that find no memory could do so for ever.
        """
        min_rows = self._padding.rows(batch, use.num_before)
        may_fail = True
        while True:
            num_failed = self._settle()
            request = self._requests[number]  # behind the count: a failure changes both
            with letting_go(self._files_to_pack(batch)):
                try:
                    output = infer_batch(request, batch, use.arrays, min_rows, before)
                except (RuntimeError, MemoryError) as error:
                    is_behind = num_failed != self._num_failed
                    self._note_failure(number, error)  # first: others may be behind it already
                    with suppress(RuntimeError, MemoryError):
                        request.give_back()  # half of the batch comes next
                    if not (is_behind and may_fail) or request.is_cancelled or is_of_handler(error):
                        raise
                    may_fail = False
                    continue
            if num_failed == self._num_failed:
                break
        if len(use.keep):
            self._prefixes.keep(use, request.others)
        # A copy, since a request writes into the same memory again.
        return output[is_token(batch, output.shape[1])] if self._is_per_token else output.copy()

    def _settle(self) -> int:
        """Remove what batches that failed have left; return how many have failed until then.

        Raises:
            RuntimeError, MemoryError: it failed.
        """
        if (num_failed := self._num_failed) == self._num_settled:
            return num_failed  # without the lock, for which a signal handler's query would wait
        with self._settling:
            num_failed = self._num_failed
            if num_failed != self._num_settled:
                compute_tiny_batches(Request(self._compiled[-1]), self._prefixes)
                self._num_settled = num_failed
            return num_failed

    def _note_failure(self, number: int, error: RuntimeError | MemoryError) -> None:
        """Count a batch that failed; leave its compiled model if that may have several streams."""
        with self._settling:
            if self._requests[number] is not self._behind_failure[number]:
                self._requests = self._behind_failure
                told = run_error(error)
                if isinstance(told, EngineOutOfMemoryError):
                    logging.getLogger(__name__).warning(
                        "%s: from now on the compiled model of queries computes all batches, which "
                        "takes longer",
                        told,
                    )
            self._num_failed += 1

    def _files_to_pack(self, batch: Batch) -> Sequence[Any]:
        """Return the mapped files if this batch may be the first that needs the form of many rows.

        Where few rows end depends on the matrix: products of up to so many are all watched.
        """
        rows = batch.num_seqs * int(batch.seq_lens.max())
        may_pack = rows > MAX_FEW_ROWS and self._most_rows < MIN_MANY_ROWS
        self._most_rows = max(self._most_rows, rows)
        return self._files if may_pack else []


def run_error(error: RuntimeError | MemoryError) -> EngineRunError:
    """Return embedlib's error for an error that OpenVINO or numpy raised during a batch.

    The functions that it has left lose their variables: requests, with which the compiled models
    would stay in memory behind `close` for as long as a caller keeps the error.
    """
    traceback.clear_frames(error.__traceback__)
    line = last_line(error)
    # "std::bad_alloc", "Failed to allocate 8 bytes", "node with name 'x' can't alloc"
    is_memory = isinstance(error, MemoryError) or "alloc" in line
    if is_memory or "out of memory" in line.lower():
        return EngineOutOfMemoryError(f"engine openvino: out of memory: {line}")
    return EngineRunError(f"engine openvino: {line}")
