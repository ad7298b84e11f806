"""Ray Data with embedlib's actor and sink."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import ray
from pyarrow import parquet

import embedlib
from embedlib.errors import ConfigError, EmbedlibError, SinkError
from embedlib.indexing import Target, open_sink
from embedlib.testing import fake_embedder, write_tiny_model
from embedlib_ray import EmbedlibDatasink, embed_dataset
from embedlib_ray.datasink import BlockWriter, rows_of
from tests.ray.fakes import documents, logging_embedder, num_embedded

NUM_ROWS = 1000


def make_rows() -> list[dict[str, Any]]:
    return [{"id": f"d{n}", "text": f"text {n}", "page": n % 7} for n in range(NUM_ROWS)]


@pytest.fixture(scope="module")
def dataset(driver: str, tmp_path_factory: pytest.TempPathFactory) -> ray.data.Dataset:
    """The rows, brought together by three readers of Ray Data."""
    folder = tmp_path_factory.mktemp("dataset")
    rows = make_rows()
    parquet.write_table(pyarrow.Table.from_pylist(rows[:400]), folder / "rows.parquet")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[400:700]))
    with closing(sqlite3.connect(folder / "rows.db")) as database, database:
        database.execute("CREATE TABLE docs (id TEXT, text TEXT, page INTEGER)")
        database.executemany("INSERT INTO docs VALUES (:id, :text, :page)", rows[700:])
    connect = partial(sqlite3.connect, folder / "rows.db")
    return (
        ray.data.read_parquet(str(folder / "rows.parquet"), override_num_blocks=1)
        .union(
            ray.data.read_json(str(folder / "rows.jsonl"), override_num_blocks=1),
            ray.data.read_sql("SELECT * FROM docs", connect, override_num_blocks=1),
        )
        .materialize()
    )


def test_a_dataset_gets_vectors_and_is_stored_once(
    dataset: ray.data.Dataset, log: Path, tmp_path: Path, postgres: str
) -> None:
    model = logging_embedder(log)
    urls = (f"jsonl:{tmp_path}/out.jsonl", f"{postgres}&table=data")
    file, table = (EmbedlibDatasink(url, model) for url in urls)
    embedded = embed_dataset(dataset, model, num_workers=1)
    embedded.write_datasink(file)
    assert num_embedded(log) == NUM_ROWS
    stored = embedded.materialize()
    with fake_embedder() as embedder:
        expected = embedder.encode_document([f"text {n}" for n in range(NUM_ROWS)])
        found = {row["id"]: row["embedding"] for row in stored.take_all()}
        assert all((found[f"d{n}"] == expected[n]).all() for n in range(NUM_ROWS))
        for sink in (file, table, table):
            stored.write_datasink(sink)
        for url in urls:
            # The rows are those of a load: it finds nothing to do.
            report = embedlib.index(make_rows(), url, embedder=embedder, chunk=False)
            assert (report.num_unchanged, report.num_embedded) == (NUM_ROWS, 0)
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == NUM_ROWS
    first = json.loads(lines[0])
    assert first["metadata"] == {
        "source": first["source_id"],
        "page": int(first["source_id"][1:]) % 7,
    }
    assert np.array_equal(found[first["source_id"]], np.float32(first["embedding"]))


@pytest.mark.parametrize("url", ["edge:{}", "qdrant+local:{}", "npy:{}/out", "parquet:{}/out"])
def test_every_destination_takes_the_blocks_of_a_task(url: str, tmp_path: Path) -> None:
    rows = rows_of(list(documents(20)), "f")
    vectors = np.arange(20 * 6, dtype=np.float32).reshape(20, 6) + 1
    for expected in (20, 0):
        writer = BlockWriter(url.format(tmp_path))
        writer.begin(Target(dim=6, similarity="cosine", fingerprint="f", model="m"))
        assert writer.write(rows, vectors) == expected
        writer.finish()
        writer.end()
    with closing(open_sink(url.format(tmp_path))) as sink:
        assert sink.inspect().num_rows == 20


def test_what_is_wrong_is_told_before_the_first_row(
    dataset: ray.data.Dataset, log: Path, tmp_path: Path
) -> None:
    with pytest.raises(EmbedlibError, match="nowhere"):
        embed_dataset(dataset, str(tmp_path / "nowhere"))
    url = f"jsonl:{tmp_path}/out.jsonl"
    with fake_embedder(truncate_dim=3) as embedder:
        embedlib.index([{"id": "1", "text": "text"}], url, embedder=embedder)
    with pytest.raises(SinkError, match="3 dimensions and the model makes 6"):
        EmbedlibDatasink(url, logging_embedder(log))
    late = str(write_tiny_model(tmp_path / "late", "late-stanford"))
    with pytest.raises(ConfigError, match=r"a vector per token.*use embedlib"):
        embed_dataset(dataset, late)
    assert num_embedded(log) == 0
