"""Options of the benchmarks."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from embedlib.bench.peers import PEERS, RERANK_PEERS
from embedlib.config import Config
from embedlib.errors import ConfigError

ReportLine = Callable[[str], None]
"""Called with one line of progress."""


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """What the benchmarks of models have in common."""

    texts_path: Path | None = None
    """A file with one text or candidate per line; None: documentation strings of Python's library,
    for reranking pieces of them."""
    num_texts: int = 1000
    """Texts of one bulk pass, or candidates, at most: so many that a pass takes seconds on a few
    cores."""
    rounds: int = 5
    """How often each peer or server takes its turn: a median and a spread need a few."""
    config: Config = field(default_factory=Config)
    """How the model is found, and `threads`, for all; the rest is for embedlib."""

    def __post_init__(self) -> None:
        """Check every field that has a range."""
        check_counts(self, "num_texts", "rounds")


@dataclass(frozen=True, kw_only=True)
class BenchOptions(TextOptions):
    """Options of `run_bench`.

    Raises:
        ConfigError: a value is out of range; the message names the option.
    """

    model: str
    """A folder, a hub name, `package:NAME` or `shape:NAME`."""
    vs: tuple[str, ...] = ()
    """Peers to run beside embedlib."""
    pythons: Mapping[str, str] = field(default_factory=dict)
    """Peers with an interpreter of their own, whose packages do not go with the others'."""
    text_tokens: int | None = None
    """Length of the texts in the mean; None: as they are."""
    query_seconds: float = 10.0
    """Time spent on single queries, for each contestant alone and again during a bulk job."""

    def __post_init__(self) -> None:
        """Check every field that has a range."""
        super().__post_init__()
        check_query_seconds(self.query_seconds)
        if self.text_tokens is not None:
            check_counts(self, "text_tokens")
            if self.texts_path is not None:
                raise ConfigError("text_tokens is for the texts of embedlib; leave out texts_path")
        check_peers(self.vs, tuple(PEERS))
        check_peers(tuple(self.pythons), tuple(PEERS), "pythons")
        for name, python in self.pythons.items():
            if name not in self.vs:
                raise ConfigError(f"pythons = {name!r}, which vs does not name; add it to vs")
            if shutil.which(python) is None:
                raise ConfigError(
                    f"pythons[{name!r}] = {python!r}: there is no such program; give the python "
                    "of an environment, as in env/bin/python"
                )


@dataclass(frozen=True, kw_only=True)
class RerankOptions(TextOptions):
    """Options of `run_rerank`.

    Raises:
        ConfigError: a value is out of range; the message names the option.
    """

    model: str | None = None
    """A folder, a hub name, `package:NAME` or `shape:NAME`; None: `shape:minilm-reranker`."""
    vs: tuple[str, ...] = ()
    """Peers to run beside embedlib: `ST` for its CrossEncoder, `INT8`."""

    def __post_init__(self) -> None:
        """Check every field that has a range."""
        super().__post_init__()
        check_peers(self.vs, RERANK_PEERS)


@dataclass(frozen=True, kw_only=True)
class ServeBenchOptions(TextOptions):
    """Options of `run_serve`.

    Raises:
        ConfigError: a value is out of range; the message names the option.
    """

    model: str
    """A folder, a hub name, `package:NAME` or `shape:NAME`."""
    urls: Mapping[str, str] = field(default_factory=dict)
    """The embeddings routes of other servers that run already, by name."""
    query_seconds: float = 10.0
    """Time spent on single queries, in process and through each server, alone and beside bulk; and
    on requests to a server whose engine answers at once."""

    def __post_init__(self) -> None:
        """Check every field that has a range."""
        super().__post_init__()
        check_query_seconds(self.query_seconds)
        for name, url in self.urls.items():
            if not url.startswith("http://") or not urlsplit(url).hostname:
                raise ConfigError(
                    f"urls[{name!r}] = {url!r}; it must be http://HOST:PORT/PATH of an embeddings "
                    "route"
                )


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Options of `run_write_bench`.

    Raises:
        ConfigError: a value is out of range; the message names the option.
    """

    url: str
    """The destination."""
    num_rows: int = 100_000
    """Rows of one round."""
    dim: int = 384
    """Dimensions of their vectors."""
    batch_rows: int = 2048
    """Rows of one write."""
    rounds: int = 3
    """Turns of each."""
    vs_langchain: bool = False
    """Also run langchain-postgres."""
    vs_qdrant_client: bool = False
    """Also run qdrant-client's `upload_collection`."""
    model: str | None = None
    """Run `index` with this model beside `encode`; None: neither."""
    num_texts: int = 3000
    """Texts of that, at most."""

    def __post_init__(self) -> None:
        """Check every field that has a range."""
        check_counts(self, "num_rows", "dim", "batch_rows", "rounds", "num_texts")


def check_counts(options: object, *names: str) -> None:
    """Refuse counts below 1.

    Raises:
        ConfigError: one is; the message names the option.
    """
    for name in names:
        if getattr(options, name) < 1:
            raise ConfigError(f"{name} = {getattr(options, name)}; it must be at least 1")


def check_query_seconds(seconds: float) -> None:
    """Refuse a time that is not above 0, or has no end.

    Raises:
        ConfigError: it is so.
    """
    if not 0 < seconds < math.inf:
        raise ConfigError(f"query_seconds = {seconds}; it must be more than 0, and finite")


def check_peers(vs: tuple[str, ...], known: tuple[str, ...], option: str = "vs") -> None:
    """Refuse peers that are unknown, or named twice.

    Raises:
        ConfigError: one is.
    """
    for name in vs:
        if name not in known:
            raise ConfigError(f"{option} = {name!r}; it must be one of {', '.join(known)}")
    if len(set(vs)) < len(vs):
        raise ConfigError(f"{option} = {','.join(vs)!r}; name each peer once")
