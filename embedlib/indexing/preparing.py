"""What a load settles before it reads: the limit of chunks, the target, the number of documents."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from operator import length_hint
from pathlib import Path
from typing import Literal, Protocol

import tokenizers

from embedlib.checks import Kind, optional
from embedlib.config import LateSimilarity, Similarity
from embedlib.embedder import Embedder
from embedlib.errors import ConfigError, shown
from embedlib.indexing.chunks.chunking import Chunker, cut_nothing
from embedlib.indexing.chunks.late_windows import WINDOW_CHUNKS, WindowedChunks, check_late
from embedlib.indexing.chunks.prefixes import PrefixedChunks, prefix_room
from embedlib.indexing.embedders import TextEmbedder
from embedlib.indexing.options import IndexOptions
from embedlib.indexing.rows import BadRow, CutDocuments, Document
from embedlib.indexing.sinks.protocol import Sink, Target, Tell
from embedlib.indexing.sources.overwriting import check_not_input, is_same_file
from embedlib.indexing.sources.protocol import SourceOptions
from embedlib.indexing.stored_model import name_to_store, precision_to_store

MAX_CHUNK_TOKENS = 512
"""Default limit of a chunk for models that take more: one vector describes a longer text poorly."""


def check_arguments(source_options: object, tell: object, on_progress: object) -> None:
    """Check the arguments of `index` that are no options.

    Raises:
        ConfigError: one has another type.
    """
    what = "an embedlib.SourceOptions, such as SourceOptions(id_field='key')"
    options = Kind(what, lambda value: isinstance(value, SourceOptions))
    function = Kind("a function of one argument", callable)
    optional(options).take("source_options", source_options)
    optional(function).take("tell", tell)
    function.take("on_progress", on_progress)


def check_files(
    documents: Iterable[Document | BadRow], sink: Sink, errors_file: str | Path | None
) -> None:
    """Refuse a load that would write over a file that it reads, or write a file in two ways.

    Raises:
        SourceError: a file that is written is also an input.
        ConfigError: the errors file is also a file of the destination.
    """
    inputs = getattr(documents, "input_paths", ())  # unknown for an iterable of the caller
    outputs: Sequence[str] = getattr(sink, "output_paths", ())
    if errors_file is not None:
        check_not_input(errors_file, inputs, "errors_file")
    for output in outputs:
        check_not_input(output, inputs, "destination")
        if errors_file is not None and is_same_file(errors_file, output):
            raise ConfigError(
                f"errors_file {os.fspath(errors_file)!r} is also a file of {sink.name}, which a "
                "load replaces; name another file"
            )


def estimate_documents(documents: Iterable[Document | BadRow], options: IndexOptions) -> int | None:
    """Return how many documents a load will read; None: unknown."""
    num_documents = length_hint(documents)
    if options.part is not None:
        num_documents //= options.part.num_shards
    if options.limit is not None and num_documents:
        num_documents = min(num_documents, options.limit)
    return num_documents or None


class ChunkMeasure(Protocol):
    """What cutting needs of an embedder."""

    @property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """The model's tokenizer."""

    def count_room(self, role: Literal["document"], /) -> int:
        """Return how many tokens of text fit."""


def make_chunker(measure: ChunkMeasure, options: IndexOptions, tell: Tell) -> CutDocuments:
    """Return what divides documents, or leaves them whole.

    Args:
        measure: the embedder, or only its tokenizer and room.
        options: of the load.
        tell: takes a line for the user, from any thread.

    Raises:
        ConfigError: a chunk would be longer than the model takes.
    """
    has_prefix = options.with_headings or options.prefix is not None
    cut: CutDocuments = cut_nothing
    room: int | None = None
    if options.chunk:
        room = measure.count_room("document")
        cut = _make_cut(measure, options, room, prefix_room(room) if has_prefix else 0)
        if options.late_chunking:
            return WindowedChunks(cut, measure.tokenizer, room)
    if not has_prefix:
        return cut
    return PrefixedChunks(
        *(cut, measure.tokenizer, room, options.prefix, tell), with_headings=options.with_headings
    )


def prepare_chunker(embedder: TextEmbedder, options: IndexOptions, tell: Tell) -> CutDocuments:
    """Check that an embedder can do what a load is asked for, and return what divides documents.

    Raises:
        ConfigError: it cannot.
    """
    if isinstance(embedder, Embedder) and embedder.spec.is_sparse:
        raise ConfigError(
            f"{embedder.model_name!r} is a sparse model; give it as sparse (--sparse) beside a "
            "model that makes a vector of a text"
        )
    cut = make_chunker(embedder, options, tell)
    if options.late_chunking:
        check_late(embedder)
    return cut


def _make_cut(
    measure: ChunkMeasure, options: IndexOptions, room: int, num_prefix_tokens: int
) -> Chunker:
    limit = room - num_prefix_tokens
    most = limit // WINDOW_CHUNKS if options.late_chunking else limit
    num_tokens = options.chunk_tokens or max(1, min(most, MAX_CHUNK_TOKENS))
    if num_tokens > limit:
        beside = f" beside a prefix of {num_prefix_tokens}" if num_prefix_tokens else ""
        raise ConfigError(
            f"chunk_tokens = {shown(num_tokens)}; the model has room for {limit} tokens of "
            f"text{beside}"
        )
    return Chunker(measure.tokenizer, num_tokens, options.chunk_overlap)


def make_target(embedder: TextEmbedder, options: IndexOptions) -> Target:
    """Return what a load is about to write."""
    name = embedder.similarity_fn_name
    similarity: Similarity
    multi_vector: LateSimilarity | None = None
    if name == "maxsim" or name == "meanmaxsim":
        # The vectors of two tokens are compared by their product.
        similarity, multi_vector = "dot", name
    else:
        similarity = name
    return Target(
        dim=embedder.get_embedding_dimension(),
        similarity=similarity,
        multi_vector=multi_vector,
        fingerprint=embedder.fingerprint,
        model=name_to_store(embedder),
        recreate=options.recreate,
        shard=options.shard,
        precision=precision_to_store(embedder),
        full_text=options.full_text,
    )
