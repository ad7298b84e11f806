"""`index` on a real cluster: the same rows, counts and refusals as in one process."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from click.testing import CliRunner, Result

import embedlib
from embedlib import Document, SourceOptions
from embedlib.cli import main
from embedlib.errors import (
    ConfigError,
    EmbedlibError,
    ModelNotFoundError,
    SinkError,
)
from embedlib.indexing import open_sink
from embedlib.indexing.sources.sql import open_sql_source
from embedlib.testing import FakeSink, FakeStore, fake_embedder, write_tiny_model
from embedlib_ray import RayEmbedder, destination
from embedlib_ray.destination import SharedSink
from tests.ray.fakes import all_pids, documents, logging_embedder, num_embedded

DEADLY = ord("~")


class Workers:
    """Three workers that all tests share, and what they have embedded since a test began."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._before = 0
        self.embedder = RayEmbedder(logging_embedder(log, DEADLY), num_workers=3)

    @property
    def num_embedded(self) -> int:
        return num_embedded(self.log) - self._before

    def begin(self) -> None:
        self._before = num_embedded(self.log)

    def load(self, sink: Any, source: Any = None, **options: Any) -> Any:
        source = documents(1500) if source is None else source
        return embedlib.index(source, sink, embedder=self.embedder, **options)


@pytest.fixture(scope="module")
def both(driver: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    workers = Workers(tmp_path_factory.mktemp("log") / "embedded.log")
    yield workers
    workers.embedder.close()


@pytest.fixture
def workers(both: Workers) -> Workers:
    both.begin()
    return both


def test_rows_counts_and_file_are_those_of_one_process(workers: Workers, tmp_path: Path) -> None:
    prefix = "{page}: "
    with fake_embedder() as embedder:
        url = f"jsonl:{tmp_path}/alone.jsonl"
        alone = embedlib.index(documents(1500), url, embedder=embedder, prefix=prefix)
    shared = workers.load(f"jsonl:{tmp_path}/shared.jsonl", prefix=prefix)
    left, right = ((tmp_path / f"{name}.jsonl").read_bytes() for name in ("alone", "shared"))
    assert left == right
    assert workers.num_embedded == 1500
    fields = ("num_documents", "num_rows", "num_embedded", "num_tokens", "num_bad", "num_other")
    assert [getattr(alone, name) for name in fields] == [getattr(shared, name) for name in fields]
    assert len(all_pids(workers.log)) <= 2  # three workers, and the model once on each machine


def test_a_second_load_embeds_what_changed_and_deletes_what_is_gone(workers: Workers) -> None:
    store = FakeStore()
    progress = []
    workers.load(FakeSink(store))
    changed = [
        *(Document(id=f"d{number}", text=f"other {number}") for number in range(10)),
        *documents(1390, first=10),
    ]
    report = workers.load(
        FakeSink(store), changed, delete_missing=True, on_progress=progress.append
    )
    assert (report.num_embedded, report.num_unchanged, report.num_deleted) == (10, 1390, 100)
    assert workers.num_embedded == 1510
    assert len(store.rows) == 1400
    assert progress[-1].num_workers in (1, 2, 3)


def test_bad_rows_and_metadata_are_counted_as_in_one_process(workers: Workers) -> None:
    store = FakeStore()
    workers.load(FakeSink(store), documents(300))
    rows = [
        Document(id="d0", text="text 0", metadata={"page": 99}),
        *documents(298, first=1),
        Document(id="empty", text=" "),
    ]
    report = workers.load(FakeSink(store), rows)
    assert (report.num_metadata, report.num_unchanged, report.num_bad) == (1, 298, 1)
    assert report.num_other == 1


@pytest.fixture
def command(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`embedlib index ... --ray` with workers that are there already."""

    def run(*arguments: Any) -> Result:
        given = ("index", *arguments, "--model", "./fake", "--ray", "--json")
        return CliRunner().invoke(main, [str(each) for each in given])

    monkeypatch.setattr(
        "embedlib.indexing.workers.find_workers", lambda: lambda *_, **__: workers.embedder
    )
    monkeypatch.setattr(workers.embedder, "close", lambda: None)
    return run


def test_a_text_that_kills_workers_takes_only_its_shard(
    command: Callable[..., Result], tmp_path: Path
) -> None:
    source, url = tmp_path / "docs.jsonl", f"jsonl:{tmp_path}/out.jsonl"
    with fake_embedder() as embedder:
        embedlib.index([Document(id="gone", text="gone")], url, embedder=embedder)
    texts = [f"text {number}" for number in range(1400)]
    texts.insert(700, "a ~ here")
    lines = ({"id": f"d{number}", "text": text} for number, text in enumerate(texts))
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = command(source, "--to", url, "--delete-missing")
    assert done.exit_code == 1
    [told] = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    named = re.search(r"'d(\d+)' to 'd(\d+)'\): the worker died.*run the same command", told)
    assert named is not None, told
    assert int(named[1]) <= 700 <= int(named[2])
    lost = int(named[2]) - int(named[1]) + 1
    with closing(open_sink(url)) as sink:
        # The others are stored, and nothing was deleted.
        assert sink.inspect().num_rows == 1401 - lost + 1


def test_a_command_counts_beforehand_and_embeds_headings(
    command: Callable[..., Result], workers: Workers, postgres: str, tmp_path: Path
) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    for number in range(30):
        words = " ".join(f"{word}" for word in range(60))
        (docs / f"{number}.md").write_text(
            f"# Guide {number}\n\n{words}\n\n## Install\n\n{words}\n"
        )
    url = f"{postgres}&table=headed"
    load = (docs, "--to", url, "--with-headings")
    with fake_embedder() as embedder:
        alone = embedlib.index(
            docs, f"{postgres}&table=headed_alone", embedder=embedder, with_headings=True
        )
    dry = json.loads(command(*load, "--dry-run").stdout)
    assert (dry["num_embedded"], dry["num_unchanged"]) == (alone.num_embedded, 0)
    assert dry["estimated_seconds"] > 0
    with closing(open_sink(url)) as sink:
        assert sink.inspect() is None
    parts = [json.loads(command(*load, "--shard", f"{part}/2").stdout) for part in (1, 2)]
    assert all(part["num_embedded"] for part in parts)
    assert sum(part["num_embedded"] for part in parts) == alone.num_embedded
    assert stored(postgres, "headed") == stored(postgres, "headed_alone")
    before = workers.num_embedded
    again = json.loads(command(*load, "--dry-run").stdout)
    assert (again["num_embedded"], again["num_unchanged"]) == (0, alone.num_embedded)
    assert workers.num_embedded == before


def test_postgres_workers_write_themselves(workers: Workers, postgres: str, tmp_path: Path) -> None:
    with fake_embedder() as embedder:
        embedlib.index(documents(1500), f"{postgres}&table=alone", embedder=embedder)
    report = workers.load(f"{postgres}&table=shared")
    assert (report.num_embedded, report.num_rows) == (1500, 1500)
    assert stored(postgres, "alone") == stored(postgres, "shared")
    with closing(open_sink(f"{postgres}&table=shared")) as sink:
        assert sink.inspect().index.startswith("hnsw")
    again = workers.load(
        f"{postgres}&table=shared", documents(1400), delete_missing=True, full_text="english"
    )
    assert (again.num_unchanged, again.num_deleted) == (1400, 100)
    with closing(open_sink(f"{postgres}&table=shared")) as sink:
        assert [hit.source_id for hit in sink.search_text("1399", 5, None)] == ["d1399"]
    dropped = workers.load(f"{postgres}&table=shared", documents(50), recreate=True)
    assert dropped.num_embedded == 50
    assert len(stored(postgres, "shared")) == 50
    # Workers reserve what the model took, besides the first one, which has told it.
    assert ray.available_resources()["memory"] < ray.cluster_resources()["memory"]


def test_one_load_of_a_destination_at_a_time(workers: Workers, postgres: str) -> None:
    url = f"{postgres}&table=one"
    with fake_embedder() as alone:

        def second() -> Any:
            yield from documents(900)
            embedlib.index(documents(5), url, embedder=alone)

        with pytest.raises(SinkError, match="another writer is active"):
            workers.load(url, second())


def test_a_load_that_would_turn_the_workers_of_another_one_is_refused(
    workers: Workers, postgres: str
) -> None:
    def second(url: str) -> Any:
        yield from documents(900)
        with pytest.raises(ConfigError, match="write to one destination at a time, and another"):
            workers.load(url, documents(5))

    tables = [f"{postgres}&table=of_{number}" for number in range(2)]
    workers.load(tables[0], second(tables[1]))
    store = FakeStore()

    def third() -> Any:
        yield from second(tables[1])
        workers.load(FakeSink(store), documents(5))  # what this process writes is in nobody's way

    workers.load(FakeSink(FakeStore()), third())
    assert len(store.rows) == 5
    workers.load(tables[1], documents(5))
    assert len(stored(postgres, "of_0")) == 900
    assert len(stored(postgres, "of_1")) == 5


def test_the_model_of_another_load_is_refused(workers: Workers) -> None:
    store = FakeStore()
    with fake_embedder(truncate_dim=3) as embedder:
        embedlib.index(documents(3), FakeSink(store), embedder=embedder)
    with pytest.raises(SinkError, match="3 dimensions and the model makes 6"):
        workers.load(FakeSink(store))
    assert workers.num_embedded == 0


def test_a_query_goes_on_where_the_last_load_ended(
    workers: Workers, postgres: str, tmp_path: Path
) -> None:
    with sqlite3.connect(tmp_path / "app.db") as database:
        database.execute("CREATE TABLE docs (id INTEGER, text TEXT, changed INTEGER)")
        database.executemany(
            "INSERT INTO docs VALUES (?, ?, ?)", ((n, f"text {n}", n) for n in range(600))
        )

    def load() -> Any:
        how = SourceOptions(since_field="changed", since_overlap=5)
        query = "SELECT id, text, changed FROM docs"
        source = open_sql_source(f"sqlite:{tmp_path}/app.db", query, how, lambda _: None)
        return workers.load(f"{postgres}&table=since", source, chunk=False)

    assert load().num_embedded == 600
    database.execute("INSERT INTO docs VALUES (600, 'text 600', 600)")
    database.commit()
    again = load()
    assert (again.num_embedded, again.num_documents) == (1, 7)
    database.close()


def test_a_model_is_replaced_by_what_the_workers_embed(
    workers: Workers, postgres: str, tiny: Path
) -> None:
    url = f"{postgres}&table=replaced"
    with embedlib.Embedder(tiny) as old:
        embedlib.index(documents(200), url, embedder=old)
    report = workers.load(url, documents(200), replace=True)
    assert report.num_embedded == 200
    with closing(open_sink(url)) as sink:
        assert (sink.inspect().dim, sink.inspect().num_rows) == (6, 200)
    assert embedlib.drop_old(url) == 200


def test_a_command_loads_a_vector_per_token(driver: str, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model", "late-stanford")
    source, url = tmp_path / "docs.jsonl", f"edge:{tmp_path}/shard"
    texts = [f"the quick brown fox {number}" for number in range(40)]
    source.write_text("".join(json.dumps({"id": t, "text": t}) + "\n" for t in texts))
    options = ("--model", model, "--to", url, "--ray", "auto", "--ray-workers", "1", "--json")
    done = CliRunner().invoke(main, [str(each) for each in ("index", source, *options)])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["num_embedded"] == 40
    with embedlib.Embedder(model) as embedder:
        assert embedlib.index(source, url, embedder=embedder).num_unchanged == 40
        [hit] = embedlib.search("brown fox 7", url, embedder=embedder, top_k=1)
        query = embedder.encode_query("brown fox 7")
        scores = embedlib.maxsim(query, embedder.encode_document(texts))
    assert hit.score == pytest.approx(scores.max(), rel=1e-4)


def test_aindex_takes_a_pack_and_embeds_late_chunks(
    driver: str, tiny: Path, tmp_path: Path
) -> None:
    pack = tmp_path / "tiny.embedlib"
    assert CliRunner().invoke(main, ["pack", str(tiny), "-o", str(pack)]).exit_code == 0
    rows = [
        {"id": str(number), "text": " ".join(f"word {number} {n}" for n in range(60))}
        for number in range(20)
    ]
    late: Any = {"late_chunking": True, "chunk_tokens": 6}
    url = f"jsonl:{tmp_path}/shared.jsonl"
    report = asyncio.run(
        embedlib.aindex(rows, url, embedder=str(pack), ray="auto", ray_workers=1, **late)
    )
    assert report.num_embedded > len(rows)
    with embedlib.Embedder(tiny) as embedder:
        assert embedlib.index(rows, url, embedder=embedder, **late).num_embedded == 0
        embedlib.index(rows, f"jsonl:{tmp_path}/alone.jsonl", embedder=embedder, **late)
    vectors = [
        [json.loads(line)["embedding"] for line in (tmp_path / name).read_text().splitlines()]
        for name in ("shared.jsonl", "alone.jsonl")
    ]
    np.testing.assert_allclose(*vectors, atol=1e-5)


def test_bad_input_is_told_before_the_first_row(workers: Workers, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"nowhere.*\(worker on "):
        RayEmbedder(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="ray_workers = 0"):
        RayEmbedder(logging_embedder(tmp_path / "log"), num_workers=0)
    with pytest.raises(ConfigError, match="a model's name or an Embedder"):
        embedlib.index(documents(1), FakeSink(FakeStore()), embedder=3, ray="auto")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="late_chunking: chunks needs per-token vectors"):
        workers.load(FakeSink(FakeStore()), late_chunking=True)


def test_a_load_into_a_file_has_the_workers_that_the_load_before_gave_up(
    workers: Workers, tmp_path: Path
) -> None:
    pool = workers.embedder._pool
    pool._put(lambda: pool._break(EmbedlibError("no worker reaches the database")))
    report = workers.load(f"jsonl:{tmp_path}/out.jsonl", documents(100))
    assert report.num_embedded == 100


def test_a_folder_is_refused_if_the_cluster_has_other_machines(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = destination.machines()[0]
    machines = [here, replace(here, address="10.0.0.2")]
    monkeypatch.setattr(destination, "machines", lambda: machines)
    with pytest.raises(SinkError, match="on this machine alone, and the cluster has 2; load a"):
        workers.load(f"jsonl:{tmp_path}/out.jsonl")
    assert workers.num_embedded == 0


def test_a_worker_that_does_not_reach_the_database_is_named(
    workers: Workers, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = SharedSink.begin

    def far(self: Any, target: Any, tell: Any) -> None:
        begin(self, target, tell)
        self.url = "postgresql://127.0.0.1:1/none?table=t"

    monkeypatch.setattr(SharedSink, "begin", far)
    with pytest.raises(SinkError, match=r"127\.0\.0\.1.*\(worker on "):
        workers.load(f"{postgres}&table=far")
    assert workers.num_embedded == 0


def stored(postgres: str, table: str) -> list[tuple[Any, ...]]:
    import psycopg

    with psycopg.connect(postgres) as connection:
        query = f"SELECT langchain_id, content, embedding::text FROM {table} ORDER BY 1"
        return connection.execute(query).fetchall()


def test_a_database_that_restarts_is_waited_for(workers: Workers, restarting_postgres: Any) -> None:
    url = restarting_postgres.url
    num_before = 0

    def source() -> Any:
        nonlocal num_before
        for number, document in enumerate(documents(3000)):
            if number == 1500:
                restarting_postgres.restart()
                num_before = time.monotonic_ns()
            yield document

    report = workers.load(f"{url}&table=t", source())
    assert num_before
    assert report.num_rows == 3000
    assert len(stored(url, "t")) == 3000
