"""The line of a load while it runs."""

from __future__ import annotations

from embedlib.cli.index_lines import Watch
from embedlib.indexing import IndexProgress
from embedlib.progress import Look, Progress


def test_a_cluster_tells_rows_rate_workers_retries_and_seconds_left() -> None:
    with Progress(None) as progress:
        watch = Watch(progress)
        watch.told(
            IndexProgress(
                num_documents=90,
                num_documents_embedded=100,
                total_documents=400,
                num_embedded=150,
                num_vectors=1500,
                num_unchanged=7,
                num_workers=2,
                num_retries=3,
            )
        )
        reading = watch._read()
    look = Look(activity="Indexing", unit="docs", reading=reading, seconds=10.0, rate=20.0)
    bar = look.as_bar(160)
    for part in ("100/400", "00:10<00:15", "20.00 docs/s", "1,500 rows embedded, 7 unchanged"):
        assert part in bar
    assert bar.endswith("2 workers, 3 tried again]")
