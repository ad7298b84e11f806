"""Sparse models of sentence-transformers and of embedlib, as written and as saved again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedlib import Embedder
from tests.tiny_models.sparse import write_router, write_sparse_model, write_token_weights

TEXTS = ["the city runs", "a house, the house", "été"]


@pytest.mark.parametrize("write", [write_sparse_model, write_router, write_token_weights])
def test_saved_again(write: Callable[[Path], Path], tmp_path: Path) -> None:
    encoder = pytest.importorskip("sentence_transformers").SparseEncoder
    peer = encoder(str(write(tmp_path / "first")), device="cpu")
    peer.save_pretrained(str(tmp_path / "again"), create_model_card=False)
    for name in ("first", "again"):
        with Embedder(tmp_path / name, threads=1) as embedder:
            for role in ("query", "document"):
                expected = getattr(peer, f"encode_{role}")(TEXTS).to_dense().numpy()
                found = getattr(embedder, f"encode_{role}")(TEXTS, output_value="sparse")
                np.testing.assert_allclose(_dense(found, expected), expected, rtol=1e-4, atol=1e-5)
                own = np.asarray(embedder.similarity(found, found))
                theirs = np.asarray(peer.similarity(expected, expected))
                np.testing.assert_allclose(own, theirs, rtol=1e-4)


def test_the_greatest_weights(tmp_path: Path) -> None:
    encoder = pytest.importorskip("sentence_transformers").SparseEncoder
    folder = write_sparse_model(tmp_path)
    expected = encoder(str(folder), device="cpu").encode(TEXTS, max_active_dims=9)
    with Embedder(folder, threads=1) as embedder:
        found = embedder.encode(TEXTS, output_value="sparse", max_active_dims=9)
    dense = expected.to_dense().numpy()
    np.testing.assert_allclose(_dense(found, dense), dense, rtol=1e-4)


def _dense(rows: list[dict[int, float]], like: Any) -> Any:
    dense = np.zeros_like(like)
    for row, weights in zip(dense, rows, strict=True):
        row[list(weights)] = list(weights.values())
    return dense
