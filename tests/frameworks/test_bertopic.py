"""BERTopic with an Embedder in a backend of four lines, as docs/frameworks.md shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from embedlib import Embedder

bertopic = pytest.importorskip("bertopic")
backend = pytest.importorskip("bertopic.backend")
decomposition = pytest.importorskip("sklearn.decomposition")
cluster = pytest.importorskip("sklearn.cluster")


class EmbedlibBackend(backend.BaseEmbedder):  # type: ignore[misc, name-defined]
    def embed(self, documents: Any, verbose: bool = False) -> Any:
        return self.embedding_model.encode(list(documents), show_progress_bar=verbose)


def topics(model: Any, texts: list[str]) -> tuple[list[int], Any]:
    """Return the topic of each text, and the model; nothing in it is random."""
    topic_model = bertopic.BERTopic(
        embedding_model=model,
        umap_model=decomposition.PCA(n_components=4, svd_solver="full"),
        hdbscan_model=cluster.KMeans(n_clusters=4, random_state=0, n_init=1),
        min_topic_size=2,
    )
    return topic_model.fit_transform(texts)[0], topic_model


def test_topics_are_the_same(
    texts: list[str], embedder: Embedder, peer: Any, close: Callable[[object, object], None]
) -> None:
    ours, our_model = topics(EmbedlibBackend(embedder), texts)
    theirs, their_model = topics(peer, texts)
    assert list(ours) == list(theirs)
    close(our_model.topic_embeddings_, their_model.topic_embeddings_)
    assert np.array_equal(*(m.transform(texts[:3])[0] for m in (our_model, their_model)))
