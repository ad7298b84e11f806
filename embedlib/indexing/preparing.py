"""What a load settles before it reads: the limit of chunks, the target, the number of documents."""

from __future__ import annotations

from collections.abc import Iterable
from operator import length_hint

from embedlib.config import LateSimilarity, Similarity
from embedlib.errors import ConfigError, shown
from embedlib.indexing.chunking import Chunker
from embedlib.indexing.embedders import TextEmbedder
from embedlib.indexing.options import IndexOptions
from embedlib.indexing.rows import BadRow, Document
from embedlib.indexing.sinks.protocol import Target
from embedlib.indexing.sources.protocol import SourceOptions
from embedlib.indexing.stored_model import name_to_store, precision_to_store

MAX_CHUNK_TOKENS = 512
"""Default limit of a chunk for models that take more: one vector describes a longer text poorly."""


def ignore(_: object) -> None:
    """Ignore what a load tells: the default of `on_progress`."""


def check_arguments(source_options: object, tell: object, on_progress: object) -> None:
    """Check the arguments of `index` that are no options.

    Raises:
        ConfigError: one has another type.
    """
    if not isinstance(source_options, SourceOptions | None):
        raise ConfigError(
            f"source_options = {shown(source_options)}; it must be an "
            "embedlib.SourceOptions, such as SourceOptions(id_field='key')"
        )
    for name, value in (("tell", tell or ignore), ("on_progress", on_progress)):
        if not callable(value):
            raise ConfigError(f"{name} = {shown(value)}; it must be a function of one argument")


def estimate_documents(documents: Iterable[Document | BadRow], options: IndexOptions) -> int | None:
    """Return how many documents a load will read; None: unknown."""
    num_documents = length_hint(documents)
    if options.part is not None:
        num_documents //= options.part.num_shards
    if options.limit is not None and num_documents:
        num_documents = min(num_documents, options.limit)
    return num_documents or None


def make_chunker(embedder: TextEmbedder, options: IndexOptions) -> Chunker | None:
    """Return what divides documents; None: nothing does.

    Raises:
        ConfigError: a chunk would be longer than the model takes.
    """
    if not options.chunk:
        return None
    room = embedder.count_room("document")
    num_tokens = options.chunk_tokens or min(room, MAX_CHUNK_TOKENS)
    if num_tokens > room:
        raise ConfigError(
            f"chunk_tokens = {shown(num_tokens)}; the model has room for {room} tokens of text"
        )
    return Chunker(embedder.tokenizer, num_tokens, options.chunk_overlap)


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
