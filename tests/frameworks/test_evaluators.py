"""The evaluators of sentence-transformers: the same numbers with an Embedder or a Reranker.

LabelAccuracyEvaluator is none of them: it calls the modules of a model in training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from embedlib import Embedder, Reranker

evaluation = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
cross_encoder = pytest.importorskip("sentence_transformers.cross_encoder.evaluation")
util = pytest.importorskip("sentence_transformers.util")

Make = Callable[[list[str]], Any]

NO_FILE = {"write_csv": False}


def thirds(texts: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Return three lists of the same length."""
    size = len(texts) // 3
    return texts[:size], texts[size : 2 * size], texts[2 * size : 3 * size]


def labels(texts: list[str]) -> list[int]:
    return [len(text) % 2 for text in texts]


def samples(texts: list[str]) -> list[dict[str, Any]]:
    return [
        {"query": texts[0], "positive": texts[1:3], "negative": texts[3:9]},
        {"query": texts[9], "positive": texts[10:11], "negative": texts[11:20]},
    ]


def binary_classification(texts: list[str]) -> Any:
    first, second, _ = thirds(texts)
    names = ["cosine", "dot", "euclidean", "manhattan"]
    return evaluation.BinaryClassificationEvaluator(
        first, second, labels(first), similarity_fn_names=names, **NO_FILE
    )


def embedding_similarity(texts: list[str]) -> Any:
    first, second, _ = thirds(texts)
    scores = [float(len(text)) for text in first]
    return evaluation.EmbeddingSimilarityEvaluator(first, second, scores, **NO_FILE)


def embedding_similarity_binary(texts: list[str]) -> Any:
    first, second, _ = thirds(texts)
    scores = [float(len(text)) for text in first]
    return evaluation.EmbeddingSimilarityEvaluator(
        first, second, scores, precision="binary", **NO_FILE
    )


def information_retrieval(texts: list[str]) -> Any:
    queries, first, second = thirds(texts)
    corpus = {f"d{row}": text for row, text in enumerate(first + second)}
    return evaluation.InformationRetrievalEvaluator(
        {f"q{row}": text for row, text in enumerate(queries)},
        corpus,
        {f"q{row}": {f"d{row}", f"d{row + 1}"} for row in range(len(queries))},
        corpus_chunk_size=7,
        **NO_FILE,
    )


def mse(texts: list[str]) -> Any:
    return evaluation.MSEEvaluator(texts, texts, teacher_model=Teacher(), **NO_FILE)


def mse_of_a_table(texts: list[str]) -> Any:
    rows = [{"en": text, "de": text.upper()} for text in texts]
    return evaluation.MSEEvaluatorFromDataFrame(rows, Teacher(), [("en", "de")], **NO_FILE)


class Teacher:
    """Vectors of another model: all the same."""

    def encode(self, texts: list[str], **options: Any) -> Any:
        import torch

        vectors = torch.ones(len(texts), 384)
        return vectors if options.get("convert_to_tensor") else vectors.numpy()


def paraphrase_mining(texts: list[str]) -> Any:
    by_id = {str(row): text for row, text in enumerate(texts)}
    return evaluation.ParaphraseMiningEvaluator(by_id, [("0", "1"), ("2", "5")], **NO_FILE)


def reranking(texts: list[str]) -> Any:
    return evaluation.RerankingEvaluator(samples(texts), **NO_FILE)


def reranking_one_by_one(texts: list[str]) -> Any:
    return evaluation.RerankingEvaluator(samples(texts), use_batched_encoding=False, **NO_FILE)


def translation(texts: list[str]) -> Any:
    first, second, _ = thirds(texts)
    return evaluation.TranslationEvaluator(first, second, **NO_FILE)


def triplet(texts: list[str]) -> Any:
    return evaluation.TripletEvaluator(*thirds(texts), **NO_FILE)


def one_after_the_other(texts: list[str]) -> Any:
    return evaluation.SequentialEvaluator([triplet(texts), embedding_similarity(texts)])


