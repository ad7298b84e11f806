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
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from embedlib.errors import ConfigError, EngineRunError, SinkError, SourceError
from embedlib.indexing.dry_run import DryRun
from embedlib.indexing.embedders import SparseEmbedder, TextEmbedder, check_embedder
from embedlib.indexing.hybrid import check_full_text
from embedlib.indexing.load import Load
from embedlib.indexing.missing import Leftover, TooManyMissingError, delete_leftover
from embedlib.indexing.options import IndexOptions
from embedlib.indexing.preparing import (
    check_arguments,
    estimate_documents,
    ignore,
    make_target,
    prepare_chunker,
)
from embedlib.indexing.reader import BadRows, Reader
from embedlib.indexing.replacing import start_replacement
from embedlib.indexing.report import IndexProgress, IndexReport, Tally
from embedlib.indexing.resuming import Resuming
from embedlib.indexing.rows import BadRow, CutDocuments, Document, model_digest, row_id
from embedlib.indexing.seen import Seen
from embedlib.indexing.sinks.protocol import (
    OtherModelError,
    Sink,
    Target,
    Tell,
    check_takes_multi_vectors,
    check_target,
)
from embedlib.indexing.sinks.thread import SinkThread, running_thread
from embedlib.indexing.sinks.urls import check_is_sink, open_sink
from embedlib.indexing.sources.input_files import check_not_input
from embedlib.indexing.sources.opening import open_documents
from embedlib.indexing.sources.protocol import SourceOptions
from embedlib.indexing.sources.tables import ArrowTable
from embedlib.indexing.sparse_rows import check_beside, most_rows, sparse_model
from embedlib.indexing.stored_model import describe_other_model, fingerprints_of
from embedlib.indexing.workers import ClusterEmbedder, RowLoad, as_cluster, check_ray, open_on_ray

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of typing from Python 3.11 on

    from embedlib.indexing.signatures import LoadOptions


