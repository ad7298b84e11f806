"""What a load has done: its progress while it runs, its report at the end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class IndexProgress:
    """How far a load is."""

    num_documents: int
    """Documents whose rows are all in the destination or left out."""
    total_documents: int | None
    """Documents in the source, an estimate; None: not known."""
    num_embedded: int
    """Rows embedded and written."""
    num_unchanged: int
    """Rows that were right already."""


@dataclass(frozen=True, kw_only=True)
class IndexReport:
    """What a load did; of a dry run, what it would have done."""

    num_documents: int
    """Documents read, bad ones not counted."""
    num_rows: int
    """Rows made of them."""
    num_embedded: int
    """Rows embedded and written: new ones, and those whose text or model changed."""
    num_unchanged: int
    """Rows that were right already; neither embedded nor written."""
    num_metadata: int
    """Rows whose metadata alone was written."""
    num_deleted: int
    """Rows removed because the source has them no more."""
    num_bad: int
    """Rows of the source that were left out."""
    num_truncated: int
    """Texts cut at the model's limit; only without chunking."""
    num_tokens: int
    """Tokens embedded."""
    seconds: float
    """From the first to the last moment, the search index included."""
    estimated_seconds: float | None = None
    """Of a dry run: how long embedding would take here, by a sample; None: nothing to embed."""
