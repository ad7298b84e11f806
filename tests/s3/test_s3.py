"""`embedlib.index` of s3:// URLs: s3fs, and moto's server in place of Amazon's, on loopback."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from subprocess import DEVNULL, PIPE
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs

import embedlib
from embedlib.embedder import Embedder
from embedlib.errors import SourceError
from embedlib.indexing import BadRow, Document, SourceOptions, open_source
from embedlib.testing import FakeEngine, FakeSink, FakeStore, fake_embedder

ODD_NAMES = ("a b.txt", "ü 漢.txt", "x*[1]?.txt", "100%#.txt", "a=b&c.txt", "sub/c..txt")


# In a process of its own: what it keeps in memory is not ours.
SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("http://%s:%s" % server.get_host_and_port(), flush=True)
sys.stdin.read()
server.stop()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), "without a server, Amazon's would be asked"
        yield url
        process.stdin.close()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, value in (
        ("AWS_ENDPOINT_URL", server),
        ("AWS_ACCESS_KEY_ID", "an-id"),
        ("AWS_SECRET_ACCESS_KEY", "a-secret"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    made = boto3.resource("s3").create_bucket(Bucket="buc")
    yield made
    made.objects.all().delete()
    made.delete()


@pytest.fixture(scope="module")
def embedder() -> Iterator[Embedder]:
    with fake_embedder(FakeEngine(max_batch_tokens=256)) as made:
        yield made


def put(bucket: Any, key: str, data: bytes | str) -> None:
    bucket.put_object(Key=key, Body=data.encode() if isinstance(data, str) else data)


def read(*urls: str, **options: Any) -> dict[str | None, str]:
    rows = open_source(urls, SourceOptions(**options), [].append)
    return {row.id: row.text if isinstance(row, Document) else row.reason for row in rows}


def test_a_prefix_is_loaded_and_its_changes(bucket: Any, embedder: Embedder) -> None:
    for name in ("docs/a.txt", "docs/sub/b.md", "docs2/c.txt", "docs/photo.png"):
        put(bucket, name, f"text of {name}")
    put(bucket, "docs/", "")  # how the console of Amazon makes a folder
    store = FakeStore()

    def load(**options: Any) -> embedlib.IndexReport:
        return embedlib.index(
            "s3://buc/docs", FakeSink(store), embedder=embedder, chunk=False, **options
        )

    assert load().num_embedded == 2
    put(bucket, "docs/a.txt", "another")
    put(bucket, "docs/new.txt.gz", gzip.compress(b"new"))
    report = load()
    assert (report.num_embedded, report.num_unchanged) == (2, 1)
    bucket.Object("docs/a.txt").delete()
    assert load(delete_missing=True, max_delete=0.5).num_deleted == 1
    assert {row.source_id: row.text for row in store.rows.values()} == {
        "s3://buc/docs/new.txt.gz": "new",
        "s3://buc/docs/sub/b.md": "text of docs/sub/b.md",
    }


def test_names_are_taken_as_they_are(bucket: Any) -> None:
    for name in ODD_NAMES:
        put(bucket, f"docs/{name}", f"text of {name}")
    expected = {f"s3://buc/docs/{name}": f"text of {name}" for name in ODD_NAMES}
    assert read("s3://buc/docs") == expected
    for url, text in expected.items():
        assert read(url) == {url: text}


def test_rows_are_fetched_piece_by_piece(bucket: Any) -> None:
    texts = [f"row {n} {'word ' * 2000}" for n in range(4000)]  # 40 MB
    ids = list(map(str, range(4000)))
    parquet = io.BytesIO()
    table = pa.table({"id": ids, "text": texts})
    pq.write_table(table, parquet, compression="none", use_dictionary=False, row_group_size=200)
    put(bucket, "t.parquet", parquet.getvalue())
    lines = "".join(f"{json.dumps(row)}\n" for row in table.to_pylist())
    put(bucket, "t.jsonl", lines)
    put(bucket, "t.jsonl.gz", gzip.compress(lines.encode(), 1))
    for name in ("t.jsonl", "t.jsonl.gz", "t.parquet"):
        source = open_source([f"s3://buc/{name}"], SourceOptions(), [].append)
        tracemalloc.start()
        found = [texts[int(row.id or "")] == getattr(row, "text", None) for row in source]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert found == [True] * 4000, name
        assert peak < 25_000_000, name


def test_what_is_not_there_is_told(bucket: Any) -> None:
    put(bucket, "docs/a.txt", "text")
    for url in ("s3://buc/absent", "s3://buc/doc", "s3://absent/docs", "s3://absent/docs/"):
        with pytest.raises(SourceError, match=rf"^cannot read {url}: no such file or folder$"):
            read(url)
    source = open_source(["s3://buc/docs"], SourceOptions(), [].append)
    bucket.Object("docs/a.txt").delete()
    [row] = source
    assert isinstance(row, BadRow)
    assert row.reason == "No such file or directory"


def test_a_server_that_is_gone_ends_the_load(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bucket, "docs/a.txt", "text")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(SourceError, match="run the same command again to continue") as caught:
        read("s3://buc/docs")
    assert "a-secret" not in str(caught.value)
