"""A SetFit model whose body is an Embedder: the head is fitted and predicts as with the peer's.

Training the body needs the modules of torch, so a trained body is saved and opened as a folder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from embedlib import Embedder

setfit = pytest.importorskip("setfit")
linear_model = pytest.importorskip("sklearn.linear_model")

LABELS = ("short", "long")


@pytest.mark.parametrize("normalize", [False, True])
def test_predictions_are_the_same(
    texts: list[str],
    embedder: Embedder,
    peer: Any,
    close: Callable[[object, object], None],
    normalize: bool,
) -> None:
    wanted = [LABELS[len(text) > 40] for text in texts]
    models = []
    for body in (embedder, peer):
        head = linear_model.LogisticRegression()
        model = setfit.SetFitModel(body, head, normalize_embeddings=normalize)
        model.fit(texts, wanted, num_epochs=1)
        models.append(model)
    ours, theirs = models
    assert list(ours.predict(texts)) == list(theirs.predict(texts))
    close(ours.predict_proba(texts), theirs.predict_proba(texts))
    assert ours(texts[0]) == theirs(texts[0])
