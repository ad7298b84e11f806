"""Destinations: the sink protocol, sink URLs, and the sinks that write files.

Old import path: sinks written for earlier versions import the names below from here. New code
imports them from `embedlib.indexing`.
"""

from __future__ import annotations

from embedlib.indexing.rows import Row
from embedlib.indexing.sinks.protocol import (
    Hit,
    OtherModelError,
    RowKey,
    Sink,
    SinkState,
    Target,
    Tell,
    check_target,
    check_vectors,
)
from embedlib.indexing.sinks.urls import (
    ENTRY_POINT_GROUP,
    SinkUrl,
    host_of,
    is_true,
    open_sink,
    parse_url,
    without_password,
)
from embedlib.vectors.arrays import Vectors

__all__ = [
    "ENTRY_POINT_GROUP",
    "Hit",
    "OtherModelError",
    "Row",
    "RowKey",
    "Sink",
    "SinkState",
    "SinkUrl",
    "Target",
    "Tell",
    "Vectors",
    "check_target",
    "check_vectors",
    "host_of",
    "is_true",
    "open_sink",
    "parse_url",
    "without_password",
]
