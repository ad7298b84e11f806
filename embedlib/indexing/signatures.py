"""The options of `embedlib.index` by name and type, for editors and type checkers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypedDict

from embedlib.indexing.chunks.templates import Prefix


class LoadOptions(TypedDict, total=False):
    """The fields of `IndexOptions` with their docstrings; a test compares the two."""

    chunk: bool
    """Divide long texts. False: one vector per document, truncated to the model's length limit."""
    chunk_tokens: int | None
    """Maximum tokens of a chunk. None: what the model has room for, at most 512."""
    chunk_overlap: int
    """Maximum tokens at the end of a chunk that the next one repeats."""
    with_headings: bool
    """Embed each chunk behind the path of its Markdown headings, such as "Guide > Install"."""
    prefix: Prefix | None
    """What is embedded in front of each chunk and not stored: a template of metadata, such as
    "{title}: ", or a function of the `Document` and the `Chunk`."""
    late_chunking: bool
    """Embed a document as a whole, or in windows, and make each chunk's vector of its tokens there;
    for models that pool by the mean. Chunks have at most a quarter of the model's room by
    default."""
    batch_rows: int
    """Maximum rows in flight. The run after a kill embeds at most this many again."""
    delete_missing: bool
    """After the source was read to its end, delete stored rows that it does not contain."""
    max_delete: float
    """Share of the stored rows, 0 to 1. If more than this is missing, nothing is deleted."""
    recreate: bool
    """Drop the stored rows and start over."""
    replace: bool
    """Load rows of another model beside the stored ones, and let searches find them when all are
    there and were checked. With `recreate`, drop what an earlier run has loaded there."""
    dry_run: bool
    """Read and count, estimate the time, check the destination; write nothing."""
    limit: int | None
    """Read only this many documents."""
    shard: str | None
    """"I/N" reads part I of N, from 1; the parts may run on different machines."""
    on_error: Literal["skip", "stop"]
    """What to do with a bad row of the source: skip and count it, or end the load."""
    errors_file: str | Path | None
    """JSON Lines with the place, id and reason of every bad row."""
    full_text: str | None
    """Index the words of the rows as well, in this language, such as "english", for hybrid search;
    "simple" takes words as they are. Rows that are stored are indexed, not embedded again. None: an
    index that is there stays."""
