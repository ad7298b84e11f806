"""What a type checker says of calls: mypy reads this file, nobody runs it.

An ignore that is not needed is an error, so each of these lines shows a mistake that is found.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

from embedlib import Classifier, Embedder, Reranker


def options_of_constructors() -> None:
    Embedder("m", threads=2, precision="int8", prompts={"query": "Q: "}, device=["cpu", "cpu"])
    Embedder("m", treads=2)  # type: ignore[call-arg]
    Embedder("m", precision="nope")  # type: ignore[arg-type]
    Embedder("m", local_files_only="false")  # type: ignore[arg-type]
    Reranker("m", threads="2")  # type: ignore[arg-type]
    Classifier("m", on_truncate="cut")  # type: ignore[arg-type]


def options_of_calls(embedder: Embedder, reranker: Reranker) -> None:
    embedder.encode(["a"], None, "Q: ", normalize_embeddings=True, precision=None)
    embedder.encode(["a"], normalise_embeddings=True)  # type: ignore[call-arg]
    embedder.encode_query(["a"], normalize_embeddings="false")  # type: ignore[arg-type]
    reranker.rank("q", ["a"], top_k="3")  # type: ignore[arg-type]


def attributes(embedder: Embedder) -> None:
    embedder.prompts = {}  # type: ignore[misc]
    embedder.max_length  # type: ignore[attr-defined] # noqa: B018


async def ranges(embedder: Embedder) -> None:
    assert_type(embedder.calibrate(["a"]), NDArray[np.float32])
    async with embedder as same:
        assert_type(same, Embedder)
