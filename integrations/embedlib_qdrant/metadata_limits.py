"""What Qdrant cannot store of a row's metadata: checked here, for its engines name no row.

An operation that the engine takes and cannot read again in its log is worse than an error: no
folder of `edge:` with one can be opened.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from embedlib.indexing import BadRow, Row


@dataclass(frozen=True, kw_only=True)
class MetadataLimits:
    """What one way to Qdrant takes.

    Attributes:
        integers: the whole numbers.
        integers_named: what a message calls them.
        dict_levels: how many levels of nesting a dict is.
        list_levels: how many a list is.
        max_levels: how many there may be.
    """

    integers: range
    integers_named: str
    dict_levels: int = 1
    list_levels: int = 1
    max_levels: int

    def takes(self, row: Row, bad_rows: list[BadRow]) -> bool:
        """Return whether a row can be stored; one that cannot is added to the bad rows."""
        reason = self._find(row.metadata, (), 0)
        if reason is not None:
            bad_rows.append(row.bad_row(reason))
        return reason is None

    def _find(self, value: Any, path: tuple[Any, ...], levels: int) -> str | None:
        items: Iterable[tuple[Any, Any]]
        if isinstance(value, int):
            return None if value in self.integers else self._describe_number(value, path)
        if isinstance(value, dict):
            items = value.items()
            levels += self.dict_levels
        elif isinstance(value, (list, tuple)):
            items = enumerate(value)
            levels += self.list_levels
        else:
            return None
        if levels > self.max_levels:
            return self._describe_depth(path)
        for key, item in items:
            if reason := self._find(item, (*path, key), levels):
                return reason
        return None

    def _describe_number(self, number: int, path: tuple[Any, ...]) -> str:
        digits = str(number)
        shown = f"the number {digits}" if len(digits) <= 40 else f"a number of {len(digits)} digits"
        return (
            f"has {shown} in metadata {'.'.join(map(str, path))!r}, and Qdrant "
            f"stores {self.integers_named}; make it a string"
        )

    def _describe_depth(self, path: tuple[Any, ...]) -> str:
        # Metadata is a dict itself.
        left = self.max_levels - self.dict_levels
        return (
            f"has metadata {path[0]!r} nested too deeply, and Qdrant stores up to "
            f"{left // self.dict_levels} objects or {left // self.list_levels} lists in one "
            "another; make it flatter, or a string of JSON"
        )


SERVER_LIMITS = MetadataLimits(
    integers=range(-(1 << 63), 1 << 63),
    integers_named="whole numbers of 64 bits",
    dict_levels=3,
    list_levels=2,
    max_levels=90,
)
"""Sources: `integer_value` of Qdrant's json_with_int.proto is an int64. Its decoder, prost, refuses
messages in more than 100 others: a dict is a Struct, an entry and a Value, a list a ListValue and a
Value, and up to 7 messages are around the payload of a request that servers of a cluster pass on.
"""

_FLOAT_END = (1 << 1024) - (1 << 970)
"""The first whole number that rounds to no float of 64 bits."""
FOLDER_LIMITS = MetadataLimits(
    integers=range(1 - _FLOAT_END, _FLOAT_END),
    integers_named="numbers below 1.8e308",
    max_levels=100,
)
"""Of `edge:`, whose log is CBOR: its reader refuses more than 128 levels, those of the operation
among them. Measured: it cannot be read again from 122 levels of metadata on. And of
`qdrant+local:`, where Python's pickle needs several of its own calls for a level."""
