"""Folders of every family, as sentence-transformers saves them again.

As written, their vectors and scores are those in tests/goldens; here those of the copy are compared
with what sentence-transformers computes. It loads no class of a folder's own, so rows that such a
class chooses are left out, but for the one that a key makes readable.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedlib import Embedder, Reranker
from embedlib.models.reading.config_file import family_of
from embedlib.models.reading.json_files import JsonObject
from embedlib.testing.models.table import SCORING_VARIANTS, VARIANTS
from embedlib.testing.models.write import write_tiny_model

peer_library = pytest.importorskip("sentence_transformers")
TEXTS = ["a fox", "The quick brown fox jumps over the lazy dog.", "naïve 你好", "word " * 60]
PAIRS = [["a fox", "the lazy dog"], ["who runs", "The river runs through the city."]]
OPTIONS = {"attn_implementation": "eager", "dtype": "float32"}
SCORING = (
    *("bert-cross-encoder", "modernbert-modules", "qwen3-logit-score", "deberta-v2-classifier"),
    *("electra-reranker", "gte-reranker", "eurobert-classifier", "llama-reward"),
)
"""One for each layout of sentence-transformers, and the heads of the newest families."""


def first_of_each_family() -> dict[str, str]:
    """Return the first variant of each row that sentence-transformers reads, by the row's key."""
    found: dict[str, str] = {}
    for name, row in VARIANTS.items():
        is_readable = "auto_map" not in (row.reference_config or row.config)
        if is_readable and not row.has_own_reference:
            found.setdefault(family_of(JsonObject("config.json", row.config)).key, name)
    return found


def assert_same(ours: Any, theirs: Any) -> None:
    expected = np.asarray(theirs)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("family", FAMILIES := first_of_each_family())
def test_an_embedder_saved_again_gives_the_same_vectors(family: str, tmp_path: Path) -> None:
    row = VARIANTS[FAMILIES[family]]
    made = write_tiny_model(tmp_path / "made", FAMILIES[family])
    if row.reference_config is not None:
        path = made / row.transformer_path / "config.json"
        vocab_size = json.loads(path.read_text())["vocab_size"]
        path.write_text(json.dumps(row.reference_config | {"vocab_size": vocab_size}))
    peer = peer_library.SentenceTransformer(str(made), device="cpu", model_kwargs=OPTIONS)
    expected = peer.encode(TEXTS)
    again = tmp_path / "again"
    peer.save_pretrained(str(again), create_model_card=False)
    with Embedder(again, threads=1, on_truncate="ignore", precision="float32") as embedder:
        assert_same(embedder.encode(TEXTS), expected)


@pytest.mark.parametrize("variant", SCORING)
def test_a_reranker_saved_again_gives_the_same_scores(variant: str, tmp_path: Path) -> None:
    assert SCORING_VARIANTS[variant].template is None, "its prompt is known here alone"
    made = write_tiny_model(tmp_path / "made", variant)
    peer = peer_library.CrossEncoder(str(made), device="cpu", model_kwargs=OPTIONS)
    expected = peer.predict(PAIRS)
    again = tmp_path / "again"
    peer.save_pretrained(str(again), create_model_card=False)
    with Reranker(again, threads=1, precision="float32") as reranker:
        assert_same(reranker.predict(PAIRS), expected)
