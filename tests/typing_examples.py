"""What type checkers say of calls: mypy and pyright read this file, nobody runs it.

An ignore that is not needed is an error, so each of these lines shows a mistake that is found.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

import embedlib
from embedlib import Classifier, Config, Document, Embedder, Reranker, Search, SourceOptions
from embedlib.indexing import Hit, IndexReport, SearchResults
from embedlib.testing import fake_embedder, fake_spec
from embedlib.types import ArrayOrTensor, LabelScores, ModelSpec, PairScore, Ranking


def options_of_constructors() -> None:
    Embedder("m", threads=2, precision="int8", prompts={"query": "Q: "}, device=["cpu", "cpu"])
    Embedder("m", treads=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Embedder("m", precision="nope")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Embedder("m", local_files_only="false")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Reranker("m", threads="2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Embedder("m", quantization_ranges=np.zeros((2, 384), np.float32))
    Embedder("m", quantization_ranges=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    fake_embedder(spec=fake_spec(8, prompts={"query": "Q: "}), threads=1)
    fake_embedder(treads=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    fake_spec(prompt="Q: ")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Classifier("m", on_truncate="cut")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def options_of_calls(embedder: Embedder, reranker: Reranker) -> None:
    embedder.encode(["a"], None, "Q: ", normalize_embeddings=True, precision=None)
    embedder.encode(["a"], normalise_embeddings=True)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    embedder.encode(["a"], None, "Q: ", 32, None, "tokens", "float32", "no")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    embedder.encode_query(["a"], normalize_embeddings="false")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    embedder.encode(["a"], processing_kwargs={"max_length": 8})  # type: ignore[dict-item]  # pyright: ignore[reportCallIssue, reportArgumentType]
    reranker.predict([("q", "a")], top_k=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    reranker.rank("q", ["a"], top_k="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def results_of_calls(embedder: Embedder, reranker: Reranker, kind: str, switch: bool) -> None:
    assert_type(embedder.encode("a"), NDArray[np.float32])
    assert_type(embedder.encode(["a"], None, "Q: ", truncate_dim=8), NDArray[np.float32])
    assert_type(embedder.encode(sentences=["a"], precision=None), NDArray[np.float32])
    assert_type(embedder.encode_query("a", convert_to_numpy=True), NDArray[np.float32])
    assert_type(embedder.encode_document(["a"], precision="int8"), NDArray[Any])
    assert_type(embedder.encode(["a"], precision=kind), NDArray[Any])
    assert_type(embedder.encode(["a"], convert_to_numpy=switch), Any)
    assert_type(embedder.encode(["a"], output_value=kind), Any)
    assert_type(embedder.encode(["a"], None, None, 32, None, "sparse"), Any)
    assert_type(reranker.predict([("q", "a")]), NDArray[np.float32])
    assert_type(reranker.predict([["q", "a"]], apply_softmax=True), NDArray[np.float32])
    score = reranker.predict(("q", "a"))
    assert_type(score, PairScore)
    assert_type(float(score), float)
    score.argmax()  # of a model with several labels it is an array
    assert_type(reranker.rank("q", ["a"])[0]["corpus_id"], int)
    assert_type(reranker.rank("q", ["a"])[0]["score"], float)
    reranker.rank("q", ["a"])[0]["id"]  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]


class Tensor:
    """Has the members by which a tensor of torch is known, which need not be installed."""

    requires_grad = False

    def __array__(self, dtype: None = None) -> NDArray[Any]:
        raise NotImplementedError

    def topk(self, k: int) -> Tensor:
        raise NotImplementedError


def similarities(embedder: Embedder, tensor: Tensor) -> None:
    vectors = embedder.encode(["a"])
    found = embedder.similarity(vectors, embedder.encode_query("q"))
    assert_type(found, ArrayOrTensor)
    assert_type(found.argmax(), np.intp)  # an editor knows the methods of arrays
    found.topk(3)  # which it has where the program has imported torch
    takes_tensor(found)
    embedder.similarity([[1.0, 2.0]], [0.5, 1])
    embedder.similarity({3: 0.5}, [{3: 0.5}])
    embedder.similarity([vectors], [vectors, vectors])
    assert_type(embedder.similarity(tensor, tensor), Tensor)
    assert_type(embedder.similarity([tensor], vectors).topk(3), Tensor)
    assert_type(embedder.similarity(vectors, tensor), Tensor)
    assert_type(embedder.similarity_pairwise(vectors, vectors), ArrayOrTensor)
    assert_type(embedder.similarity_pairwise(tensor, tensor), Tensor)
    embedder.similarity("a", "b")  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    embedder.similarity(["a"], ["b"])  # type: ignore[type-var, arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    embedder.similarity_pairwise(vectors)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    embedder.similarity(vectors, vectors, "dot")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


def takes_tensor(tensor: Tensor) -> None: ...


def futures(embedder: Embedder) -> None:
    assert_type(embedder.submit_batch(["a"]), Future[NDArray[np.float32]])
    sparse = embedder.submit_batch(["a"], output_value="sparse", max_active_dims=8)
    assert_type(sparse, Future[list[dict[int, float]]])
    chunks = embedder.submit_batch(["a b"], chunks=[[(0, 1), (2, 3)]])
    assert_type(chunks, Future[list[NDArray[np.float32]]])
    embedder.submit_batch(["a"], precision="int8")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


def attributes(embedder: Embedder) -> None:
    embedder.prompts = {}  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    assert_type(embedder.spec, ModelSpec)
    embedder.max_length  # type: ignore[attr-defined]  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]  # noqa: B018


def results_per_token(embedder: Embedder) -> None:
    assert_type(embedder.encode("a", output_value="token_embeddings"), NDArray[np.float32])
    assert_type(embedder.encode(["a"], output_value="multi_vector"), list[NDArray[np.float32]])
    assert_type(embedder.encode("a", output_value="sparse"), dict[int, float])
    assert_type(embedder.encode_query(["a"], output_value="sparse"), list[dict[int, float]])


def labels(classifier: Classifier, texts: list[str]) -> None:
    assert_type(classifier.predict("a", 2), LabelScores)
    assert_type(classifier.predict(texts, raw_scores=True), list[LabelScores])
    assert_type(classifier.zero_shot("a", ["x", "y"])[0]["score"], float)
    classifier.predict("a")[0]["lable"]  # type: ignore[typeddict-item]  # pyright: ignore[reportGeneralTypeIssues]
    classifier.predict("a", top="2")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


def loads(embedder: Embedder, documents: list[Document]) -> None:
    options = SourceOptions(input_format="csv", text_field=("title", "body"))
    report = embedlib.index(
        documents, "jsonl:x", embedder=embedder, source_options=options, delete_missing=True
    )
    assert_type(report, IndexReport)
    embedlib.index("docs", "jsonl:x", embedder=embedder, delet_missing=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    embedlib.index("docs", "jsonl:x", embedder=embedder, recreate="false")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    embedlib.index("docs", "jsonl:x", embedder=embedder, on_error="ignore")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    embedlib.index("docs", "jsonl:x", embedder=embedder, prefix=lambda document, chunk: document.id)
    embedlib.index("docs", "jsonl:x", embedder=embedder, prefix=lambda text: text)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    embedlib.index([{"id": 1, "text": "a"}], "jsonl:x", embedder=embedder)
    embedlib.index(["a.txt", "folder"], "jsonl:x", embedder=embedder)
    embedlib.index([1, 2], "jsonl:x", embedder=embedder)  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    embedlib.index("docs", "jsonl:x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    SourceOptions(input_format="xml")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Config(thread=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def searches(embedder: Embedder, where: int) -> None:
    assert_type(embedlib.search("q", "jsonl:x", embedder=embedder, where="year > 2020"), list[Hit])
    embedlib.search("q", "jsonl:x", embedder=embedder, where=where)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with Search("jsonl:x", reranker="m", hybrid="text") as search:
        assert_type(search.search("q", top_k=3), SearchResults)
        assert_type(search.search(["q", "r"]), list[SearchResults])
        search.search("q", topk=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


def a_wrapper(reranker: Reranker, query: str, documents: list[str]) -> Ranking:
    return reranker.rank(query, documents)


async def ranges(embedder: Embedder) -> None:
    assert_type(embedder.calibrate(["a"]), NDArray[np.float32])
    async with embedder as same:
        assert_type(same, Embedder)
    assert_type(await embedder.aencode_query("a"), NDArray[np.float32])
    assert_type(await embedder.aencode_query("a", precision="int8"), NDArray[Any])
    assert_type(await embedder.aencode("a", output_value="sparse"), dict[int, float])
    assert_type(
        await embedder.aencode(["a"], output_value="multi_vector"), list[NDArray[np.float32]]
    )
    await embedder.aencode("a", batch_size=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    async for vector in embedder.aencode_stream(["a"]):
        assert_type(vector, NDArray[Any])


async def loads_in_a_loop(embedder: Embedder, rows: AsyncIterator[Document]) -> None:
    assert_type(await embedlib.aindex(rows, "jsonl:x", embedder=embedder, limit=3), IndexReport)
    await embedlib.aindex(rows, "jsonl:x", embedder=embedder, limt=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    async with await asyncio.to_thread(Search, "jsonl:x") as search:
        assert_type(await search.asearch("q"), SearchResults)


async def scores(reranker: Reranker, classifier: Classifier) -> None:
    assert_type(await reranker.apredict([("q", "a")]), NDArray[np.float32])
    assert_type(await reranker.apredict(("q", "a")), PairScore)
    assert_type(await classifier.apredict("a"), LabelScores)
    assert_type(await classifier.azero_shot(["a"], ["x"]), list[LabelScores])
    await reranker.arank("q", ["a"], topk=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
