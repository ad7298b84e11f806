"""A graph in stages, each of some layers: compiled one by one, computed one behind the other.

Where both lanes share a compiled model, a query would wait until a whole bulk batch is computed,
and no batch is shorter than its longest text. Between two stages a batch can wait instead, and the
query is computed meanwhile. Weights and results are those of the whole graph. A graph of a model
with two compiled models has one stage.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.openvino.library import ov
from embedlib.engines.openvino.pages import FreedMemory
from embedlib.engines.openvino.sizes.stage_sizes import MIN_TRIMMED_ROWS

Stages = Sequence[ov.CompiledModel]
"""The compiled models of one graph, in order."""

HIDDEN: Final = "hidden"
"""Name of the input of all stages but the first: the output of the one before, float32[B, L, H], or
bfloat16 where `GraphOptions.has_narrow_residual`."""

BF16_BITS: Final = np.float16
"""numpy has no bfloat16: its bits are in arrays of this type, as the library hands them out.
Nothing computes in float16 here."""


class Request:
    """Computes batches, one at a time, with a request of each stage.

    To set a tensor takes the library some 20 us, for each stage of each lone query. So integers,
    and what goes from one stage to the next, are copied or written into tensors that are set once;
    others are set again where they are not the arrays of the batch before. Behind a batch that
    failed everything is set anew.
    """

    def __init__(self, stages: Stages) -> None:
        self._stages = [
            (stage, stage.create_infer_request(), _names(stage.inputs)) for stage in stages
        ]
        self.is_cancelled = False
        """Whether the batch was cancelled; it fails then."""
        self._is_set = False
        """Whether the fields below are as the batch before has left them, which ended well."""
        self._integers: dict[str, ov.Tensor] = {}
        self._given: list[dict[int, str]] = []
        """Of each stage, the names of the inputs that are set for a batch, by index."""
        self._known: list[dict[int, weakref.ref[NDArray[Any]]]] = []
        """What they were set to; not held, so that a prefix that is no longer kept is freed."""
        self._between: list[ov.Tensor] = []
        """The outputs of the stages but the last, by turns."""
        self._freed = FreedMemory()

    def begin(self) -> None:
        """Begin with another batch: only what is cancelled from now on is meant for it."""
        self.is_cancelled = False

    def infer(
        self, arrays: Mapping[str, NDArray[Any]], before: Callable[[], object] = lambda: None
    ) -> None:
        """Compute a batch.

        Each stage lets go of the memory of its layers for the next one, which would take some of
        its own. The last one returns it to the system, and so does one behind which it has become
        too much: glibc may find no place for a stage among the pieces that others have freed. What
        a short batch takes is kept: to touch it for the first time costs a lone query some
        hundredths.

        Args:
            arrays: the inputs by name; those that are not int32 are read in place. `HIDDEN` is
                among them if the stages are not all of the graph.
            before: called before each stage, if there are several.

        Raises:
            RuntimeError: it failed, or was cancelled.
        """
        if not self._is_set:
            self._set_all()
        self._is_set = False
        num_seqs, length = arrays["token_ids"].shape
        last = len(self._stages) - 1
        lets_go = last > 0 and num_seqs * length >= MIN_TRIMMED_ROWS
        for name, tensor in self._integers.items():
            _copy(arrays[name], tensor)
        for tensor in self._between:
            tensor.shape = [num_seqs, length, tensor.shape[2]]
        for number, (stage, request, _) in enumerate(self._stages):
            if last:
                before()
            if self.is_cancelled:
                raise RuntimeError("the batch was cancelled")
            self._set_given(number, arrays)
            request.infer(share_outputs=True)  # or results would be copied
            if lets_go:
                _release(stage)
                self._freed.bound()
        if lets_go:
            self.give_back()
        self._is_set = True

    def give_back(self) -> None:
        """Return the memory of a long batch to the system."""
        self._set_between()
        self._freed.give_back()

    def _set_all(self) -> None:
        """Set all tensors that are set once, and forget what the others were set to."""
        self._given = [self._set_integers(number) for number in range(len(self._stages))]
        self._known = [{} for _ in self._stages]
        self._set_between()

    def _set_integers(self, number: int) -> dict[int, str]:
        """Set the tensors of a stage's integers; return the names of its other inputs by index.

        Without what the stage before hands on.
        """
        stage, request, names = self._stages[number]
        others: dict[int, str] = {}
        for index, (name, node) in enumerate(zip(names, stage.inputs, strict=True)):
            if node.get_element_type() == ov.Type.i32:
                ones = [1] * len(node.get_partial_shape())
                tensor = self._integers.setdefault(name, ov.Tensor(ov.Type.i32, ov.Shape(ones)))
                request.set_input_tensor(index, tensor)
            elif name != HIDDEN or number == 0:  # the first stage may be of a later layer
                others[index] = name
        return others

    def _set_between(self) -> None:
        """Set new tensors for what goes from stage to stage: those of a long batch are freed."""
        last = len(self._stages) - 1
        if not last:
            return
        hidden = self._stages[0][0].outputs[-1]
        shape = ov.Shape([1, 1, hidden.get_partial_shape()[2].get_length()])
        self._between = [ov.Tensor(hidden.get_element_type(), shape) for _ in range(2)]
        for number, (stage, request, names) in enumerate(self._stages):
            if number:
                given = self._between[(number - 1) % 2]
                request.set_input_tensor(names.index(HIDDEN), given)
            if number < last:
                request.set_output_tensor(len(stage.outputs) - 1, self._between[number % 2])

    def _set_given(self, number: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Set the inputs of a stage that are other arrays than before."""
        known, request = self._known[number], self._stages[number][1]
        for index, name in self._given[number].items():
            if index not in known or known[index]() is not arrays[name]:
                request.set_input_tensor(index, _tensor(arrays[name]))
                known[index] = weakref.ref(arrays[name])

    @property
    def vectors(self) -> NDArray[np.float32]:
        """The graph's last output, a view of the request's memory."""
        vectors: NDArray[np.float32] = self._stages[-1][1].output_tensors[-1].data
        return vectors

    @property
    def others(self) -> list[NDArray[np.floating]]:
        """The graph's other outputs, in their order; views of the requests' memory."""
        return [
            tensor.data for _, request, _ in self._stages for tensor in request.output_tensors[:-1]
        ]

    def cancel(self) -> None:
        """Stop after the operator that is running; any thread may call this.

        For an engine that is about to close: the next batch comes behind `tiny_batches`.
        """
        self.is_cancelled = True
        for _, request, _ in self._stages:
            request.cancel()


def _release(stage: ov.CompiledModel) -> None:
    """Let go of the memory of a stage's layers."""
    with suppress(RuntimeError):  # another request computes in it, and lets go later
        stage.release_memory()


def _copy(array: NDArray[Any], tensor: ov.Tensor) -> None:
    """Copy integers into a tensor, which takes their shape."""
    if array.dtype != np.int32:
        raise RuntimeError(f"an input is {array.dtype}, not int32")
    tensor.shape = array.shape
    tensor.data[...] = array


def _tensor(array: NDArray[Any]) -> ov.Tensor:
    """Return a tensor that reads an array in place."""
    if array.dtype == BF16_BITS:
        return ov.Tensor(array, ov.Shape(array.shape), ov.Type.bf16)
    return ov.Tensor(array, shared_memory=True)


def _names(inputs: Sequence[ov.Output]) -> list[str]:
    return [node.get_node().get_friendly_name() for node in inputs]
