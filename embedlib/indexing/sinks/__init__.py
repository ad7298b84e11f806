"""Destinations: the sink protocol, sink URLs, and the sinks that write files.

Old import path: sinks written for earlier versions import the names below from here. New code
imports them from `embedlib.indexing`.
"""

from __future__ import annotations

from embedlib.indexing import rows
from embedlib.indexing.sinks import checks, protocol, urls
from embedlib.vectors import arrays

ENTRY_POINT_GROUP = urls.ENTRY_POINT_GROUP
Hit = protocol.Hit
OtherModelError = protocol.OtherModelError
Row = rows.Row
RowKey = protocol.RowKey
Sink = protocol.Sink
SinkState = protocol.SinkState
SinkUrl = urls.SinkUrl
Target = protocol.Target
Tell = protocol.Tell
Vectors = arrays.Vectors
check_target = checks.check_target
check_vectors = checks.check_vectors
host_of = urls.host_of
is_true = urls.is_true
open_sink = urls.open_sink
parse_url = urls.parse_url
without_password = urls.without_password

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
