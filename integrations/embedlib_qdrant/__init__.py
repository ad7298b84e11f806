"""The sinks for Qdrant: a server, the engine in this process, and the client's local mode.

`qdrant://host:6334/collection` and `qdrant+https://...` write to a server, `edge:PATH` to a folder
with Qdrant's own engine, `qdrant+local:PATH` to a folder of qdrant-client's local mode. All three
store points as described in `embedlib_qdrant.points`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embedlib.indexing import Sink, SinkUrl

__all__ = ["open_edge_sink", "open_local_sink", "open_server_sink"]


def open_server_sink(url: SinkUrl) -> Sink:
    """Make the sink of `qdrant://host:port/collection` or `qdrant+https://...`.

    Raises:
        SinkError: an option is wrong, an API key is in the URL, or qdrant-client is missing.
    """
    from embedlib_qdrant.address import open_sink

    return open_sink(url)


def open_local_sink(url: SinkUrl) -> Sink:
    """Make the sink of `qdrant+local:PATH`.

    Raises:
        SinkError: an option is wrong, or qdrant-client is missing.
    """
    from embedlib_qdrant.local import open_sink

    return open_sink(url)


def open_edge_sink(url: SinkUrl) -> Sink:
    """Make the sink of `edge:PATH`.

    Raises:
        SinkError: an option is wrong, or qdrant-edge-py is missing.
    """
    from embedlib_qdrant.edge import open_sink

    return open_sink(url)
