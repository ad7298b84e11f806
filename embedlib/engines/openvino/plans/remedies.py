"""What helps where a model needs more memory than there is."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from embedlib.config import Config
from embedlib.engines.kind import ChosenPrecision
from embedlib.engines.openvino.plans.memory import MAX_BATCH_TOKENS, MemoryNeeds, memory_needs
from embedlib.models.reading.files import ModelFiles
from embedlib.system.memory import Memory, Room, gib

PRECISIONS: Final = ("float32", "int8")
"""bf16 needs half of what float32 does, but not every CPU has it."""


def remedy(
    files: ModelFiles, config: Config, precision: ChosenPrecision, room: Memory, limit: Room
) -> str:
    """Return what would fit, as the end of a message.

    Args:
        files: the model.
        config: its options.
        precision: the one in which it does not fit.
        room: the memory that there is.
        limit: the part of it that is too small.
    """
    in_addresses = limit is room.address_room
    if config.max_batch_tokens is not None:
        own = memory_needs(files, precision, replace(config, max_batch_tokens=None))
        if _fits(own, room):
            told = gib(_counted(own, in_addresses))
            return f"without max_batch_tokens={config.max_batch_tokens} it needs about {told}"
    # Models of these kinds have the precision of their own files alone.
    has_others = files.spec.late_interaction is None and not files.spec.is_splade
    names = PRECISIONS if has_others else ()
    others = [ChosenPrecision(name=name) for name in names if name != precision.name]
    needs = {other.name: memory_needs(files, other, config) for other in others}
    found = [
        f"precision={name!r} needs about {gib(_counted(of, in_addresses))}"
        for name, of in needs.items()
        if _fits(of, room)
    ]
    found += _shorter(files, config, precision, room, in_addresses)
    if found:
        return ", ".join(found)
    for other in others:
        for shorter in _shorter(files, config, other, room, in_addresses):
            return f"precision={other.name!r} with {shorter}"
    needs[precision.name] = memory_needs(files, precision, config)
    counted = {name: _counted(of, in_addresses) for name, of in needs.items()}
    name = min(counted, key=counted.__getitem__)
    least = f"precision={name!r} needs about {gib(counted[name])}, the least"
    if name == precision.name:
        least = "no precision needs less"
    return f"{least}; {limit.remedy}, or use a smaller model"


def _shorter(
    files: ModelFiles,
    config: Config,
    precision: ChosenPrecision,
    room: Memory,
    in_addresses: bool,
) -> list[str]:
    """Return the longest limit of length that fits, a power of two; empty: none does."""
    limit = files.spec.max_seq_tokens
    lengths = (1 << exponent for exponent in range(limit.bit_length(), 0, -1))
    for length in lengths:
        if MAX_BATCH_TOKENS <= length < limit:  # a batch of short texts takes as much
            spec = replace(files.spec, max_seq_tokens=length)
            needs = memory_needs(replace(files, spec=spec), precision, config)
            if _fits(needs, room):
                return [f"max_seq_tokens={length} needs about {gib(_counted(needs, in_addresses))}"]
    return []


def _counted(needs: MemoryNeeds, in_addresses: bool) -> int:
    """Return the bytes that count against the limit which was exceeded."""
    return needs.shared + needs.files if in_addresses else needs.shared


def _fits(needs: MemoryNeeds, room: Memory) -> bool:
    return room.too_small(needs.shared, needs.files) is None
