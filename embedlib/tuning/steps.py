"""What a profile can vary on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from embedlib.engines.machine import Machine, has_avx2_alone
from embedlib.engines.openvino.sizes.number_types import multiplies_tiles
from embedlib.engines.profile import Library, Profile
from embedlib.tuning.search import Step

BUDGETS: Final = (128, 256, 512, 1024, 2048, 4096)


def steps(
    *, threads: int, pass_tokens: int, is_large: bool, others: Sequence[Library]
) -> list[Step]:
    """Return the steps of a search.

    Args:
        threads: cores to use.
        pass_tokens: tokens of a bulk pass; it must have several batches for each stream.
        is_large: whether the model packs its matrices once, which only one library does.
        others: from `other_libraries`.
    """

    def layouts(best: Profile) -> Sequence[Profile]:
        if best.shares_lanes:
            return ()  # by its size: two compiled models would take twice the memory
        fewer = [num for num in (threads // 2, 1) if 0 < num < threads]
        streams = [replace(best, num_streams=num) for num in dict.fromkeys(fewer)]
        return [*streams, replace(best, num_streams=1, shares_lanes=True)]

    def libraries(best: Profile) -> Sequence[Profile]:
        if is_large:
            return ()
        return [replace(best, library=library) for library in others]

    def budgets(best: Profile) -> Sequence[Profile]:
        most = pass_tokens // (2 * best.num_streams)
        now = best.max_batch_tokens
        tried = [tokens for tokens in BUDGETS if tokens <= most and tokens != now]
        # The nearest first, in case the time is over.
        tried.sort(key=lambda tokens: (max(tokens / now, now / tokens), -tokens))
        return [replace(best, max_batch_tokens=tokens) for tokens in tried]

    return [layouts, libraries, budgets]


def other_libraries(machine: Machine, precision: str) -> tuple[Library, ...]:
    """Return the libraries that may be faster than the default, see `Layout.multiplier`."""
    if multiplies_tiles(precision, machine.cpu_features()):
        return ()
    if "GenuineIntel" in machine.cpu_identity():
        return ("any",)
    has_mlas = precision == "float32" and has_avx2_alone(machine.cpu_features())
    return ("onednn", "any" if has_mlas else "mlas")
