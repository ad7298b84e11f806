"""Options of a bulk load, and of the search in what it wrote."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from embedlib.checks import COUNT, PATH, SWITCH, Kind, choice, is_number, optional, whole_number
from embedlib.config import check_names
from embedlib.errors import ConfigError, shown
from embedlib.indexing.chunks.templates import Prefix, parse_template

SEARCH_ROWS = 10
"""Default number of rows that a search returns."""
CANDIDATES = 50
"""Default number of rows that a reranker reads: they take it some tenths of a second on a CPU."""

_SWITCHES = (
    *("chunk", "with_headings", "late_chunking"),
    *("delete_missing", "recreate", "replace", "dry_run"),
)
_KINDS = {
    **dict.fromkeys(_SWITCHES, SWITCH),
    "chunk_tokens": optional(COUNT),
    "chunk_overlap": whole_number(0),
    "batch_rows": COUNT,
    "limit": optional(COUNT),
    "max_delete": Kind(
        "a share, from 0 to 1", lambda value: is_number(value) and 0 <= value <= 1, float
    ),
    "on_error": choice("skip", "stop"),
    "errors_file": optional(PATH),
    "full_text": optional(
        Kind(
            "a language, such as 'english'",
            lambda value: isinstance(value, str) and value != "" and value.isprintable(),
        )
    ),
}


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Part `number` of `num_shards`, from 1; the id of a document decides its part."""

    number: int
    num_shards: int

    def has(self, source_id: str) -> bool:
        """Whether a document is in this part."""
        digest = blake2b(source_id.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % self.num_shards == self.number - 1


def parse_shard(text: object) -> Shard:
    """Read "2/8", the second of eight parts.

    Raises:
        ConfigError: the text has another form, or is no text.
    """
    parts = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text) if isinstance(text, str) else None
    if parts is not None:
        shard = Shard(number=int(parts[1]), num_shards=int(parts[2]))
        if 1 <= shard.number <= shard.num_shards:
            return shard
    raise ConfigError(f"shard = {shown(text)}; it must be I/N with I from 1 to N, such as 2/8")


@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """Options of `embedlib.index`.

    Raises:
        ConfigError: a value is out of range, or two exclude one another.
    """

    chunk: bool = True
    """Divide long texts. False: one vector per document, truncated to the model's length limit."""
    chunk_tokens: int | None = None
    """Maximum tokens of a chunk. None: what the model has room for, at most 512."""
    chunk_overlap: int = 0
    """Maximum tokens at the end of a chunk that the next one repeats."""
    with_headings: bool = False
    """Embed each chunk behind the path of its Markdown headings, such as "Guide > Install"."""
    prefix: Prefix | None = None
    """What is embedded in front of each chunk and not stored: a template of metadata, such as
    "{title}: ", or a function of the `Document` and the `Chunk`."""
    late_chunking: bool = False
    """Embed a document as a whole, or in windows, and make each chunk's vector of its tokens there;
    for models that pool by the mean. Chunks have at most a quarter of the model's room by
    default."""
    batch_rows: int = 2048
    """Maximum rows in flight. The run after a kill embeds at most this many again."""
    delete_missing: bool = False
    """After the source was read to its end, delete stored rows that it does not contain."""
    max_delete: float = 0.3
    """Share of the stored rows, 0 to 1. If more than this is missing, nothing is deleted."""
    recreate: bool = False
    """Drop the stored rows and start over."""
    replace: bool = False
    """Load rows of another model beside the stored ones, and let searches find them when all are
    there and were checked. With `recreate`, drop what an earlier run has loaded there."""
    dry_run: bool = False
    """Read and count, estimate the time, check the destination; write nothing."""
    limit: int | None = None
    """Read only this many documents."""
    shard: str | None = None
    """"I/N" reads part I of N, from 1; the parts may run on different machines."""
    on_error: Literal["skip", "stop"] = "skip"
    """What to do with a bad row of the source: skip and count it, or end the load."""
    errors_file: str | Path | None = None
    """JSON Lines with the place, id and reason of every bad row."""
    full_text: str | None = None
    """Index the words of the rows as well, in this language, such as "english", for hybrid search;
    "simple" takes words as they are. Rows that are stored are indexed, not embedded again. None: an
    index that is there stays."""

    def __post_init__(self) -> None:
        """Check every field; values of numpy become those of Python."""
        for name, kind in _KINDS.items():
            object.__setattr__(self, name, kind.take(name, getattr(self, name)))
        self._check_prefix()
        if self.shard is not None:
            parse_shard(self.shard)
        if self.delete_missing and self.limit is not None:
            raise ConfigError("delete_missing needs the whole source, limit reads a part of it")
        if self.recreate and self.shard is not None:
            raise ConfigError("recreate would drop the rows of other shards; use one or the other")
        if self.replace and (self.limit is not None or self.shard is not None):
            raise ConfigError(
                "replace needs the whole source in one load; leave limit and shard out"
            )

    def _check_prefix(self) -> None:
        if isinstance(self.prefix, str):
            parse_template(self.prefix)
        elif self.prefix is not None and not callable(self.prefix):
            raise ConfigError(
                f"prefix = {shown(self.prefix)}; it must be a template such as '{{title}}: ', or a "
                "function of a Document and a Chunk"
            )
        for name in ("chunk_tokens", "chunk_overlap", "with_headings", "late_chunking"):
            if getattr(self, name) and not self.chunk:
                raise ConfigError(f"{name} is for chunks; leave it out where chunk=False")
        if self.late_chunking and (self.with_headings or self.prefix is not None):
            raise ConfigError(
                "late_chunking embeds the document as it is, with its headings, and nothing in "
                "front of a chunk; leave out either that or with_headings and prefix"
            )

    @classmethod
    def from_options(cls, options: Mapping[str, object]) -> IndexOptions:
        """Build from keyword options, naming the nearest one when a name is unknown.

        Raises:
            ConfigError: an option is unknown or out of range.
        """
        from embedlib.indexing.sources.protocol import SourceOptions  # slow; --help needs this one

        named = [field.name for field in fields(SourceOptions) if field.name in options]
        if named:
            raise ConfigError(
                f"unknown option {named[0]!r}; it says how sources are read: pass source_options="
                f"embedlib.SourceOptions({named[0]}=...)"
            )
        if "chunk_size" in options:  # of LangChain's and LlamaIndex's splitters
            raise ConfigError("unknown option 'chunk_size'; pass chunk_tokens=")
        asked: dict[str, Any] = dict(options)
        check_names(cls, asked)
        return cls(**asked)

    @property
    def part(self) -> Shard | None:
        """The part of the source to read; None: all of it."""
        return None if self.shard is None else parse_shard(self.shard)
