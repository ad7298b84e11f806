"""The steps of one load, in their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace

from embedlib.errors import EngineRunError, SinkError, SourceError, count_of
from embedlib.indexing.bad_rows import BadRows
from embedlib.indexing.dry_run import DryRun
from embedlib.indexing.embedders import SparseEmbedder, TextEmbedder
from embedlib.indexing.load import Load
from embedlib.indexing.missing import Leftover, TooManyMissingError, delete_leftover
from embedlib.indexing.options import IndexOptions
from embedlib.indexing.reader import Reader
from embedlib.indexing.replacement_checks import RowSample
from embedlib.indexing.report import IndexReport, Tally
from embedlib.indexing.resuming import Resuming
from embedlib.indexing.rows import BadRow, CutDocuments, Document, model_digest, row_id
from embedlib.indexing.seen import Seen
from embedlib.indexing.sinks.checks import WAYS, check_target
from embedlib.indexing.sinks.protocol import (
    OtherModelError,
    Sink,
    Target,
    Tell,
    count_stored,
    identify,
)
from embedlib.indexing.sinks.thread import SinkThread
from embedlib.indexing.sparse_rows import most_rows
from embedlib.indexing.stored_model import describe_other_model, fingerprints_of
from embedlib.indexing.workers import ClusterEmbedder, RowLoad


@dataclass(kw_only=True)
class Run:
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
    has_rows: bool = False
    """Whether the destination held rows to compare with when the load began."""
    lacks_rows: bool = False
    """Whether the destination seems to hold fewer rows than the load has found and written there:
    of several copies one may be late."""

    @contextmanager
    def begin(
        self, documents: Iterable[Document | BadRow], cut: CutDocuments, named_by: Sink
    ) -> Iterator[Reader]:
        """Begin to write, or for a dry run only check the destination; then read in the block.

        Args:
            documents: the source.
            cut: divides them.
            named_by: holds rows that say how documents were named before.

        Raises:
            SourceError: `recreate` would drop rows, and there is nothing to replace them.
            SinkError: the destination cannot be used, or belongs to another model.
        """
        with ExitStack() as stack:
            reader: Reader | None = None
            dropping = None
            if self.settings.recreate:
                # `_begin_writing` drops what is stored, so the source is read before that.
                if named_by is not self.sink:  # those of a change of model stay
                    self._keep_ids(documents, named_by)
                reader = stack.enter_context(closing(self._read(documents, cut)))
                dropping = self._check_dropping(reader)
            self.has_rows = self._begin_writing()
            if dropping is not None:  # not before: another program's rows are refused
                self.tell(dropping)
            self.bad_rows.start()
            if reader is None:
                if self.has_rows:
                    self._keep_ids(documents, named_by)
                reader = stack.enter_context(closing(self._read(documents, cut)))
            yield reader

    def _check_dropping(self, reader: Reader) -> str | None:
        """Return a line that says what `recreate` drops; None: there is nothing.

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
                return None
            what = f"the {count_of(state.num_rows, 'row')} of {name}"
        if not reader.has_rows():
            raise SourceError(
                f"the source has no documents, and recreate would drop {what}; nothing was "
                "dropped; check the source"
            )
        return f"recreate {'would drop' if self.settings.dry_run else 'drops'} {what}"

    def _begin_writing(self) -> bool:
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
            raise SinkError(f"{why}, {WAYS}") from None

    def _join_stored(self) -> None:
        _, *others = map(model_digest, fingerprints_of(self.embedder))
        if self.settings.recreate or not others:
            return
        try:
            state = self.thread.submit(identify, self.sink).result()
        except SinkError:
            return  # what follows raises it again
        if state is not None and model_digest(state.fingerprint) in others:
            self.target = replace(self.target, fingerprint=state.fingerprint)

    def _read(self, documents: Iterable[Document | BadRow], cut: CutDocuments) -> Reader:
        """Start to read documents on their own thread."""
        self.tally.look()  # until the first group is read, nothing else tells that this goes on
        return Reader(
            documents,
            cut,
            self.target.rows_fingerprint,
            self.seen,
            self.bad_rows,
            limit=self.settings.limit,
            shard=self.settings.part,
        )

    def _keep_ids(self, documents: Iterable[Document | BadRow], loaded: Sink) -> None:
        """Let the source name its documents as an earlier load of a destination did."""
        keep_ids = getattr(documents, "keep_ids", None)
        if keep_ids is not None:
            self.thread.submit(
                keep_ids, lambda ids: len(loaded.digests([row_id(id_, 0) for id_ in ids]))
            ).result()

    def count(self, reader: Reader) -> IndexReport:
        """Report what a load would do."""
        dry_run = DryRun(self.embedder, self.sink, self.thread, self.tally, has_rows=self.has_rows)
        for group in reader.groups(while_waiting=lambda: False):
            dry_run.add(group)
        return dry_run.report(self.bad_rows.num_rows)

    def load(self, reader: Reader, sample: RowSample | None = None) -> None:
        """Embed and write until the source has ended and every row is written.

        Args:
            reader: of the source.
            sample: gets every row that is read.
        """
        load = self._start_load()
        try:
            # The reader drives the loader: while no group is ready, `groups` calls `load.work`,
            # so this thread embeds and writes instead of waiting for the source.
            for group in reader.groups(while_waiting=load.work):
                if sample is not None:
                    sample.add(group.rows)
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
            SinkError: as late, if rows that were found or written are gone.
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
        if self.lacks_rows:
            self.thread.submit(self._check_complete).result()
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
        num_rows = count_stored(self.sink)
        # What workers have written may become visible a moment later.
        self.lacks_rows = self.cluster is None and num_rows < tally.num_stored
        if num_rows != tally.num_stored:  # to count is quicker than to compare every row
            leftover = delete_leftover(self.sink, self.seen, settings.part, max_delete)
        tally.num_deleted = leftover.num_deleted
        is_partial = settings.limit is not None or self.resuming.is_partial
        tally.num_other = None if is_partial else leftover.num_other

    def _check_complete(self) -> None:
        num_rows, num_stored = count_stored(self.sink), self.tally.num_stored
        if num_rows < num_stored:
            raise SinkError(
                f"{self.sink.name} holds {num_rows:,} rows, fewer than the {num_stored:,} that "
                "this load has found there or written: another program removes rows; run the load "
                "again"
            )
