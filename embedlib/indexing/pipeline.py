"""`embedlib.index`: read, chunk, skip what is unchanged, embed, write; all of it at the same time.

Two threads besides the Embedder's own. `embedlib-reader` reads and chunks ahead. `embedlib-sink`
makes every call to the destination, so that a sink need not be thread-safe. The caller's thread
moves rows between them and the Embedder. What waits anywhere is bounded, so the slowest of the
three sets the pace, and that should be embedding.

The destination row is the checkpoint: its id follows from document and chunk number, its digest
from text, metadata and model. A run asks for the digests, embeds what differs and writes each batch
in one step. Killed at any instant, the next run finds what was written and does the rest. So texts
are embedded at least once, and the effect is that of once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from operator import length_hint
from typing import Any

from embedlib.embedder import Embedder
from embedlib.errors import ConfigError, SinkError
from embedlib.indexing.chunking import Chunker
from embedlib.indexing.dry_run import DryRun
from embedlib.indexing.load import Load
from embedlib.indexing.missing import TooManyMissingError, delete_missing
from embedlib.indexing.options import IndexOptions
from embedlib.indexing.reader import BadRows, Reader
from embedlib.indexing.report import IndexProgress, IndexReport, Tally
from embedlib.indexing.rows import BadRow, Document
from embedlib.indexing.searching import check_arguments, describe_other_model, stored_name
from embedlib.indexing.seen import Seen
from embedlib.indexing.sinks.protocol import (
    OtherModelError,
    Sink,
    Target,
    Tell,
    check_target,
    open_sink,
)
from embedlib.indexing.sinks.thread import SinkThread
from embedlib.indexing.sources.files import open_source
from embedlib.indexing.sources.input_files import check_not_input
from embedlib.indexing.sources.options import SourceOptions

MAX_CHUNK_TOKENS = 512
"""Chunks of models with a longer limit: a longer text says too much for one vector."""

_INTERRUPTED_SECONDS = 2.0
"""How long an interrupted load waits for the call to the destination that is under way."""


def _ignore(_: object) -> None:
    pass


def index(
    source: str | os.PathLike[str] | Iterable[str] | Iterable[Document | BadRow],
    sink: str | Sink,
    *,
    embedder: Embedder,
    source_options: SourceOptions | None = None,
    tell: Tell | None = None,
    on_progress: Callable[[IndexProgress], None] = _ignore,
    **options: Any,
) -> IndexReport:
    """Load a destination with the vectors of a source; run it again to bring it up to date.

    One destination belongs to one source: `delete_missing` removes what came from another.

    Args:
        source: a file, a folder or several; or any iterable of `Document`.
        sink: a URL such as "edge:PATH" or "postgresql://host/db?table=docs", or a `Sink`, which is
            closed at the end.
        embedder: makes the vectors, with its prompt for documents.
        source_options: how files are read.
        tell: gets lines for the user: guesses, rows left out, retries, the index build. May be
            called from any thread. Without it they are logged as warnings of the logger "embedlib".
        on_progress: called after every step, on the caller's thread.
        **options: fields of `IndexOptions`.

    Returns:
        what was done.

    Raises:
        ConfigError: an option is unknown or out of range, or an argument is of another type.
        SourceError: the source cannot be read, or has a bad row with on_error="stop".
        SinkError: the destination cannot be used, holds something else, or is being written.
        EngineRunError: no text of a batch could be embedded.
    """
    settings = IndexOptions.from_options(options)
    check_arguments(sink, embedder)
    tell = tell or logging.getLogger("embedlib").warning
    documents = _open(source, source_options or SourceOptions(), tell)
    if settings.errors_file is not None:
        inputs = getattr(documents, "input_paths", ())  # of a source of one's own: unknown
        check_not_input(settings.errors_file, inputs, "errors_file")
    chunker = _make_chunker(embedder, settings)
    target = _make_target(embedder, settings)
    with ExitStack() as stack:
        opened = open_sink(sink) if isinstance(sink, str) else sink
        thread = stack.enter_context(_driven(opened))
        seen = stack.enter_context(closing(Seen()))
        bad_rows = stack.enter_context(
            closing(BadRows(settings.errors_file, tell, stops=settings.on_error == "stop"))
        )
        tally = Tally(embedder, on_progress, _estimate_documents(documents, settings))
        try:
            if settings.dry_run:
                state = thread.submit(opened.inspect).result()
                check_target(state, target, opened.name)
                has_rows = state is not None and not settings.recreate
            else:
                thread.submit(opened.begin, target, tell).result()
        except OtherModelError as error:  # a sink knows nothing of the Embedder
            told = describe_other_model(error.state, opened.name, embedder, "load")
            raise SinkError(
                f"{told}, choose another destination, or --recreate to drop these rows and embed "
                "everything again"
            ) from None
        bad_rows.start()
        reader = stack.enter_context(
            closing(
                Reader(
                    documents,
                    chunker,
                    target.fingerprint,
                    seen,
                    bad_rows,
                    limit=settings.limit,
                    shard=settings.part,
                )
            )
        )
        if settings.dry_run:
            dry_run = DryRun(embedder, opened, tally, has_rows=has_rows)
            for group in reader.groups(lambda: False):
                dry_run.add(group)
            return dry_run.report(bad_rows.num_rows)
        load = Load(embedder, opened, thread, bad_rows, tally, settings.batch_rows)
        stack.callback(load.cancel)
        for group in reader.groups(load.work):
            load.add(group)
        while load.work():
            pass
        too_many: TooManyMissingError | None = None
        if settings.delete_missing and not bad_rows.has_unnamed:
            try:
                tally.num_deleted = thread.submit(
                    delete_missing, opened, seen, settings.part, settings.max_delete
                ).result()
            except TooManyMissingError as error:
                too_many = error  # what was written is to be found all the same
        elif settings.delete_missing:
            tell(
                "nothing is deleted: some bad rows have no id, and stored rows may be theirs; "
                "correct the source and run again"
            )
        thread.submit(opened.finish).result()
        if too_many is not None:
            raise too_many
        return tally.report(bad_rows.num_rows)


@contextmanager
def _driven(sink: Sink) -> Iterator[SinkThread]:
    """A thread that makes the calls to a sink, closing it as the last one."""
    thread = SinkThread()
    try:
        yield thread
    except BaseException as error:
        # After Ctrl-C: a database that builds an index may take minutes to answer.
        timeout_s = None if isinstance(error, Exception) else _INTERRUPTED_SECONDS
        thread.submit(sink.close)  # if that fails too, the first error is the one to tell
        thread.close(timeout_s)
        raise
    closed = thread.submit(sink.close)
    thread.close(None)
    closed.result()


def _open(
    source: str | os.PathLike[str] | Iterable[str] | Iterable[Document | BadRow],
    options: SourceOptions,
    tell: Tell,
) -> Iterable[Document | BadRow]:
    if isinstance(source, (str, os.PathLike)):
        return open_source([os.fspath(source)], options, tell)
    if isinstance(source, Sequence) and source and isinstance(source[0], (str, os.PathLike)):
        return open_source([os.fspath(item) for item in source], options, tell)
    if not isinstance(source, Iterable):
        raise ConfigError(
            f"source = {source!r:.60}; it must be a path, a list of paths, or an iterable of "
            "Document"
        )
    return source  # type: ignore[return-value]


def _estimate_documents(
    documents: Iterable[Document | BadRow], options: IndexOptions
) -> int | None:
    num_documents = length_hint(documents)
    if options.part is not None:
        num_documents //= options.part.num_shards
    if options.limit is not None and num_documents:
        num_documents = min(num_documents, options.limit)
    return num_documents or None


def _make_chunker(embedder: Embedder, options: IndexOptions) -> Chunker | None:
    if not options.chunk:
        return None
    room = embedder.count_room("document")
    num_tokens = options.chunk_tokens or min(room, MAX_CHUNK_TOKENS)
    if num_tokens > room:
        raise ConfigError(
            f"chunk_tokens = {num_tokens}; the model has room for {room} tokens of text"
        )
    return Chunker(embedder.tokenizer, num_tokens, options.chunk_overlap)


def _make_target(embedder: Embedder, options: IndexOptions) -> Target:
    return Target(
        dim=embedder.get_embedding_dimension(),
        similarity=embedder.similarity_fn_name,
        fingerprint=embedder.fingerprint,
        model=stored_name(embedder),
        recreate=options.recreate,
        shard=options.shard,
    )
