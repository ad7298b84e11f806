"""Where one load writes: the sink, opened and checked, and what it is told about the rows."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace

from embedlib.indexing.embedders import SparseEmbedder, TextEmbedder
from embedlib.indexing.options import IndexOptions
from embedlib.indexing.preparing import make_target
from embedlib.indexing.replacing import Replacement, start_replacement
from embedlib.indexing.searches.hybrid import text_sink
from embedlib.indexing.sinks.checks import check_takes_multi_vectors
from embedlib.indexing.sinks.opening import open_sink
from embedlib.indexing.sinks.protocol import Sink, Target, Tell
from embedlib.indexing.sparse_rows import check_beside, sparse_model
from embedlib.indexing.workers import as_cluster, refuse_sparse


@dataclass(frozen=True, kw_only=True)
class Destination:
    """Where one load writes.

    Attributes:
        sink: takes the rows; with `replacement` those beside the rows that searches find.
        target: what is written.
        settings: of the load.
        replacement: the change of model that the load is a part of; None: it is none.
    """

    sink: Sink
    target: Target
    settings: IndexOptions
    replacement: Replacement | None

    @property
    def named_by(self) -> Sink:
        """What says how the documents were named: the rows that are there."""
        return self.sink if self.replacement is None else self.replacement.named_by


def open_destination(
    sink: str | Sink,
    embedder: TextEmbedder,
    sparse: SparseEmbedder | None,
    settings: IndexOptions,
    tell: Tell,
    stack: ExitStack,
) -> Destination:
    """Open a sink, and check that it takes what a load is about to write.

    Args:
        sink: its URL, or itself.
        embedder: of the load.
        sparse: makes the sparse vectors beside the others; None: there are none.
        settings: as the caller gave them.
        tell: takes a line for the user.
        stack: closes what this opens besides the sink of the load.

    Raises:
        ConfigError: the arguments do not go together.
        SinkError: the destination cannot be used.
    """
    target = make_target(embedder, settings)
    if sparse is not None:
        target = replace(target, sparse=sparse_model(sparse))
    opened = open_sink(sink) if isinstance(sink, str) else sink
    with ExitStack() as if_refused:
        if_refused.callback(opened.close)
        check_takes_multi_vectors(opened, target)
        if target.full_text is not None:
            text_sink(opened)
        replacement = None
        if settings.replace:
            stack.callback(opened.close)
            replacement = start_replacement(opened, embedder, target, settings, tell)
            if replacement is not None:
                opened, settings = replacement.new, replacement.load_options
                if_refused.callback(opened.close)
                target = replacement.target
            else:  # `recreate` drops what is loaded beside, never what searches find
                settings = replace(settings, recreate=False)
                target = replace(target, recreate=False)
        cluster = as_cluster(embedder)
        if sparse is not None:
            check_beside(opened, target)
        if cluster is not None:
            refuse_sparse(sparse)
            url = sink if isinstance(sink, str) and replacement is None else None
            opened = cluster.check_sink(opened, url)
        if_refused.pop_all()
    return Destination(sink=opened, target=target, settings=settings, replacement=replacement)
