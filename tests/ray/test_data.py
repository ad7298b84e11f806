"""Ray Data with embedlib's actor and sink."""

from __future__ import annotations

import json
import os
import signal
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
from embedlib.errors import ConfigError, EmbedlibError, InputError, SinkError
from embedlib.indexing import Target, open_sink
from embedlib.indexing.workers import Seen
from embedlib.testing import fake_embedder, fake_vector, write_tiny_model
from embedlib_ray import EmbedlibActor, EmbedlibDatasink, embed_dataset
from embedlib_ray.blocks import BlockWriter, rows_of
from embedlib_ray.shared_model import SharedModel
from tests.ray.fakes import all_pids, documents, dying_once, logging_embedder, num_embedded
from tests.tiny_models.sparse import write_sparse_model

NUM_ROWS = 1000


def make_rows() -> list[dict[str, Any]]:
    return [{"id": f"d{n}", "text": f"text {n}", "page": n % 7} for n in range(NUM_ROWS)]


@pytest.fixture(scope="module")
def dataset(driver: str, tmp_path_factory: pytest.TempPathFactory) -> ray.data.Dataset:
    """The rows, brought together by three readers of Ray Data in few processes."""
    ray.data.DataContext.get_current().scheduling_strategy = "DEFAULT"
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
    model = dying_once(logging_embedder(log), tmp_path / "died")  # the first worker of all
    urls = (f"jsonl:{tmp_path}/out.jsonl", f"{postgres}&table=data")
    file, table = (EmbedlibDatasink(url, model) for url in urls)
    embedded = embed_dataset(dataset, model, num_workers=3)
    num_before = len(all_pids(log))
    embedded.write_datasink(file)
    assert num_embedded(log) == NUM_ROWS
    assert len(all_pids(log)) - num_before <= 2  # three actors, and the model once on each machine
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    assert sorted(line["source_id"] for line in lines) == sorted(row["id"] for row in make_rows())
    for line in lines:
        number = int(line["source_id"][1:])
        assert line["metadata"] == {"source": f"d{number}", "page": number % 7}
        assert line["embedding"] == fake_vector(f"text {number}".encode()).tolist()
    with_vectors = [{**row, "embedding": fake_vector(row["text"].encode())} for row in make_rows()]
    for _ in range(2):
        ray.data.from_items(with_vectors).write_datasink(table)
    with fake_embedder() as embedder:
        for url in urls:
            # The rows are those of a load: it finds nothing to do.
            report = embedlib.index(make_rows(), url, embedder=embedder, chunk=False)
            assert (report.num_unchanged, report.num_embedded) == (NUM_ROWS, 0)


def test_values_reach_the_destination_as_a_load_reads_them(
    driver: str, log: Path, tmp_path: Path
) -> None:
    table = pyarrow.table(
        {
            "id": ["a", "b", "c"],
            "text": ["one", "two", "three"],
            "big": pyarrow.array([2**60 + 1, None, 5], pyarrow.int64()),
            "moment": pyarrow.array([0, None, 2], pyarrow.timestamp("ns", tz="UTC")),
        }
    )
    parquet.write_table(table, tmp_path / "rows.parquet")
    dataset = ray.data.read_parquet(str(tmp_path / "rows.parquet"))
    model, url = logging_embedder(log), f"jsonl:{tmp_path}/out.jsonl"
    datasink = EmbedlibDatasink(url, model)
    embed_dataset(dataset, model).write_datasink(datasink)
    assert datasink.written is not None
    assert datasink.written.num_changed == 3
    with fake_embedder() as embedder:
        report = embedlib.index(str(tmp_path / "rows.parquet"), url, embedder=embedder, chunk=False)
    assert (report.num_unchanged, report.num_metadata) == (3, 0)


