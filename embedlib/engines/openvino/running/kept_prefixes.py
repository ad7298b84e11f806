"""Keeps the keys and values of prefixes that sequences share, so that each is computed once.

Few-shot examples and instructions are the same first tokens of every query. They are found by
comparing token ids: only those decide whether keys can be used again, since the last token of a
prompt may merge with the text behind it.

The first sequence of a batch is compared with those of the latest batches of its lane. If it shares
enough tokens with one of them, the batch is computed as ever, and the graph hands out the keys of
the shared tokens too: to find a prefix costs no computing. From the next batch on they are an
input. A batch uses as much of a kept prefix as all its sequences share, whichever lane found it.
What was used longest ago is dropped first; bulk work does not drop what queries have found, nor the
other way round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.base import Batch, Lane
from embedlib.engines.first_tokens import Ints, num_equal, num_shared
from embedlib.engines.openvino.graphs.kept_tokens import PREFIX
from embedlib.engines.openvino.graphs.stages import BF16_BITS, Stages
from embedlib.engines.openvino.library import ov
from embedlib.engines.openvino.sizes.prefix_sizes import MAX_KEPT_TOKENS, MIN_PREFIX_TOKENS

NUM_COMPARED = 8
"""Earlier sequences that a sequence is compared with: so many prompts may take turns."""

Arrays = dict[str, NDArray[np.floating]]
_NO_IDS: Ints = np.zeros(0, np.int32)


@dataclass(frozen=True)
class Use:
    """What a batch takes from kept prefixes, and leaves to them."""

    num_before: int = 0
    """First tokens of every sequence that are not computed."""
    arrays: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    """Inputs of the graph."""
    keep: Ints = field(default_factory=lambda: _NO_IDS)
    """First tokens of the first sequence that the graph hands out."""
    lane: Lane = Lane.QUERY


_NO_PREFIX = Use()


@dataclass(frozen=True, eq=False)
class _Prefix:
    ids: Ints
    lane: Lane
    """Which one found it."""
    arrays: Arrays
    """The graph's inputs by name."""


class KeptPrefixes:
    """The prefixes of one model; any thread may call it.

    There is no lock, which a query would hold that a signal handler interrupts: a query of the
    handler's own, on another thread, would wait for it for ever. What is changed is replaced as a
    whole, and what two threads keep at once may be lost: a later batch finds it again.
    """

    def __init__(self, axes: Mapping[str, int], empty: Arrays) -> None:
        """Keep none.

        Args:
            axes: the names of the graph's inputs, in the order of its outputs, and the axis of
                their tokens; empty: it takes no prefix.
            empty: these inputs without a token.
        """
        self._axes = axes
        self._empty = empty
        self._latest: dict[Lane, tuple[Ints, ...]] = dict.fromkeys(Lane, ())
        self._prefixes: tuple[_Prefix, ...] = ()
        """The one used last is last."""

    @classmethod
    def of(cls, stages: Stages) -> KeptPrefixes:
        """Return the prefixes of a graph, which may take none."""
        axes: dict[str, int] = {}
        empty: Arrays = {}
        for node in (node for stage in stages for node in stage.inputs):
            name, shape = node.get_node().get_friendly_name(), node.get_partial_shape()
            if name.startswith(PREFIX):
                axes[name] = next(i for i, size in enumerate(shape) if size.is_dynamic)
                sizes = [0 if size.is_dynamic else size.get_length() for size in shape]
                is_bf16 = node.get_element_type() == ov.Type.bf16
                empty[name] = np.zeros(sizes, BF16_BITS if is_bf16 else np.float32)
        return cls(axes, empty)

    def none(self) -> Use:
        """Return what a batch takes that has no prefix, and leaves none."""
        return self._use_of(self._empty)

    def zeros(self, num_tokens: int) -> Mapping[str, NDArray[np.generic]]:
        """Return the inputs of a batch behind a prefix of so many tokens that leaves as many."""
        arrays: Arrays = {}
        for name, axis in self._axes.items():
            shape = list(self._empty[name].shape)
            shape[axis] = num_tokens
            arrays[name] = np.zeros(shape, self._empty[name].dtype)
        return self._use_of(arrays, num_tokens, np.arange(num_tokens, dtype=np.int32)).arrays

    def use(self, batch: Batch) -> Use:
        """Return what a batch takes and leaves; the caller computes it, and calls `keep`."""
        if not self._axes:
            return _NO_PREFIX
        # A copy: of the batch nothing else is kept.
        first = batch.token_ids[: batch.cu_seqlens[1]][:-1][:MAX_KEPT_TOKENS].copy()
        prefixes = self._prefixes
        prefix, num_before = _longest(prefixes, batch)
        latest = self._latest[batch.lane]
        num_new = max((num_equal(first, ids) for ids in latest), default=0)
        if len(first) >= MIN_PREFIX_TOKENS:
            self._latest[batch.lane] = (*latest, first)[-NUM_COMPARED:]
        if num_new - num_before >= MIN_PREFIX_TOKENS:
            return self._use_of(self._empty, 0, first[:num_new], batch.lane)
        if prefix is None:
            return self.none()
        self._prefixes = (*(one for one in prefixes if one is not prefix), prefix)
        if num_before < len(prefix.ids):
            prefix = self._add(prefix.ids[:num_before], prefix.lane, prefix.arrays)
        return self._use_of(prefix.arrays, num_before)

    def keep(self, use: Use, tensors: Sequence[NDArray[np.floating]]) -> None:
        """Keep the prefix that a batch leaves.

        Args:
            use: what `use` returned for it.
            tensors: the outputs of the graph before the vectors; they are copied.
        """
        self._add(use.keep, use.lane, dict(zip(self._axes, tensors, strict=True)))

    def _add(self, ids: Ints, lane: Lane, arrays: Mapping[str, NDArray[np.floating]]) -> _Prefix:
        """Keep copies of the first tokens of these arrays; drop what has no room."""
        copies = {
            name: arrays[name].take(range(len(ids)), axis) for name, axis in self._axes.items()
        }
        added = _Prefix(ids, lane, copies)
        kept = [prefix for prefix in self._prefixes if not np.array_equal(prefix.ids, ids)]
        num_tokens = len(ids) + sum(len(prefix.ids) for prefix in kept if prefix.lane is lane)
        for prefix in list(kept):
            if num_tokens > MAX_KEPT_TOKENS and prefix.lane is lane:
                kept.remove(prefix)
                num_tokens -= len(prefix.ids)
        self._prefixes = (*kept, added)
        return added

    def _use_of(
        self, arrays: Arrays, num_before: int = 0, keep: Ints = _NO_IDS, lane: Lane = Lane.QUERY
    ) -> Use:
        places = {
            "num_before": np.array([num_before], np.int32),
            "before": np.arange(num_before, dtype=np.int32),
            "keep": np.arange(len(keep), dtype=np.int32),
        }
        return Use(num_before, {**arrays, **places}, keep, lane)


def _longest(prefixes: Sequence[_Prefix], batch: Batch) -> tuple[_Prefix | None, int]:
    """Return the prefix of which all sequences of a batch share most, and how much.

    Of several the shortest: of a longer one each batch would copy the part that it shares.
    """
    found: tuple[_Prefix | None, int] = None, 0
    for prefix in sorted(prefixes, key=lambda prefix: len(prefix.ids)):
        num_tokens = int(num_shared(batch, prefix.ids, MIN_PREFIX_TOKENS).min())
        if num_tokens > found[1]:
            found = prefix, num_tokens
    return found
