"""A graph in stages, each of some layers: compiled one by one, computed one behind the other.

Where both lanes share a compiled model, a query would wait until a whole bulk batch is computed,
and no batch is shorter than its longest text. Between two stages a batch can wait instead, and the
query is computed meanwhile. Weights and results are those of the whole graph. A graph of a model
with two compiled models has one stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.openvino.library import ov
from embedlib.engines.openvino.pages import return_freed
from embedlib.engines.openvino.stage_sizes import MIN_TRIMMED_ROWS

Stages = Sequence[ov.CompiledModel]
"""The compiled models of one graph, in order."""

HIDDEN: Final = "hidden"
"""Name of the input of all stages but the first: float32[B, L, H], the output of the one before."""

BF16_BITS: Final = np.float16
"""numpy has no bfloat16: its bits are in arrays of this type, as the library hands them out.
Nothing computes in float16 here."""


def input_nodes(stages: Stages) -> dict[str, ov.Output]:
    """Return the inputs of a graph by name; of one that several stages take, that of the first."""
    nodes: dict[str, ov.Output] = {}
    for stage in stages:
        for node in stage.inputs:
            nodes.setdefault(node.get_node().get_friendly_name(), node)
    nodes.pop(HIDDEN, None)
    return nodes


class Request:
    """Computes batches, one at a time, with a request of each stage."""

    def __init__(self, stages: Stages) -> None:
        self._stages = [
            (stage, stage.create_infer_request(), _names(stage.inputs)) for stage in stages
        ]
        self._is_cancelled = False

    def begin(self) -> None:
        """Begin with another batch: only what is cancelled from now on is meant for it."""
        self._is_cancelled = False

    def infer(
        self, arrays: Mapping[str, NDArray[Any]], between: Callable[[], object] = lambda: None
    ) -> None:
        """Compute a batch.

        Each stage lets go of the memory of its layers for the next one, which would take some of
        its own. What a short batch takes is kept: to touch it for the first time costs a lone query
        some hundredths.

        Args:
            arrays: the inputs by name; they are read in place. `HIDDEN` is among them if the
                stages are not all of the graph.
            between: called between two stages.

        Raises:
            RuntimeError: it failed, or was cancelled.
        """
        between_stages = self._hidden(arrays)
        last = len(self._stages) - 1
        lets_go = last > 0 and arrays["token_ids"].size >= MIN_TRIMMED_ROWS
        try:
            for number in range(last + 1):
                if number:
                    between()
                if self._is_cancelled:
                    raise RuntimeError("the batch was cancelled")
                self._infer_stage(number, arrays, between_stages)
                if lets_go:
                    _release(self._stages[number][0])
        finally:
            if lets_go:  # also where memory ran out: half of the batch comes next
                return_freed()

    def _infer_stage(
        self,
        number: int,
        arrays: Mapping[str, NDArray[Any]],
        between_stages: Sequence[NDArray[np.float32]],
    ) -> None:
        _, request, names = self._stages[number]
        for index, name in enumerate(names):
            is_ours = name == HIDDEN and number > 0  # the first stage may be of a later layer
            given = between_stages[number - 1] if is_ours else arrays[name]
            request.set_input_tensor(index, _tensor(given))
        if number < len(between_stages):
            result = ov.Tensor(between_stages[number], shared_memory=True)
            request.set_output_tensor(0, result)
        request.infer(share_outputs=True)  # or results would be copied

    def _hidden(self, arrays: Mapping[str, NDArray[Any]]) -> list[NDArray[np.float32]]:
        """Return the output of each stage but the last: two arrays by turns."""
        num_outputs = len(self._stages) - 1
        if not num_outputs:
            return []
        size = self._stages[0][0].outputs[0].get_partial_shape()[2].get_length()
        both = [np.empty((*arrays["token_ids"].shape, size), np.float32) for _ in range(2)]
        return [both[number % 2] for number in range(num_outputs)]

    @property
    def vectors(self) -> NDArray[np.float32]:
        """The graph's first output, a view of the request's memory."""
        vectors: NDArray[np.float32] = self._stages[-1][1].get_output_tensor(0).data
        return vectors

    @property
    def others(self) -> list[NDArray[np.floating]]:
        """The graph's other outputs, in their order; views of the requests' memory."""
        return [
            tensor.data for _, request, _ in self._stages for tensor in request.output_tensors[1:]
        ]

    def cancel(self) -> None:
        """Stop after the operator that is running; any thread may call this."""
        self._is_cancelled = True
        for _, request, _ in self._stages:
            request.cancel()


def _release(stage: ov.CompiledModel) -> None:
    """Let go of the memory of a stage's layers."""
    with suppress(RuntimeError):  # another request computes in it, and lets go later
        stage.release_memory()


def _tensor(array: NDArray[Any]) -> ov.Tensor:
    """Return a tensor that reads an array in place."""
    if array.dtype == BF16_BITS:
        return ov.Tensor(array, ov.Shape(array.shape), ov.Type.bf16)
    return ov.Tensor(array, shared_memory=True)


def _names(inputs: Sequence[ov.Output]) -> list[str]:
    return [node.get_node().get_friendly_name() for node in inputs]
