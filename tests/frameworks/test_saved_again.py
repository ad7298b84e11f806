"""Folders of the newest families, as sentence-transformers saves them again.

The others are in tests/goldens; these two have keys and files that only a new release writes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embedlib import Embedder
from embedlib.testing.models.write import write_tiny_model

peer_library = pytest.importorskip("sentence_transformers")
TEXTS = ["a fox", "The quick brown fox jumps over the lazy dog.", "naïve 你好", "word " * 60]


@pytest.mark.parametrize("variant", ["t5", "t5-gated", "embedding_gemma2_text"])
def test_a_folder_saved_again_gives_the_same_vectors(variant: str, tmp_path: Path) -> None:
    made = write_tiny_model(tmp_path / "made", variant)
    peer = peer_library.SentenceTransformer(str(made), device="cpu")
    expected = peer.encode(TEXTS)
    again = tmp_path / "again"
    peer.save_pretrained(str(again), create_model_card=False)
    with Embedder(again, threads=1, on_truncate="ignore", precision="float32") as embedder:
        vectors = embedder.encode(TEXTS)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
