"""Heads that a connection carries again and again: understood once, and not parsed again.

The clients of an API send one head for all requests, in which only Content-Length differs. What a
head means depends on its bytes alone, where no other request is on its way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MAX_DIGITS = 9
"""Of a length: bodies are smaller than a gigabyte."""
MAX_HEAD_BYTES = 8192
"""Longer heads are not kept: a server has thousands of connections."""
_END = b"\r\n\r\n"
"""Of a head."""
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *([0-9]{1,%d})\r\n" % MAX_DIGITS, re.IGNORECASE)
_UNUSUAL: Final = frozenset((b"transfer-encoding", b"expect", b"upgrade"))
"""Headers that tell more about a body than its length, or that another protocol follows."""


class RepeatedHead:
    """The bytes of a head around its Content-Length."""

    __slots__ = ("_after", "_before")

    def __init__(self, before: bytes, after: bytes) -> None:
        """Keep what comes before the digits, and behind them to the end of the head."""
        self._before, self._after = before, after

    @classmethod
    def find(cls, data: bytes, names: Sequence[bytes], num_body_bytes: int) -> RepeatedHead | None:
        """Return the head of a whole request; None: there is something unusual about it.

        Args:
            data: that arrived between two requests.
            names: of the headers that the parser has found, in lower case.
            num_body_bytes: that the parser has found.
        """
        end = data.find(_END) + len(_END)
        found = _LENGTH.search(data, 0, end) if end <= MAX_HEAD_BYTES else None
        if found is None or names.count(b"content-length") != 1 or _UNUSUAL.intersection(names):
            return None
        start, stop = found.span(1)
        head = cls(data[:start], data[stop:end])
        return head if len(data) - end == num_body_bytes == int(found[1]) else None

    def body_of(self, data: bytes) -> bytes | None:
        """Return the body of a whole request with this head; None: it is anything else."""
        if not data.startswith(self._before):
            return None
        start = len(self._before)
        stop = data.find(self._after, start, start + MAX_DIGITS + len(self._after))
        digits, body = data[start:stop], data[stop + len(self._after) :]
        is_whole = stop > start and digits.isdigit() and int(digits) == len(body)
        return body if is_whole else None
