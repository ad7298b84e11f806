"""The compiled models of one graph, and everything that they read, freed in a fixed order."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.base import Batch
from embedlib.engines.first_tokens import without_first
from embedlib.engines.openvino.kept_prefixes import NO_PREFIX, KeptPrefixes
from embedlib.engines.openvino.library import ov
from embedlib.errors import EngineOutOfMemoryError, EngineRunError
from embedlib.models.weights.tensor_roles import ArraysByRole


class CompiledModels:
    """Owns requests, compiled models and the weights that they read in place.

    OpenVINO keeps pointers into the arrays of the weights, of which Python knows nothing. So what
    reads them is dropped first: requests, compiled models, the graph, and the weights last. That
    happens when the last user has left (`leave`): every thread that computes is a user, and so is
    the engine. Nothing depends on the order in which Python destroys objects.
    """

    def __init__(self, weights: ArraysByRole, graph: ov.Model, *, is_per_token: bool) -> None:
        """Own a graph and its weights; compiled models and requests are added."""
        self._weights: ArraysByRole | None = weights
        self._graph: ov.Model | None = graph
        self._compiled: list[ov.CompiledModel] = []
        self._requests: dict[int, ov.InferRequest] = {}
        self._num_users = 1
        """The engine, and every thread."""
        self._changing = threading.Lock()
        self._is_per_token = is_per_token
        self._prefixes = KeptPrefixes.of(graph)
        """None: the graph takes no prefix."""
        self._input_names = [node.get_node().get_friendly_name() for node in graph.inputs]

    def compile(self, core: ov.Core, settings: Sequence[dict[str, object]]) -> None:
        """Compile the graph once for each of the settings.

        Raises:
            RuntimeError: OpenVINO could not compile it.
        """
        for setting in settings:
            self._compiled.append(core.compile_model(self._graph, "CPU", setting))

    def add_request(self, index: int) -> int:
        """Make a request of a compiled model and return its number."""
        number = len(self._requests)
        self._requests[number] = self._compiled[index].create_infer_request()
        return number

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
        self._compiled.clear()
        self._graph = None
        self._weights = None

    def request(self, number: int) -> ov.InferRequest:
        """Return a request; only its user may hold it, and drops it before leaving."""
        return self._requests[number]

    def infer(self, request: ov.InferRequest, batch: Batch) -> NDArray[np.float32]:
        """Return float32[B, D], or float32[T, D] of every token.

        Raises:
            EngineOutOfMemoryError: the batch did not fit into memory.
            EngineRunError: it failed.
        """
        use = self._prefixes.use(batch) if self._prefixes else NO_PREFIX
        batch = without_first(batch, np.full(batch.num_seqs, use.num_before, np.int32))
        arrays = {
            "token_ids": pad(batch),
            "seq_lens": batch.seq_lens,
            "num_type0_tokens": batch.num_type0_tokens,
            "num_prompt_tokens": batch.num_prompt_tokens,
            **use.arrays,
        }
        try:
            for index, name in enumerate(self._input_names):
                # Read in place: the arrays live until the end of this function.
                request.set_input_tensor(index, ov.Tensor(arrays[name], shared_memory=True))
            request.infer()
        except RuntimeError as error:
            raise run_error(error) from error
        # A copy, since a request writes into the same memory again.
        output: NDArray[np.float32] = request.get_output_tensor(0).data
        if self._prefixes and len(use.keep):
            self._prefixes.keep(use, [tensor.data for tensor in request.output_tensors[1:]])
        return output[is_token(batch)] if self._is_per_token else output.copy()


def pad(batch: Batch) -> NDArray[np.int32]:
    """Lay a packed batch out as int32[B, L], padded on the right with id 0."""
    if batch.num_seqs == 1:
        return batch.token_ids[np.newaxis]
    places = is_token(batch)
    padded = np.zeros(places.shape, np.int32)
    padded[places] = batch.token_ids
    return padded


def is_token(batch: Batch) -> NDArray[np.bool_]:
    """bool[B, L]: where the tokens of a packed batch lie once it is padded on the right."""
    seq_lens = batch.seq_lens
    places: NDArray[np.bool_] = np.arange(int(seq_lens.max())) < seq_lens[:, None]
    return places


def run_error(error: RuntimeError) -> EngineRunError:
    """Return embedlib's error for an error that OpenVINO raised during a batch."""
    line = last_line(error)
    if "bad_alloc" in line or "allocate" in line or "out of memory" in line.lower():
        return EngineOutOfMemoryError(f"engine openvino: out of memory: {line}")
    return EngineRunError(f"engine openvino: {line}")


def last_line(error: RuntimeError) -> str:
    """The last line of an OpenVINO message; the ones before are places in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