@pytest.mark.parametrize(
    "make",
    [
        binary_classification,
        embedding_similarity,
        embedding_similarity_binary,
        information_retrieval,
        mse,
        mse_of_a_table,
        one_after_the_other,
        paraphrase_mining,
        reranking,
        reranking_one_by_one,
        translation,
        triplet,
    ],
)
def test_an_embedder_is_evaluated(
    make: Make, texts: list[str], embedder: Embedder, peer: Any
) -> None:
    check(make(texts)(embedder), make(texts)(peer))


def pair_classification(texts: list[str]) -> Any:
    first, second, _ = thirds(texts)
    pairs = [list(pair) for pair in zip(first, second, strict=True)]
    return cross_encoder.CrossEncoderClassificationEvaluator(pairs, labels(first), **NO_FILE)


def pair_correlation(texts: list[str]) -> Any:
    first, second, _ = thirds(texts)
    pairs = [list(pair) for pair in zip(first, second, strict=True)]
    scores = [float(len(text)) for text in first]
    return cross_encoder.CrossEncoderCorrelationEvaluator(pairs, scores, **NO_FILE)


def pair_reranking(texts: list[str]) -> Any:
    return cross_encoder.CrossEncoderRerankingEvaluator(samples(texts), **NO_FILE)


def pair_reranking_of_documents(texts: list[str]) -> Any:
    ranked = [
        {"query": s["query"], "positive": s["positive"], "documents": s["negative"]}
        for s in samples(texts)
    ]
    return cross_encoder.CrossEncoderRerankingEvaluator(ranked, **NO_FILE)


@pytest.mark.parametrize(
    "make", [pair_classification, pair_correlation, pair_reranking, pair_reranking_of_documents]
)
def test_a_reranker_is_evaluated(
    make: Make, texts: list[str], reranker: Reranker, peer_reranker: Any
) -> None:
    check(make(texts)(reranker), make(texts)(peer_reranker))


@pytest.mark.parametrize("kind", ["dense", "reranker"])
def test_nanobeir_is_evaluated(
    kind: str, texts: list[str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its data come from the hub, so those of one of its tasks are given here."""
    datasets = pytest.importorskip("datasets")
    queries, first, second = thirds(texts[:15])
    corpus = first + second
    columns = {
        "corpus": {"_id": [f"d{row}" for row in range(len(corpus))], "text": corpus},
        "queries": {"_id": [f"q{row}" for row in range(len(queries))], "text": queries},
        "qrels": {
            "query-id": [f"q{row}" for row in range(len(queries))],
            "corpus-id": [f"d{row}" for row in range(len(queries))],
        },
        "bm25": {
            "query-id": [f"q{row}" for row in range(len(queries))],
            "corpus-ids": [[f"d{row}" for row in range(len(corpus))]] * len(queries),
        },
    }

    def load_dataset(path: str, name: str, **_: Any) -> Any:
        return datasets.Dataset.from_dict(columns[name])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    kinds: Mapping[str, tuple[Any, str, str]] = {
        "dense": (evaluation.NanoBEIREvaluator, "embedder", "peer"),
        "reranker": (cross_encoder.CrossEncoderNanoBEIREvaluator, "reranker", "peer_reranker"),
    }
    evaluator, ours, theirs = kinds[kind]
    results = [
        evaluator(["msmarco"], show_progress_bar=False, **NO_FILE)(request.getfixturevalue(name))
        for name in (ours, theirs)
    ]
    check(*results)


def test_paraphrases_and_searches_are_the_same(
    texts: list[str], embedder: Embedder, peer: Any
) -> None:
    ours, theirs = (util.paraphrase_mining(model, texts) for model in (embedder, peer))
    assert [pair[0] for pair in ours] == pytest.approx([pair[0] for pair in theirs], abs=1e-5)
    hits = [
        util.semantic_search(model.encode_query(texts[:3]), model.encode_document(texts), top_k=4)
        for model in (embedder, peer)
    ]
    assert [hit["corpus_id"] for row in hits[0] for hit in row] == [
        hit["corpus_id"] for row in hits[1] for hit in row
    ]


def check(ours: Mapping[str, float], theirs: Mapping[str, float]) -> None:
    assert ours.keys() == theirs.keys()
    assert dict(ours) == pytest.approx(dict(theirs), rel=1e-6, abs=1e-5)
