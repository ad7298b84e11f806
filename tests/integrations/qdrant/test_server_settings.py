"""Real Qdrant servers with keys, TLS and crashes; skipped where real_server.py starts none."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import embedlib
from embedlib import Document
from embedlib.errors import SinkError
from embedlib.indexing import open_sink
from embedlib.indexing.report import IndexProgress
from embedlib.testing import FakeEngine, fake_embedder
from embedlib.testing.check_sink import TARGET, make_rows, make_vectors
from tests.waiting import WAIT_SECONDS

qdrant_client = pytest.importorskip("qdrant_client", reason="needs the extra qdrant")

pytestmark = pytest.mark.qdrant_server

KEY = "a-key-of-the-test-with-32-characters"


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Return a function that opens a collection with a key, and waits less than usual."""
    opened: list[Any] = []

    def open_with(url: str, key: str | None = None) -> Any:
        if key is None:
            monkeypatch.delenv("QDRANT_API_KEY", raising=False)
        else:
            monkeypatch.setenv("QDRANT_API_KEY", key)
        opened.append(open_sink(url))
        opened[-1].sleep = lambda seconds: time.sleep(min(seconds, 0.1))
        return opened[-1]

    yield open_with
    for each in opened:
        each.close()


def token(**claims: Any) -> str:
    """A JSON Web Token, signed with the key of the server (RFC 7515, HS256)."""
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in ({"alg": "HS256", "typ": "JWT"}, claims)
    ]
    signature = hmac.digest(KEY.encode(), b".".join(parts), hashlib.sha256)
    return b".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()


def load(opened: Any, number: int = 20) -> None:
    rows = make_rows(number)
    with closing(opened):
        opened.begin(TARGET, str)
        opened.write(rows, make_vectors(rows))
        opened.finish()


def test_keys_and_tokens(start_qdrant: Callable[..., Any], sink: Callable[..., Any]) -> None:
    server = start_qdrant(QDRANT__SERVICE__API_KEY=KEY, QDRANT__SERVICE__JWT_RBAC="true")
    url = f"{server.url}/docs"
    load(sink(url, KEY))
    reading, other = token(access="r"), token(access=[{"collection": "x", "access": "rw"}])
    for wrong in (None, "another-key", other, token(access="r", exp=1)):
        with pytest.raises(SinkError, match="read from the environment variable QDRANT_A") as said:
            sink(url, wrong).inspect()
        assert wrong is None or wrong not in str(said.value)
    assert sink(url, reading).inspect().num_rows == 20
    assert len(sink(url, reading).search(make_vectors(make_rows(1))[0], 3)) == 3
    with pytest.raises(SinkError, match="PERMISSION_DENIED"):
        load(sink(url, reading))
    # Enough to bring a collection up to date that is there; making one takes more.
    writing = token(access=[{"collection": "docs", "access": "rw"}])
    load(sink(url, writing), 30)
    searched = sink(url, writing)  # it may not ask for aliases
    assert searched.old() is None
    searched.hold(searched.inspect())
    assert len(searched.search(make_vectors(make_rows(1))[0], 3)) == 3
    assert sink(url, reading).inspect().num_rows == 30
    with pytest.raises(SinkError, match="PERMISSION_DENIED"):
        load(sink(f"{server.url}/new", token(access=[{"collection": "new", "access": "rw"}])))


def test_langchain_over_rest(start_qdrant: Callable[..., Any], sink: Callable[..., Any]) -> None:
    store_module = pytest.importorskip("langchain_qdrant")
    core = pytest.importorskip("langchain_core.embeddings")
    server = start_qdrant()
    load(sink(f"{server.url}/docs"))
    client = qdrant_client.QdrantClient(
        host="127.0.0.1", port=server.http_port, check_compatibility=False
    )
    store = store_module.QdrantVectorStore(client, "docs", core.DeterministicFakeEmbedding(size=6))
    rows = make_rows(20)
    page = qdrant_client.models.FieldCondition(
        key="metadata.page", match=qdrant_client.models.MatchValue(value=7)
    )
    (found,) = store.similarity_search_by_vector(
        make_vectors(rows)[1].tolist(), k=5, filter=qdrant_client.models.Filter(must=[page])
    )
    assert found.page_content == rows[7].text
    (added,) = store.add_texts(["of LangChain"])
    store.delete([str(rows[0].id)])
    assert store.get_by_ids([added])[0].page_content == "of LangChain"
    assert sink(f"{server.url}/docs").inspect().num_rows == 19
    client.close()


def test_tls(start_qdrant: Callable[..., Any], sink: Callable[..., Any], tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    request = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    files = ["-keyout", str(key), "-out", str(certificate)]
    name = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*request.split(), *files, *name], check=True, capture_output=True)
    server = start_qdrant(
        QDRANT__SERVICE__ENABLE_TLS="true",
        QDRANT__TLS__CERT=str(certificate),
        QDRANT__TLS__KEY=str(key),
        QDRANT__SERVICE__API_KEY=KEY,
    )
    url = f"{server.url}/docs"
    with pytest.raises(SinkError, match=r"certificate is not trusted.*set GRPC_DEFAULT_SSL_ROOTS"):
        sink(url, KEY).inspect()
    with pytest.raises(SinkError, match=r"begins with qdrant\+https:// if the server uses TLS"):
        sink(url.replace("qdrant+https", "qdrant"), KEY).inspect()
    # gRPC reads the variable once, so this takes a process of its own.
    command = [sys.executable, "-m", "embedlib", "bench-write", "--to", url, "--num-rows", "500"]
    ended = subprocess.run(
        [*command, "--rounds", "2", "--dim", "8", "--vs-qdrant-client"],
        env={
            **os.environ,
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(certificate),
            "QDRANT_API_KEY": KEY,
        },
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert ended.returncode == 0, ended.stderr
    table = " ".join(ended.stdout.split())  # it lines up
    assert "| writing 500 x 8, batches of 2,048 |" in table
    assert table.count("| qdrant-client, upload_collection, ") == 2
    assert table.count("| embedlib, times as fast | ") == 2
    assert KEY not in ended.stdout + ended.stderr


def test_a_load_outlives_its_server(
    start_qdrant: Callable[..., Any], sink: Callable[..., Any]
) -> None:
    """The server is killed twice in the middle of a load, and is back when it is waited for."""
    server = start_qdrant()
    num_kills = 0
    told: list[str] = []

    def kill(progress: IndexProgress) -> None:
        nonlocal num_kills
        if progress.num_embedded >= 400 * (num_kills + 1) and num_kills < 2:
            num_kills += 1
            server.kill()

    def come_back(seconds: float) -> None:
        if not server.is_running:
            server.start()
        time.sleep(min(seconds, 0.2))

    opened = sink(f"{server.url}/docs")
    opened.sleep = come_back
    texts = [Document(id=f"d{number}", text=f"text {number}") for number in range(1500)]
    with fake_embedder(FakeEngine(max_batch_tokens=512)) as embedder:
        report = embedlib.index(
            *(texts, opened),
            embedder=embedder,
            chunk=False,
            batch_rows=100,
            tell=told.append,
            on_progress=kill,
        )
        assert embedder.stats().num_texts == 1500  # nothing is embedded twice for it
    assert num_kills == 2
    assert report.num_embedded == 1500
    again = sink(f"{server.url}/docs")
    assert sorted(key.source_id for key in again.scan()) == sorted(text.id for text in texts)
    assert all("trying again in" in line for line in told)
    assert told
