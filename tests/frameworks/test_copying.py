"""Libraries that copy or hash what they are given, with a function that calls an Embedder."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embedlib import Embedder


def test_scikit_learn_copies_a_function_and_no_embedder(
    texts: list[str], embedder: Embedder, peer: Any, close: Callable[[object, object], None]
) -> None:
    model_selection = pytest.importorskip("sklearn.model_selection")
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    labels = [len(text) > 40 for text in texts]

    def score(encode: Callable[[list[str]], Any]) -> Any:
        pipeline = make_pipeline(FunctionTransformer(encode), LogisticRegression())
        return model_selection.cross_val_score(pipeline, texts, labels, cv=2, error_score="raise")

    close(score(lambda texts: embedder.encode(texts)), score(peer.encode))
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        score(embedder.encode)


def test_datasets_keep_a_result_that_has_a_name(
    texts: list[str], embedder: Embedder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    datasets = pytest.importorskip("datasets")
    calls: list[int] = []

    def add_vectors(batch: dict[str, list[str]]) -> dict[str, Any]:
        calls.append(len(batch["text"]))
        return {"embedding": embedder.encode(batch["text"])}

    rows = tmp_path / "rows"
    datasets.Dataset.from_dict({"text": texts}).save_to_disk(rows)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            dataset = datasets.load_from_disk(rows)
            found = dataset.map(add_vectors, batched=True, new_fingerprint="minilm-1")
            assert len(found[0]["embedding"]) == embedder.get_embedding_dimension()
    assert calls == [len(texts)]
    assert not caplog.messages