def test_a_relative_path_is_one_of_the_program(
    driver: str, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # Ray's processes work elsewhere
    rows = [{"id": "a", "text": "one", "embedding": fake_vector(b"one")}]
    ray.data.from_items(rows).write_datasink(EmbedlibDatasink("jsonl:out", logging_embedder(log)))
    assert len((tmp_path / "out").read_text("utf-8").splitlines()) == 1


def test_a_file_is_written_by_the_machine_of_the_program(
    driver: str, log: Path, tmp_path: Path
) -> None:
    datasink = EmbedlibDatasink(f"jsonl:{tmp_path}/out.jsonl", logging_embedder(log))
    for _ in range(6):  # without a place, Ray takes any machine, also one that came later
        datasink.on_write_start()
        node = datasink._writer.__ray_call__.remote(
            lambda _: ray.get_runtime_context().get_node_id()
        )
        assert ray.get(node) == ray.get_runtime_context().get_node_id()
        datasink.on_write_failed(RuntimeError())


def test_a_destination_that_another_program_writes_is_told_in_one_line(
    driver: str, log: Path, tmp_path: Path
) -> None:
    url = f"edge:{tmp_path}/shard"
    datasink = EmbedlibDatasink(url, logging_embedder(log))
    with closing(open_sink(url)) as other:
        other.begin(datasink._target, lambda _: None)
        with pytest.raises(SinkError, match="is being written by process") as told:
            datasink.on_write_start()
    assert "\n" not in str(told.value)


def test_ids_that_several_tasks_have_are_told(driver: str, log: Path, tmp_path: Path) -> None:
    rows = [
        {"id": f"d{n % 2500}", "text": f"text {n}", "embedding": fake_vector(b"%d" % n)}
        for n in range(5000)
    ]
    datasink = EmbedlibDatasink(f"jsonl:{tmp_path}/out.jsonl", logging_embedder(log))
    with pytest.raises(SinkError, match="2500 rows of the dataset have an id that was used before"):
        ray.data.from_items(rows, override_num_blocks=2).write_datasink(datasink)
    assert len((tmp_path / "out.jsonl").read_text("utf-8").splitlines()) == 2500


def test_a_value_that_is_no_text_is_told_with_its_column(driver: str, log: Path) -> None:
    embed = EmbedlibActor(logging_embedder(log), text="body")
    with pytest.raises(InputError, match=r"^the column 'body': text 1 is None, a NoneType;"):
        embed({"body": np.array(["a", None], object)})


def test_actors_of_a_machine_share_a_process_and_start_another_if_it_dies(
    driver: str, log: Path
) -> None:
    options: dict[str, Any] = {"model": logging_embedder(log), "output": "vector"}
    actors = [EmbedlibActor(**options) for _ in range(2)]
    [pid] = all_pids(log)
    for actor in actors:  # Ray hides no GPU from what has set none aside
        assert isinstance(actor._model, SharedModel)
        assert actor._model._plan.config.device == "cpu"
    batch = {"text": ["one", "two"]}
    first = [actor(batch)["vector"] for actor in actors]
    os.kill(pid, signal.SIGKILL)
    second = [actor(batch)["vector"] for actor in reversed(actors)]
    with fake_embedder() as embedder:
        for vectors in (*first, *second):
            np.testing.assert_array_equal(vectors, embedder.encode_document(batch["text"]))
    assert len(all_pids(log)) == 2
    with pytest.raises(EmbedlibError, match="on the first worker; give all machines the same"):
        EmbedlibActor(**options, fingerprint="sha256:other")
    with pytest.raises(InputError, match="no column 'text'; it has body"):
        actors[0]({"body": ["one"]})


@pytest.mark.parametrize("url", ["edge:{}", "qdrant+local:{}", "npy:{}/out", "parquet:{}/out"])
def test_every_destination_takes_the_blocks_of_a_task(url: str, tmp_path: Path) -> None:
    with closing(Seen()) as seen:
        rows = rows_of(documents(20), "f", seen)
    vectors = np.arange(20 * 6, dtype=np.float32).reshape(20, 6) + 1
    for expected in (20, 0):
        writer = BlockWriter(url.format(tmp_path))
        writer.begin(Target(dim=6, similarity="cosine", fingerprint="f", model="m"))
        assert writer.write(rows, vectors).num_changed == expected
        writer.finish()
        writer.end()
    with closing(open_sink(url.format(tmp_path))) as sink:
        assert sink.inspect().num_rows == 20


def test_what_is_wrong_is_told_before_the_first_row(
    dataset: ray.data.Dataset, log: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="no column 'body'; it has id, page, text"):
        embed_dataset(dataset, str(tmp_path / "nowhere"), text="body")
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
    sparse = str(write_sparse_model(tmp_path / "sparse"))
    for use in (
        lambda: embed_dataset(dataset, sparse),
        lambda: EmbedlibDatasink(url, sparse),
        lambda: embedlib.index([], url, embedder=sparse, ray="auto", recreate=True),
    ):
        with pytest.raises(ConfigError, match="is a sparse model, and workers make"):
            use()
    assert (tmp_path / "out.jsonl").read_text("utf-8").count("\n") == 1
    assert num_embedded(log) == 0
