"""What `index` and `search` need of an embedder; `embedlib.Embedder` is one of many possible ones.

An object with these members can stand in for an Embedder: a client of a remote server, a pool of
Ray actors, a deterministic fake. It needs no base class.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Literal, Protocol

import tokenizers

from embedlib.config import AnySimilarity
from embedlib.errors import ConfigError, shown
from embedlib.vectors.arrays import Vectors
from embedlib.vectors.sparse import SparseVector


class EmbeddingCounts(Protocol):
    """Counters of an embedder since it was made; they never decrease."""

    @property
    def num_tokens(self) -> int:
        """Tokens embedded."""

    @property
    def num_truncated(self) -> int:
        """Texts truncated to the model's length limit."""


class ModelIdentity(Protocol):
    """Which model makes the vectors. The members keep their values while a load or search runs."""

    @property
    def model_name(self) -> str:
        """The name the model was loaded by; stored with the rows and shown in messages."""

    @property
    def fingerprint(self) -> str:
        """A digest of everything that decides a vector: weights, prompts, length limit, precision.

        Stored with the rows. A load or search whose fingerprint differs is refused; the part
        before the last colon is not compared.
        """

    def get_embedding_dimension(self) -> int:
        """Return D of the vectors."""


class QueryEmbedder(ModelIdentity, Protocol):
    """What `embedlib.search` needs: a model that embeds one query."""

    def encode_query(self, text: str, /) -> Vectors:
        """Return float32[D] of a query, with the prompt for queries; blocks until it is there."""


class TextEmbedder(ModelIdentity, Protocol):
    """What `embedlib.index` needs: a model that embeds documents in the background.

    `index` uses the members from two threads at a time: the caller's, and one that reads ahead and
    uses the tokenizer.
    """

    @property
    def similarity_fn_name(self) -> AnySimilarity:
        """How the vectors are compared; decides how a destination is created."""

    @property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """The model's tokenizer; `index` measures chunks with it and does not change it."""

    @property
    def max_seq_length(self) -> int:
        """The most tokens of a sequence, special tokens and prompt included; for a dry run."""

    def count_room(self, role: Literal["document"], /) -> int:
        """Return how many tokens of text fit: the length limit less prompt and special tokens."""

    def submit_batch(self, texts: Sequence[str], *, role: Literal["document"]) -> Future[Vectors]:
        """Start to embed up to a few thousand documents, with the prompt for documents.

        `index` keeps several calls going and waits for them in the order they were made. It may
        block while too much work is queued. `index` may cancel the future of work that has not
        started.

        Returns:
            future of float32[N, D] in the order of the texts, finite. It fails with InputError or
            EngineRunError if a text cannot be embedded: `index` then halves the batch until it
            knows which. Any other exception ends the load.
        """

    def stats(self) -> EmbeddingCounts:
        """Return the counters; `index` reports the difference between its end and its start."""


class SparseEmbedder(ModelIdentity, Protocol):
    """What sparse vectors beside the others need: an `Embedder` of a model that has them."""

    def encode_query(self, text: str, /, *, output_value: Literal["sparse"]) -> SparseVector:
        """Return the weights of a query, token id to weight."""

    def submit_batch(
        self, texts: Sequence[str], *, role: Literal["document"], output_value: Literal["sparse"]
    ) -> Future[Any]:
        """Do what `TextEmbedder.submit_batch` does; the future is that of a list of weights."""


def check_embedder(embedder: object, protocol: type[Any], name: str = "embedder") -> None:
    """Refuse an argument that lacks a member of a protocol of this module.

    Args:
        embedder: the argument.
        protocol: what it must be.
        name: of the argument.

    Raises:
        ConfigError: names the first missing member.
    """
    what = "it must be an Embedder, which is made with Embedder(MODEL)"
    if isinstance(embedder, (type, str)):
        raise ConfigError(f"{name} = {shown(embedder)}; {what}")
    found = set(dir(embedder))  # hasattr would compute properties; a fingerprint reads the weights
    for member in _members(protocol):
        if member not in found and not hasattr(embedder, member):
            raise ConfigError(
                f"{name} = {shown(embedder)} has no {member}; {what}, or an object with all "
                f"members of embedlib.indexing.{protocol.__name__}"
            )


def _members(protocol: type[Any]) -> list[str]:
    """Return the names of a protocol's members, inherited ones first."""
    return [
        name
        for base in reversed(protocol.__mro__)
        if base.__module__ == __name__
        for name in vars(base)
        if not name.startswith("_")
    ]
