"""Servers around fake engines, and clients that reach them without a socket."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from embedlib import Classifier, Config, Embedder, Reranker
from embedlib.engines.base import Batch, EngineLimits
from embedlib.models.spec import Head
from embedlib.serve import ServeOptions, create_app
from embedlib.serve.app import Application
from embedlib.testing import FakeEngine, byte_tokenizer, fake_embedder, fake_spec
from tests.waiting import WAIT_SECONDS

T = TypeVar("T")
LABELS = ("joy", "anger", "fear")


class ScoreEngine(FakeEngine):
    """An engine whose first score grows with the sequence's length."""

    def __init__(self, num_scores: int) -> None:
        super().__init__()
        self.limits = EngineLimits(
            embedding_dim=num_scores,
            is_per_token=False,
            is_padded=False,
            max_batch_tokens=64,
            num_parallel_batches=1,
            max_inflight_batches=3,
            max_inflight_bulk=2,
        )

    def _compute(self, batch: Batch) -> NDArray[np.float32]:
        vectors = super()._compute(batch)
        columns = [vectors[:, 2] / 10, vectors[:, 0] / 100, vectors[:, 1] / 100]
        return np.stack(columns[: self.limits.embedding_dim], axis=1).astype(np.float32)


RANKS = Head(labels=("LABEL_0",), activation="sigmoid", reranker_activation="identity")


def fake_reranker(engine: FakeEngine | None = None, head: Head = RANKS) -> Reranker:
    return Reranker.from_engine(
        engine or ScoreEngine(1), fake_spec(64, head=head), byte_tokenizer(), Config()
    )


def fake_classifier() -> Classifier:
    head = Head(labels=LABELS, activation="softmax", reranker_activation="sigmoid")
    return Classifier.from_engine(
        ScoreEngine(3), fake_spec(32, head=head), byte_tokenizer(), Config()
    )


class Client:
    """Sends requests to an application on an event loop of its own."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self._runner = asyncio.new_event_loop()

    def run(self, work: Awaitable[T]) -> T:
        async def limited() -> T:
            return await asyncio.wait_for(work, WAIT_SECONDS)

        return self._runner.run_until_complete(limited())

    def start(self) -> None:
        async def start() -> None:
            await self.application.start()
            await self.application.loaded()

        self.run(start())

    def http(self, **headers: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app=self.application),
            base_url="http://localhost",
            headers=headers,
        )

    def send(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            async with self.http() as http:
                if isinstance(body, bytes):
                    return await http.request(method, path, content=body, **options)
                return await http.request(method, path, json=body, **options)

        return self.run(send())

    def post(self, path: str, body: Any, **options: Any) -> Any:
        answer = self.send("POST", path, body, **options)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refuse(self, path: str, body: Any, **options: Any) -> tuple[int, Any]:
        answer = self.send("POST", path, body, **options)
        assert answer.status_code >= 400, answer.text
        return answer.status_code, answer.json()

    def close(self) -> None:
        self.run(self.application.close())
        self._runner.close()


MakeClient = Callable[..., Client]
MakeCertificate = Callable[..., tuple[Path, Path]]


@contextmanager
def ended_in_time(application: Application) -> Iterator[None]:
    """End its server after some time: one that should not go on would keep the test for ever."""
    give_up = threading.Timer(
        WAIT_SECONDS, lambda: application.end_server and application.end_server()
    )
    give_up.start()
    try:
        yield
    finally:
        give_up.cancel()


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def make_client(engine: FakeEngine) -> Iterator[MakeClient]:
    """Return a function that makes a started server; without models it has one of each kind."""
    made: list[Client] = []

    def make(models: dict[str, Any] | None = None, **options: Any) -> Client:
        given = models or {
            "embed": fake_embedder(engine),
            "rank": fake_reranker(),
            "label": fake_classifier(),
        }
        client = Client(create_app(given, options=ServeOptions(**options)))
        made.append(client)
        client.start()
        return client

    yield make
    engine.release()
    for client in made:
        client.close()
    left = [each.name for each in threading.enumerate() if each.name.startswith("embedlib-serve")]
    assert [name for name in left if "encode" not in name] == []


@pytest.fixture
def client(make_client: MakeClient) -> Client:
    return make_client()


@pytest.fixture
def embedder() -> Iterator[Embedder]:
    """An Embedder like the one that is served."""
    with fake_embedder() as embedder:
        yield embedder


@pytest.fixture
def make_certificate(tmp_path: Path) -> MakeCertificate:
    """Return a function that makes a certificate for localhost, and its key, by a name."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes a certificate, is not installed")

    kinds = {"ec": ("ec", "-pkeyopt", "ec_paramgen_curve:P-256"), "rsa": ("rsa:2048",)}

    def make(name: str, *key: str, kind: str = "ec") -> tuple[Path, Path]:
        files = tmp_path / f"{name}.pem", tmp_path / f"{name}-key.pem"
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", *kinds[kind]),
                *("-days", "2", "-subj", "/CN=localhost"),
                *("-addext", "subjectAltName=DNS:localhost", "-out", files[0]),
                *("-keyout", files[1], *(key or ("-nodes",))),
            ],
            check=True,
            capture_output=True,
        )
        return files

    return make
