"""A late-interaction model as the reranker of a search."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import embedlib
from embedlib import Config, Embedder, Search
from embedlib.errors import ConfigError
from embedlib.indexing import Document
from embedlib.indexing.searches import late_ranking
from embedlib.testing.models.write import write_tiny_model

TEXTS = ["the quick brown fox", "a small city, a large river.", "data base", "hello world"]
QUESTION = "river through the city"


def test_candidates_have_the_order_of_maxsim(tmp_path: Path) -> None:
    dense = write_tiny_model(tmp_path / "dense", "bert-cls-dense")
    late = write_tiny_model(tmp_path / "late", "late-roberta")
    documents = [Document(id=str(number), text=text) for number, text in enumerate(TEXTS)]
    url = f"jsonl:{tmp_path}/rows.jsonl"
    with Embedder(dense, threads=1) as embedder, Embedder(late, threads=1) as ranking:
        embedlib.index(documents, url, embedder=embedder)
        vectors = ranking.encode_document(TEXTS)
        scores = np.asarray(ranking.similarity(ranking.encode_query(QUESTION), vectors))[0]
        order = np.argsort(-scores)[:3].tolist()
        for reranker in (ranking, str(late)):
            with Search(url, embedder, reranker) as search:
                for hits in (
                    search.search(QUESTION, top_k=3),
                    asyncio.run(search.asearch(QUESTION, top_k=3)),
                ):
                    assert [int(hit.source_id) for hit in hits] == order
                    found = [hit.score for hit in hits]
                    np.testing.assert_allclose(found, scores[order], rtol=1e-4)
        ranking.encode_query(QUESTION)  # a model that was given stays open
        with pytest.raises(ConfigError, match="or a late-interaction Embedder"):
            Search(url, embedder, embedder)


def test_it_takes_neither_engine_nor_device_of_other_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not every one has vectors of tokens."""
    loaded = Mock()
    monkeypatch.setattr(late_ranking, "Embedder", loaded)
    late = str(write_tiny_model(tmp_path / "late", "late-roberta"))
    late_ranking.load_ranking(late, Config(engine="cuda", device="cuda", threads=3))
    loaded.assert_called_once_with(late, config=Config(threads=3))
