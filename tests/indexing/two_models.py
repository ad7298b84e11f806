"""Models whose vectors are a function of text and name, so that no row passes for another's."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedlib import Document
from embedlib.testing import byte_tokenizer

DIM = 32


def vector_of(model: str, text: str, dim: int = DIM) -> NDArray[np.float32]:
    """Return float32[dim] of unit length; those of two models have nothing in common."""
    seed = list(f"{model}\0{text}".encode())
    vector = np.random.default_rng(seed).normal(size=dim)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


class Model:
    """A stand-in for an Embedder."""

    similarity_fn_name = "cosine"
    max_seq_length = 512

    def __init__(self, name: str, dim: int = DIM) -> None:
        self.model_name = name
        self.fingerprint = f"folder:{name}"
        self.tokenizer = byte_tokenizer()
        self.num_texts = 0
        self.dies_after: int | None = None
        """Texts after which a load ends with an error, as if it was killed."""
        self._dim = dim

    def get_embedding_dimension(self) -> int:
        return self._dim

    def count_room(self, _role: str, /) -> int:
        return 500

    def encode_query(self, text: str, /) -> NDArray[np.float32]:
        return vector_of(self.model_name, text, self._dim)

    def submit_batch(self, texts: Sequence[str], *, role: str) -> Future[Any]:
        assert role == "document"
        if self.dies_after is not None and self.num_texts >= self.dies_after:
            raise KeyboardInterrupt
        self.num_texts += len(texts)
        future: Future[Any] = Future()
        vectors = [vector_of(self.model_name, text, self._dim) for text in texts]
        future.set_result(np.array(vectors, np.float32).reshape(len(texts), self._dim))
        return future

    def stats(self) -> Any:
        return SimpleNamespace(num_tokens=self.num_texts, num_truncated=0, num_texts=self.num_texts)


def documents(num_documents: int, first: int = 0) -> list[Document]:
    numbers = range(first, first + num_documents)
    return [Document(id=f"d{n}", text=f"text {n}", metadata={"page": n % 7}) for n in numbers]


def is_of(model: str, question: str, hits: Sequence[Any], dim: int = DIM) -> bool:
    """Whether there are hits, each with the score of this model's vectors of question and text."""
    query = vector_of(model, question, dim)
    scores = [float(query @ vector_of(model, hit.text, dim)) for hit in hits]
    return bool(hits) and np.allclose([hit.score for hit in hits], scores, atol=2e-3)
