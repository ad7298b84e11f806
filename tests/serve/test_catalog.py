"""Which model answers a request, where models make vectors, weights of tokens, or both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from embedlib import Embedder
from embedlib.serve.models.catalog import ALL_TASKS
from embedlib.serve.models.loading import Loader
from embedlib.testing import write_tiny_model
from embedlib.threads.closing import WorkerThread
from tests.serve.conftest import LABELS, Client, MakeClient, fake_classifier, fake_reranker
from tests.tiny_models.sparse import write_router, write_sparse_model, write_token_weights
from tests.tiny_models.static import write_static_model
from tests.waiting import WAIT_SECONDS

DUMMY = "text-embedding-3-small"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the folder of a model of each kind that an Embedder loads and a server takes."""
    root = tmp_path_factory.mktemp("models")
    both = write_tiny_model(root / "both", "xlm-roberta")
    head = {"weight": np.ones((1, 32), np.float32), "bias": np.zeros(1, np.float32)}
    save_file(head, both / "sparse_linear.safetensors")
    found = {
        "both": both,
        "dense": write_tiny_model(root / "dense", "bert"),
        "static": write_static_model(root / "static"),
        "splade": write_sparse_model(root / "splade"),
        "table": write_token_weights(root / "table"),
        "router": write_router(root / "router"),
    }
    return {name: str(folder) for name, folder in found.items()}


@pytest.fixture
def serve(make_client: MakeClient, folders: dict[str, str]) -> Callable[..., Client]:
    def make(*names: str) -> Client:
        others: dict[str, Any] = {"rank": fake_reranker, "label": fake_classifier}
        return make_client(
            {name: others[name]() if name in others else folders[name] for name in names}
        )

    return make


@pytest.mark.parametrize("names", [("dense", "splade"), ("splade", "dense")])
def test_a_request_without_a_model_goes_to_one_that_can_answer(
    serve: Callable[..., Client], folders: dict[str, str], names: tuple[str, str]
) -> None:
    client = serve(*names)
    with Embedder(folders["dense"]) as dense, Embedder(folders["splade"]) as splade:
        row = dense.encode("a").tolist()
        weights = splade.encode("a", output_value="sparse")
    for fields in ({}, {"model": DUMMY}):
        answer = client.post("/v1/embeddings", {"input": "a", **fields})
        assert answer["model"] == "dense"
        assert answer["data"][0]["embedding"] == pytest.approx(row, abs=1e-6)
        (found,) = client.post("/embed_sparse", {"inputs": "a", **fields})
        assert {each["index"]: each["value"] for each in found} == pytest.approx(weights, abs=1e-6)
        assert client.post("/embed", {"inputs": "a", **fields})
        assert client.post("/embed_all", {"inputs": "a", **fields})
        assert client.post("/rerank", {"query": "a", "texts": ["b"], **fields})
        assert client.post("/score", {"text_1": "a", "text_2": "b", **fields})
        sentences = {"source_sentence": "a", "sentences": ["b"]}
        assert client.post("/similarity", {"inputs": sentences, **fields})
        assert client.post("/", {"inputs": "a", **fields})
    tasks = {each["id"]: each["task"] for each in client.send("GET", "/v1/models").json()["data"]}
    assert tasks == {"dense": "embed", "splade": "embed_sparse"}


def test_a_model_with_both_answers_both(serve: Callable[..., Client]) -> None:
    client = serve("dense", "both")
    assert client.post("/v1/embeddings", {"input": "a"})["model"] == "dense"
    assert client.post("/embed_sparse", {"inputs": "a"})
    assert client.post("/embed_sparse", {"inputs": "a", "model": DUMMY})
    assert client.post("/embed", {"inputs": "a", "model": "both"})
    assert client.application.catalog.find(None, "embed_sparse").name == "both"
    status, error = client.refuse("/embed_sparse", {"inputs": "a", "model": "dense"})
    assert (status, error["error_type"]) == (424, "Backend")
    assert "'dense' cannot embed_sparse" in error["error"]
    assert "there is both" in error["error"]


def test_a_sparse_model_alone(serve: Callable[..., Client]) -> None:
    client = serve("splade")
    expected = client.post("/embed_sparse", {"inputs": "a"})
    for path in ("/", "/invocations"):
        assert client.post(path, {"inputs": "a"}) == expected
    assert client.post("/tokenize", {"inputs": "a"})
    told = "embed, they can embed_sparse (POST /embed_sparse); start the server with one that can"
    for path, body in (
        ("/embed", {"inputs": "a"}),
        ("/embed_all", {"inputs": "a"}),
        ("/v1/embeddings", {"input": "a"}),
        ("/rerank", {"query": "a", "texts": ["b"]}),
        ("/score", {"text_1": "a", "text_2": "b"}),
    ):
        assert told in str(client.refuse(path, body)[1]), path
    named = client.refuse("/v1/embeddings", {"input": "a", "model": "splade"})[1]
    assert named["error"]["message"] == (
        "model 'splade' cannot embed, it can embed_sparse (POST /embed_sparse); no other model can"
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("dense", {"embedding": {"pooling": "mean"}}),
        ("both", {"embedding": {"pooling": "cls"}}),
        ("static", {"embedding": {"pooling": "mean"}}),
        ("splade", {"embedding": {"pooling": "splade"}}),
        ("table", {"embedding": {"pooling": "splade"}}),
        ("router", {"embedding": {"pooling": "splade"}}),
        ("rank", {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}),
        (
            "label",
            {
                "classifier": {
                    "id2label": {str(place): label for place, label in enumerate(LABELS)},
                    "label2id": {label: place for place, label in enumerate(LABELS)},
                }
            },
        ),
    ],
)
def test_every_kind_of_model_becomes_ready_and_is_described(
    serve: Callable[..., Client], name: str, kind: Any
) -> None:
    client = serve(name)
    answer = client.send("GET", "/ready")
    assert (answer.status_code, answer.json()["models"]) == (200, {name: "ready"})
    assert client.application.catalog.find(name, *ALL_TASKS).answered_at > 0
    info = client.send("GET", "/info").json()
    assert info["model_type"] == kind
    assert info["served_model_name"] == name


def test_no_thread_of_a_load_is_left_when_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """It still runs for a moment when it has told its result; here until it is waited for."""
    is_waited_for = threading.Event()

    class Slow(WorkerThread):
        def run(self) -> None:
            super().run()
            assert is_waited_for.wait(WAIT_SECONDS)

        def join(self, timeout: float | None = None) -> None:
            is_waited_for.set()
            super().join(timeout)

    monkeypatch.setattr("embedlib.serve.models.loading.WorkerThread", Slow)
    loader = Loader()
    try:
        asyncio.run(loader.run(lambda: None))
        assert not loader.is_running
    finally:
        is_waited_for.set()
