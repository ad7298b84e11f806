"""What `embedlib index` tells: how far it is, and at the end what it did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from embedlib.errors import count_of
from embedlib.progress.phases import Progress
from embedlib.progress.screens import Reading, duration

if TYPE_CHECKING:
    from embedlib.indexing.report import IndexProgress, IndexReport


class Watch:
    """What a load has told of itself last."""

    def __init__(self, progress: Progress) -> None:
        """Watch one load after another; `told` is for their `on_progress`."""
        self._progress = progress
        self._told: IndexProgress | None = None

    def told(self, told: IndexProgress) -> None:
        """Take how far the load is."""
        before, self._told = self._told, told
        was_finishing = before is not None and before.is_finishing
        if before is None or (was_finishing and not told.is_finishing):  # the next pass of --watch
            self._progress.watch("Indexing", "rows", self._read)
        if told.is_finishing and not was_finishing:
            self._progress.watch("Making the rows ready for search")

    def _read(self) -> Reading:
        told = self._told
        assert told is not None, "it is read after the first time; a bug in embedlib"
        num_rows = told.num_vectors + told.num_unchanged + told.num_metadata
        return Reading(
            done=num_rows, total=_total_rows(told, num_rows), note=", ".join(_notes(told))
        )

    def kept(self) -> str:
        """Return what an interrupted load leaves."""
        told = self._told
        num_rows = 0 if told is None else told.num_embedded + told.num_unchanged
        total = told.total_documents if told is not None else None
        of = f" of about {count_of(total, 'document')}" if total else ""
        verb = "is" if num_rows == 1 else "are"
        again = "run the same command again to go on"
        # The write that runs at the interrupt still ends, so more rows may be stored.
        return (
            f"at least {count_of(num_rows, 'row')}{of} {verb} stored; {again}"
            if num_rows
            else again
        )


def summary(report: IndexReport, name: str, *, is_dry: bool) -> Iterator[str]:
    """Yield the lines that tell what a load did."""
    seconds = max(report.seconds, 1e-9)
    verb = "Would index" if is_dry else "Indexed"
    documents, rows = count_of(report.num_documents, "document"), count_of(report.num_rows, "row")
    took = "" if is_dry else f" in {seconds:.1f} s"
    yield f"{verb} {documents} as {rows} into {name}{took}"
    rate = "" if is_dry else f", {report.num_tokens / seconds:,.0f} tokens/s"
    counts = {
        "embedded": (report.num_embedded, f"{report.num_tokens:,} tokens{rate}"),
        "unchanged": (report.num_unchanged, ""),
        "metadata": (report.num_metadata, "only their metadata changed"),
        "deleted": (report.num_deleted, "no longer in the source"),
        "other": (
            report.num_other,
            "stored rows of documents that were not read; --delete-missing deletes them",
        ),
        "skipped": (report.num_bad, "bad row" if report.num_bad == 1 else "bad rows"),
        "truncated": (report.num_truncated, "longer than the model's limit; see --chunk"),
    }
    for label, (count, note) in counts.items():
        if count or label in ("embedded", "unchanged"):
            yield f"  {label:<10}{count:>12,}  {note if count else ''}".rstrip()
    if report.estimated_seconds is not None:
        measured = count_of(report.num_sampled, "row")
        yield (
            f"  embedding would take about {duration(report.estimated_seconds)} here, by the time "
            f"of {measured}"
        )


def _total_rows(told: IndexProgress, num_rows: int) -> int | None:
    """Return how many rows there will be if documents go on to have as many; None: unknown."""
    num_documents, total = told.num_documents_embedded, told.total_documents
    if not total or not 0 < num_documents <= total:
        return None
    return num_rows * total // num_documents


def _notes(told: IndexProgress) -> Iterator[str]:
    """Yield what stands behind the rate; a narrow terminal shows the first of it."""
    if told.num_workers is not None:
        yield count_of(told.num_workers, "worker")
    if told.num_retries:
        yield f"{told.num_retries:,} tried again"
    if told.num_unchanged:
        yield f"{told.num_unchanged:,} unchanged"
    of = "" if told.total_documents is None else f" of {told.total_documents:,}"
    yield f"{told.num_documents_embedded:,}{of} docs"
