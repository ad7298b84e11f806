"""What a type checker says of calls: mypy reads this file, nobody runs it.

An ignore that is not needed is an error, so each of these lines shows a mistake that is found.
"""

from __future__ import annotations

from typing import Any

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
    embedder.encode(["a"], normalise_embeddings=True)  # type: ignore[call-overload]
    embedder.encode(["a"], None, "Q: ", 32, None, "tokens", "float32", "no")  # type: ignore[call-overload]
    embedder.encode_query(["a"], normalize_embeddings="false")  # type: ignore[call-overload]
    reranker.predict([("q", "a")], top_k=3)  # type: ignore[call-overload]
    reranker.rank("q", ["a"], top_k="3")  # type: ignore[arg-type]


def results_of_calls(embedder: Embedder, reranker: Reranker, kind: str, switch: bool) -> None:
    assert_type(embedder.encode("a"), NDArray[np.float32])
    assert_type(embedder.encode(["a"], None, "Q: ", truncate_dim=8), NDArray[np.float32])
    assert_type(embedder.encode(sentences=["a"], precision=None), NDArray[np.float32])
    assert_type(embedder.encode_query("a", convert_to_numpy=True), NDArray[np.float32])
    assert_type(embedder.encode_document(["a"], precision="int8"), NDArray[Any])
    assert_type(embedder.encode(["a"], precision=kind), NDArray[Any])
    assert_type(embedder.encode(["a"], convert_to_tensor=True), Any)
    assert_type(embedder.encode(["a"], convert_to_numpy=switch), Any)
    assert_type(embedder.encode(["a"], output_value="token_embeddings"), Any)
    assert_type(embedder.encode(["a"], None, None, 32, None, "sparse"), Any)
    assert_type(reranker.predict([("q", "a")]), NDArray[np.float32])
    assert_type(reranker.predict([["q", "a"]], apply_softmax=True), NDArray[np.float32])
    assert_type(reranker.predict(("q", "a")), Any)  # a number, or an array of several labels
    assert_type(reranker.predict([("q", "a")], convert_to_tensor=True), Any)
    assert_type(reranker.rank("q", ["a"])[0]["corpus_id"], int)
    assert_type(reranker.rank("q", ["a"])[0]["score"], float)
    reranker.rank("q", ["a"])[0]["id"]  # type: ignore[misc]


def attributes(embedder: Embedder) -> None:
    embedder.prompts = {}  # type: ignore[misc]
    embedder.max_length  # type: ignore[attr-defined] # noqa: B018


async def ranges(embedder: Embedder) -> None:
    assert_type(embedder.calibrate(["a"]), NDArray[np.float32])
    async with embedder as same:
        assert_type(same, Embedder)
