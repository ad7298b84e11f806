"""Into how many parts the MLPs of a model are cut, and what that takes, see `mlp`."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from embedlib.models.spec import Encoder

CACHE_WEIGHTS: Final = 1 << 20
"""A smaller matrix stays in the cache of a core as it is: 2 MiB in bf16, the L2 cache of a Xeon
with AMX. Cut, MiniLM's gain nothing. Source for these numbers:
docs/measurements/cpu-amx.md, products by their sizes; on two cores."""
MAX_COLUMNS: Final = 1024
"""Of a part, where one thread multiplies a batch."""
SHARED_COLUMNS: Final = 512
"""The same where all threads share a batch."""
THREAD_COLUMNS: Final = 128
"""A part has so many for each thread, which share them where a query is computed: two blocks of the
library's. Not measured on more than two."""
COLUMNS_STEP: Final = 32
"""A part but the last has a multiple of so many, which AMX multiplies at once. Source: Intel 64 and
IA-32 Architectures Software Developer's Manual, volume 1, chapter 18."""
MAX_COPIED_BYTES: Final = 256 << 20
"""Of all layers' `down`, whose parts are copied, since columns are not contiguous in the file. A
model that is larger is not cut."""


def num_mlp_parts(encoder: Encoder, threads: int, *, shares_lanes: bool) -> int:
    """Return into how many parts each MLP is cut where AMX multiplies.

    Args:
        encoder: of the model.
        threads: cores to use.
        shares_lanes: whether the lanes share a compiled model, so that all threads share a batch.
    """
    if not copied_bytes(encoder):
        return 1
    columns = SHARED_COLUMNS if shares_lanes else MAX_COLUMNS
    return -(-encoder.intermediate_size // max(columns, THREAD_COLUMNS * threads))


def parts_of(size: int, num_parts: int) -> list[slice]:
    """Return the parts of a size: all but the last are multiples of `COLUMNS_STEP`."""
    steps = -(-size // COLUMNS_STEP)
    assert num_parts <= steps, "a part would be empty; this is a bug in embedlib"
    ends = [COLUMNS_STEP * (steps * number // num_parts) for number in range(1, num_parts)]
    return [slice(start, end) for start, end in pairwise([0, *ends, size])]


def copied_bytes(encoder: Encoder) -> int:
    """Return what the copies of all layers' `down` take in bf16, at most; 0: no MLP is cut.

    Experts are not cut.
    """
    weights = encoder.hidden_size * encoder.intermediate_size
    num_experts = len(encoder.experts.layers) if encoder.experts is not None else 0
    num_bytes = 2 * weights * (encoder.num_layers - num_experts)
    return num_bytes if weights > CACHE_WEIGHTS and num_bytes <= MAX_COPIED_BYTES else 0
