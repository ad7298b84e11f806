"""Which sink the scheme of a URL opens: one of files, or one that a package offers."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib.metadata import entry_points

from embedlib.errors import ConfigError, SinkError, shown
from embedlib.indexing.sinks.protocol import Sink
from embedlib.indexing.sinks.urls import SinkUrl, parse_url

ENTRY_POINT_GROUP = "embedlib.sinks"

_FILES = ("jsonl", "npy", "parquet")
"""Schemes of files, which are no entry points."""


def open_sink(url: str) -> Sink:
    """Make the sink for a URL; this connects to nothing and creates nothing.

    Raises:
        SinkError: the scheme is unknown, an option is wrong, or a package is missing; the message
            then has the command that installs it.
    """
    parsed = parse_url(url)
    return _find_opener(parsed.scheme)(parsed)


def _find_opener(scheme: str) -> Callable[[SinkUrl], Sink]:
    """Return the function that makes the sinks of a scheme."""
    if scheme in _FILES:
        # Late: it needs SQLite, which other destinations do not.
        from embedlib.indexing.sinks.file_sink import open_file_sink

        return open_file_sink
    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if scheme not in found:
        known = sorted(f"{name}:" for name in {*_FILES, *found})
        near = get_close_matches(f"{scheme}:", known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {' '.join(known)}"
        raise SinkError(f"no destination begins with '{scheme}:'; {hint}")
    try:
        opener: Callable[[SinkUrl], Sink] = found[scheme].load()
    except ImportError as error:
        raise SinkError(f"destinations of {scheme}: cannot be opened: {error}") from error
    return opener


def check_is_sink(sink: object) -> None:
    """Refuse an argument that is neither a URL nor a sink.

    Raises:
        ConfigError: says what it must be.
    """
    if not isinstance(sink, str) and not hasattr(sink, "begin"):
        raise ConfigError(
            f"sink = {shown(sink)}; it must be a URL, such as 'edge:PATH' or 'jsonl:FILE', or a "
            "Sink"
        )