def index(
    source: str | os.PathLike[str] | Iterable[Any] | ArrowTable,
    sink: str | Sink,
    *,
    embedder: TextEmbedder | str,
    sparse: SparseEmbedder | None = None,
    source_options: SourceOptions | None = None,
    tell: Tell | None = None,
    on_progress: Callable[[IndexProgress], None] = ignore,
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
        on_progress: called after every step and twice a second while rows are embedded, on the
            caller's thread.
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
    check_ray(ray, ray_workers)
    tell = tell or logging.getLogger("embedlib").warning
    if ray is not None:
        workers = open_on_ray(embedder, ray, ray_workers, sink, settings, tell)
        with closing(workers):
            return index(
                *(source, sink),
                embedder=workers,
                source_options=source_options,
                tell=tell,
                on_progress=on_progress,
                **options,
            )
    check_embedder(embedder, TextEmbedder)
    assert not isinstance(embedder, str), "check_embedder refuses a str"
    documents = open_documents(source, source_options or SourceOptions(), tell)
    if settings.errors_file is not None:
        inputs = getattr(documents, "input_paths", ())  # unknown for an iterable of the caller
        check_not_input(settings.errors_file, inputs, "errors_file")
    chunker = prepare_chunker(embedder, settings, tell)
    target = make_target(embedder, settings)
    if sparse is not None:
        target = replace(target, sparse=sparse_model(sparse))
    with ExitStack() as stack:
        opened = open_sink(sink) if isinstance(sink, str) else sink
        check_takes_multi_vectors(opened, target)
        check_full_text(opened, target)
        replacement = None
        if settings.replace:
            stack.callback(opened.close)
            replacement = start_replacement(opened, embedder, target, settings, tell)
        if replacement is not None:
            opened, settings = replacement.new, replacement.load_options
            target = replacement.target
        cluster = as_cluster(embedder)
        if sparse is not None:
            check_beside(opened, target)
            if cluster is not None:
                raise ConfigError("sparse is not for workers of a cluster; leave one of them out")
        if cluster is not None:
            url = sink if isinstance(sink, str) and replacement is None else None
            opened = cluster.check_sink(opened, url)
        run = _Run(
            embedder=embedder,
            cluster=cluster,
            sparse=sparse,
            sink=opened,
            resuming=Resuming(documents, opened, settings, tell),
            thread=stack.enter_context(running_thread(opened)),
            target=target,
            settings=settings,
            tell=tell,
            seen=stack.enter_context(closing(Seen())),
            bad_rows=stack.enter_context(
                closing(BadRows(settings.errors_file, tell, stops=settings.on_error == "stop"))
            ),
            tally=Tally(embedder, on_progress, estimate_documents(documents, settings)),
        )
        reader: Reader | None = None
        if settings.recreate:
            # `begin` drops what is stored, so the source is read before that.
            reader = stack.enter_context(closing(run.read(documents, chunker)))
            run.check_dropping(reader)
        has_rows = run.begin()
        run.bad_rows.start()
        if reader is None:
            if has_rows:
                run.keep_ids(documents, opened if replacement is None else replacement.named_by)
            reader = stack.enter_context(closing(run.read(documents, chunker)))
        if settings.dry_run:
            return run.count(reader, has_rows=has_rows)
        run.load(reader)
        run.finish()
        if run.failure is not None:
            raise run.failure
        report = run.tally.report(run.bad_rows.num_rows)
        if replacement is not None:
            run.thread.submit(replacement.conclude, report, embedder).result()
        return report


@dataclass(kw_only=True)
class _Run:
    """The parts of one call of `index`, and its steps in their order."""

    embedder: TextEmbedder
    cluster: ClusterEmbedder | None
    """The same, if its workers load the rows."""
    sparse: SparseEmbedder | None
    sink: Sink
    resuming: Resuming
    thread: SinkThread
    target: Target
    """`begin` gives it the fingerprint of the stored rows if the new ones may stand beside them, so
    that rows that have not changed are not embedded again."""
    settings: IndexOptions
    tell: Tell
    seen: Seen
    bad_rows: BadRows
    tally: Tally
    failure: EngineRunError | None = None
    """What says which rows are not loaded, since workers of a cluster failed with them; then
    nothing is deleted."""

    def check_dropping(self, reader: Reader) -> None:
        """Say what `recreate` is about to drop.

        Raises:
            SourceError: there is nothing in the source to replace it.
        """
        name = self.sink.name
        try:
            state = self.thread.submit(self.sink.inspect).result()
        except SinkError:  # `begin` raises it again, unless dropping is what repairs it
            what = f"the rows of {name}"
        else:
            if state is None or state.num_rows == 0:
                return
            noun = "row" if state.num_rows == 1 else "rows"
            what = f"the {state.num_rows:,} {noun} of {name}"
        if not reader.has_rows():
            raise SourceError(
                f"the source has no documents, and recreate would drop {what}; nothing was "
                "dropped; check the source"
            )
        self.tell(f"recreate {'would drop' if self.settings.dry_run else 'drops'} {what}")

    def begin(self) -> bool:
        """Begin to write, or for a dry run only check the destination.

        Returns:
            whether the destination holds rows to compare with.

        Raises:
            SinkError: the destination cannot be used, or belongs to another model.
        """
        self._join_stored()
        try:
            if not self.settings.dry_run:
                self.thread.submit(self.sink.begin, self.target, self.tell).result()
                self.thread.submit(self.resuming.take_up, self.target).result()
                return True
            state = self.thread.submit(self.sink.inspect).result()
            check_target(state, self.target, self.sink.name)
            self.thread.submit(self.resuming.take_up, self.target).result()
            return state is not None and not self.settings.recreate
        except OtherModelError as error:  # a sink does not know the embedder's options
            why = describe_other_model(error.state, self.sink.name, self.embedder, "load")
            raise SinkError(
                f"{why}, choose another destination, or recreate=True (--recreate) to "
                "drop these rows and embed everything again, or replace=True (--replace) to keep "
                "them for searches until that is done"
            ) from None

    def _join_stored(self) -> None:
        _, *others = map(model_digest, fingerprints_of(self.embedder))
        if self.settings.recreate or not others:
            return
        try:
            state = self.thread.submit(self.sink.inspect).result()
        except SinkError:
            return  # what follows raises it again
        if state is not None and model_digest(state.fingerprint) in others:
            self.target = replace(self.target, fingerprint=state.fingerprint)

    def read(self, documents: Iterable[Document | BadRow], chunker: CutDocuments | None) -> Reader:
        """Start to read documents on their own thread."""
        return Reader(
            documents,
            chunker,
            self.target.rows_fingerprint,
            self.seen,
            self.bad_rows,
            limit=self.settings.limit,
            shard=self.settings.part,
        )

    def keep_ids(self, documents: Iterable[Document | BadRow], loaded: Sink) -> None:
        """Let the source name its documents as an earlier load of a destination did."""
        keep_ids = getattr(documents, "keep_ids", None)
        if keep_ids is not None:

            def count_stored(source_ids: Sequence[str]) -> int:
                return len(loaded.digests([row_id(id_, 0) for id_ in source_ids]))

            self.thread.submit(keep_ids, count_stored).result()

    def count(self, reader: Reader, *, has_rows: bool) -> IndexReport:
        """Report what a load would do."""
        dry_run = DryRun(self.embedder, self.sink, self.tally, has_rows=has_rows)
        for group in reader.groups(while_waiting=lambda: False):
            dry_run.add(group)
        return dry_run.report(self.bad_rows.num_rows)

    def load(self, reader: Reader) -> None:
        """Embed and write until the source has ended and every row is written."""
        load = self._start_load()
        try:
            # The reader drives the loader: while no group is ready, `groups` calls `load.work`,
            # so this thread embeds and writes instead of waiting for the source.
            for group in reader.groups(while_waiting=load.work):
                load.add(group)
            self.failure = load.end()
        finally:
            load.cancel()

    def _start_load(self) -> RowLoad:
        batch_rows = most_rows(self.sparse, self.settings)
        counts = (self.bad_rows, self.tally, batch_rows)
        if self.cluster is not None:
            return self.cluster.start_load(self.sink, self.thread, self.target, *counts)
        return Load(self.embedder, self.sink, self.thread, *counts, sparse=self.sparse)

    def finish(self) -> None:
        """Delete what the source lacks, then make the destination ready for search.

        Raises:
            TooManyMissingError: raised last, since the rows that were written must be searchable.
        """
        too_many: TooManyMissingError | None = None
        try:
            if self.failure is None:
                self.thread.submit(self._delete_leftover).result()
        except TooManyMissingError as error:
            too_many = error
        self.tally.finishing()
        self.thread.submit(self.sink.finish).result()
        if too_many is not None:
            raise too_many
        if self.failure is None:
            self.thread.submit(self.resuming.keep, self.bad_rows.num_rows).result()

    def _delete_leftover(self) -> None:
        settings, tally = self.settings, self.tally
        max_delete = settings.max_delete if settings.delete_missing else None
        if settings.delete_missing and self.bad_rows.has_unnamed:
            max_delete = None
            self.tell(
                "nothing is deleted except surplus chunks: some bad rows have no id, and stored "
                "rows may be theirs; correct the source and run again"
            )
        leftover = Leftover()
        if self._num_rows() != tally.num_stored:  # to count is quicker than to compare every row
            leftover = delete_leftover(self.sink, self.seen, settings.part, max_delete)
        tally.num_deleted = leftover.num_deleted
        is_partial = settings.limit is not None or self.resuming.is_partial
        tally.num_other = None if is_partial else leftover.num_other

    def _num_rows(self) -> int:
        state = self.sink.inspect()
        return 0 if state is None else state.num_rows
