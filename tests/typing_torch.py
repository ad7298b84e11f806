"""What type checkers say of tensors: as typing_examples.py, in an environment that has torch.

.ci/types gives it to pyright alone, since mypy reads all of torch for half a minute.
"""

from __future__ import annotations

import torch
from typing_extensions import assert_type

from embedlib import Embedder, Reranker
from embedlib.types import ArrayOrTensor


def tensors(embedder: Embedder, reranker: Reranker) -> None:
    assert_type(embedder.encode(["a"], convert_to_tensor=True), torch.Tensor)
    assert_type(embedder.encode_query("a", convert_to_numpy=False), torch.Tensor)
    assert_type(embedder.encode_document(["a"], convert_to_numpy=False), list[torch.Tensor])
    assert_type(reranker.predict([("q", "a")], convert_to_tensor=True), torch.Tensor)
    assert_type(reranker.predict([("q", "a")], convert_to_numpy=False), list[torch.Tensor])
    embedder.encode(["a"], convert_to_tensor=True).nope()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def similarities(embedder: Embedder) -> None:
    queries = embedder.encode_query(["a"], convert_to_tensor=True)
    vectors = embedder.encode(["b", "c"])
    assert_type(embedder.similarity(queries, queries), torch.Tensor)
    assert_type(embedder.similarity([queries], [queries]), torch.Tensor)
    assert_type(embedder.similarity(queries, vectors), torch.Tensor)
    assert_type(embedder.similarity_pairwise(vectors, queries), torch.Tensor)
    found = embedder.similarity(vectors, vectors)  # a tensor too: torch is imported
    assert_type(found, ArrayOrTensor)
    assert_type(torch.topk(found, k=1).indices, torch.Tensor)
    found.topk(3)
    found.argmax(axis=1)
