"""`embedlib.index`: read, chunk, skip what is unchanged, embed and write, all at the same time.

It uses two threads besides the embedder's own. `embedlib-reader` reads and chunks ahead.
`embedlib-sink` makes every call to the destination, so that a sink need not be thread-safe. The
caller's thread moves rows between them and the embedder. Every queue is bounded, so the slowest of
the three sets the pace, and that should be the embedder.

The destination row is the checkpoint: its id is derived from document and chunk number, its digest
from text, metadata and model. A run asks for the stored digests, embeds the rows that differ and
writes each batch in one step. If a run is killed, the next one finds what was written and does the
rest: a text is embedded at least once, and each row is stored exactly once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from embedlib.indexing.bad_rows import BadRows
from embedlib.indexing.destination import open_destination
from embedlib.indexing.embedders import SparseEmbedder, TextEmbedder, check_embedder
from embedlib.indexing.options import IndexOptions
from embedlib.indexing.preparing import (
    check_arguments,
    check_files,
    estimate_documents,
    prepare_chunker,
)
from embedlib.indexing.report import IndexProgress, IndexReport, Tally
from embedlib.indexing.resuming import Resuming
from embedlib.indexing.run import Run
from embedlib.indexing.seen import Seen
from embedlib.indexing.sinks.opening import check_is_sink
from embedlib.indexing.sinks.protocol import Sink, Tell, tell_nobody
from embedlib.indexing.sinks.thread import running_thread
from embedlib.indexing.sources.items import SourceItem
from embedlib.indexing.sources.opening import open_documents
from embedlib.indexing.sources.protocol import SourceOptions
from embedlib.indexing.sources.tables import ArrowTable
from embedlib.indexing.workers import as_cluster, check_ray, open_on_ray

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of typing from Python 3.11 on

    from embedlib.indexing.signatures import LoadOptions


def index(
    source: str | os.PathLike[str] | Iterable[SourceItem] | ArrowTable,
    sink: str | Sink,
    *,
    embedder: TextEmbedder | str,
    sparse: SparseEmbedder | None = None,
    source_options: SourceOptions | None = None,
    tell: Tell | None = None,
    on_progress: Callable[[IndexProgress], None] = tell_nobody,
    ray: str | None = None,
    ray_workers: int | None = None,
    **options: Unpack[LoadOptions],
) -> IndexReport:
    """Load a destination with the vectors of a source; run it again to bring it up to date.

    One destination belongs to one source: `delete_missing` deletes rows of any other source.

    Args:
        source: a file, a folder or a list of them; any iterable of `Document`, of dicts, or of
            documents of LangChain or LlamaIndex; or a data frame or Arrow table.
        sink: a URL such as "edge:PATH" or "postgresql://host/db?table=docs", or a `Sink`, which
            `index` closes at the end.
        embedder: an `Embedder`, or an object with the members of
            `embedlib.indexing.TextEmbedder`. Texts get its prompt for documents. With `ray` also
            the name of a model.
        sparse: makes the sparse vectors to store beside the others: an `Embedder` of a SPLADE
            model, or of bge-m3, which may be the same object as `embedder`; None: none are stored.
        source_options: how files and rows are read: formats, and which fields are id and text.
        tell: called with lines for the user: guesses, skipped rows, retries, the index build; from
            any thread. Default: log them as warnings of the logger "embedlib".
        on_progress: called as reading begins, after every step and twice a second while rows are
            embedded, on the caller's thread.
        ray: address of a Ray cluster whose workers load the model, embed and, if the destination
            is a server, write: "auto", "local" or "HOST:PORT", see docs/scale.md; None: this
            process does all of it.
        ray_workers: how many of them; None: one for each machine, or for each GPU.
        **options: fields of `IndexOptions`.

    Returns:
        counts of what was done.

    Raises:
        ConfigError: an option is unknown or out of range, or an argument has another type or lacks
            a member.
        SourceError: the source cannot be read, or has a bad row with on_error="stop".
        SinkError: the destination cannot be used, belongs to another model or application, or has
            another writer.
        EngineRunError: no text of a batch could be embedded, or with `ray` some rows could not be
            loaded by three workers; all others are stored then.
    """
    settings = IndexOptions.from_options(options)
    check_is_sink(sink)
    check_arguments(source_options, tell, on_progress)
    check_ray(ray, ray_workers, sparse)
    tell = logging.getLogger("embedlib").warning if tell is None else tell
    with ExitStack() as stack:
        if ray is not None:
            workers = open_on_ray(embedder, ray, ray_workers, sink, settings, tell)
            embedder = stack.enter_context(closing(workers))
        check_embedder(embedder, TextEmbedder)
        assert not isinstance(embedder, str), "check_embedder refuses a str"
        documents = open_documents(source, source_options or SourceOptions(), tell)
        cut = prepare_chunker(embedder, settings, tell)
        to = open_destination(sink, embedder, sparse, settings, tell, stack)
        thread = stack.enter_context(running_thread(to.sink))
        check_files(documents, to.sink, to.settings.errors_file)
        settings = to.settings
        run = Run(
            embedder=embedder,
            cluster=as_cluster(embedder),
            sparse=sparse,
            sink=to.sink,
            resuming=Resuming(documents, to.sink, settings, tell),
            thread=thread,
            target=to.target,
            settings=settings,
            tell=tell,
            seen=stack.enter_context(closing(Seen())),
            bad_rows=stack.enter_context(
                closing(
                    BadRows(
                        settings.errors_file,
                        tell,
                        stops=settings.on_error == "stop",
                        is_partial=getattr(documents, "is_partial", False),
                    )
                )
            ),
            tally=Tally(embedder, on_progress, estimate_documents(documents, settings)),
        )
        reader = stack.enter_context(run.begin(documents, cut, to.named_by))
        if settings.dry_run:
            return run.count(reader)
        run.load(reader, None if to.replacement is None else to.replacement.sample)
        run.finish()
        if run.failure is not None:
            raise run.failure
        report = run.tally.report(run.bad_rows.num_rows)
        if to.replacement is not None:
            run.thread.submit(to.replacement.conclude, report, embedder).result()
        return report
