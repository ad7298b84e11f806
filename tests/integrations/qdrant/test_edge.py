from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pytest

from embedlib.config import Similarity
from embedlib.errors import SinkError
from embedlib.indexing.filters.parser import parse_filter
from embedlib.indexing.rows import row_id
from embedlib.indexing.sinks.opening import open_sink
from embedlib.indexing.sinks.protocol import UnstorableRowsError
from embedlib.packages.installing import install_line
from embedlib.testing import check_sink
from embedlib.testing.check_sink import DIM, TARGET, make_rows, make_vectors
from embedlib_qdrant import edge as edge_module
from embedlib_qdrant import edge_folder, edge_search
from tests.panics import PanicException

qdrant_edge = pytest.importorskip("qdrant_edge", reason="needs the extra qdrant")


def ignore(_line: str) -> None:
    pass


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Any]:
    """Return a function that opens the same folder every time."""
    return lambda options="": open_sink(f"edge:{tmp_path / 'db'}{options}")


def begin(make: Callable[..., Any], options: str = "", **changes: Any) -> Any:
    sink = make(options)
    sink.begin(replace(TARGET, **changes), ignore)
    return sink


def load(make: Callable[..., Any], num_rows: int = 10, **changes: Any) -> None:
    sink = begin(make, **changes)
    rows = make_rows(num_rows)
    sink.write(rows, make_vectors(rows))
    sink.finish()
    sink.close()


@pytest.mark.parametrize("options", ["", "?quantization=scalar&on_disk=true&m=8&ef_construct=20"])
def test_it_keeps_what_every_sink_promises(make: Callable[..., Any], options: str) -> None:
    check_sink(lambda: make(options))


def test_not_too_many_rows_are_in_the_log_alone(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_module, "_FLUSH_ROWS", 5)
    sink, rows = begin(make), make_rows(8)
    flushed: list[int] = []
    flush = sink._flush

    def note() -> None:
        flushed.append(sink._num_unflushed)
        flush()

    monkeypatch.setattr(sink, "_flush", note)
    for start in range(0, 8, 2):
        sink.write(rows[start : start + 2], make_vectors(rows[start : start + 2]))
    assert flushed == [6]
    sink.finish()
    assert flushed == [6, 2]
    sink.close()


def test_a_position_is_written_behind_the_rows(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, calls = begin(make), list[str]()
    monkeypatch.setattr(sink, "_flush", lambda: calls.append("rows"))
    monkeypatch.setattr(sink._folder, "write_position", calls.append)
    sink.save_position("position")
    sink.close()
    assert calls == ["rows", "position"]


def test_only_a_load_that_builds_a_graph_says_so(make: Callable[..., Any]) -> None:
    told: list[str] = []
    sink = make("?m=4&ef_construct=8")
    sink.begin(replace(TARGET, dim=4096), told.append)
    for rows in (make_rows(624), make_rows(625)):  # the last one has 10,000 KiB
        sink.write(rows, np.eye(len(rows), 4096, dtype=np.float32))
        sink.finish()
        assert bool(told) == (sink.inspect().index != "none, exact scan") == (len(rows) == 625)
    sink.finish()  # of no new row
    assert told == [f"{sink.name}: building the index; Ctrl-C takes effect after that"]
    sink.close()


# A load of 4 batches that says what it has done. 512 rows of 1,536 floats are 3 MB, and the engine
# builds a graph from 10 MB on.
LOADER = """
import sys
import numpy as np
from embedlib.indexing.rows import Row, row_digest, row_id
from embedlib.indexing.sinks.protocol import Target
from embedlib.indexing.sinks.opening import open_sink

def row(number):
    digest = row_digest(f"text {number}", {}, "f")
    return Row(id=row_id(f"{number}", 0), source_id=f"{number}", chunk=0, text=f"text {number}",
               metadata={}, digest=digest)

sink = open_sink(f"edge:{sys.argv[1]}?m=4&ef_construct=8")
sink.begin(Target(dim=1536, similarity="cosine", fingerprint="f", model="m"), lambda line: None)
random = np.random.default_rng(0)
for first in range(0, 2048, 512):
    rows = [row(number) for number in range(first, first + 512)]
    vectors = random.standard_normal((512, 1536), dtype=np.float32)
    stored = sink.digests([row.id for row in rows])
    missing = [i for i, row in enumerate(rows) if stored.get(row.id) != row.digest]
    if missing:
        sink.write([rows[i] for i in missing], vectors[missing])
    print("written", len(missing), flush=True)
print("finish", flush=True)
sink.finish()
print("finished", flush=True)
assert len(list(sink.scan())) == len({key.id for key in sink.scan()}) == 2048
assert len(sink.search(vectors[7], 5)) == 5
sink.close()
print(sink.inspect(), flush=True)
"""


def test_nothing_written_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    def run(*, kill_after: str | None, num_lines: int = 1) -> list[str]:
        """Run the loader; kill it when it has printed that many lines that begin so."""
        lines = []
        process = subprocess.Popen(
            [sys.executable, "-c", LOADER, str(tmp_path / "db")], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        with process, process.stdout:
            for line in process.stdout:
                lines.append(line.strip())
                if kill_after and sum(line.startswith(kill_after) for line in lines) == num_lines:
                    process.kill()
                    break
        assert kill_after or process.returncode == 0
        return lines

    assert run(kill_after="written", num_lines=2) == ["written 512"] * 2
    # What write returned from is there; the third batch was written in part, or fully, or not.
    assert run(kill_after="written", num_lines=3)[:2] == ["written 0"] * 2
    assert run(kill_after="finish")[:3] == ["written 0"] * 3  # in the index build
    lines = run(kill_after=None)
    assert lines[:6] == [*["written 0"] * 4, "finish", "finished"]
    assert "index='hnsw, 2048 of 2048 points'" in lines[6]
    shard = qdrant_edge.EdgeShard.load(str(tmp_path / "db" / "shard"))
    vectors = np.random.default_rng(0).standard_normal((2048, 1536), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for record in shard.retrieve([row_id(f"{n}", 0) for n in range(0, 2048, 100)], True, True):
        number = int(record.payload["_embedlib"].split(" ")[2])
        assert np.allclose(record.vector, vectors[number], atol=1e-6)
    shard.close()


class Killed(BaseException):
    pass


@pytest.mark.parametrize("function", ["_write_file", "edge_config", "_sync_folder"])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_kill_while_the_shard_is_made_is_repaired(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, function: str, is_new: bool
) -> None:
    if not is_new:
        load(make, fingerprint="old")
    module = edge_module if function == "edge_config" else edge_folder
    real = getattr(module, function)

    def stop(*arguments: Any) -> Any:
        if function != "edge_config":
            real(*arguments)
        raise Killed

    sink = make()
    with monkeypatch.context() as patch:
        patch.setattr(module, function, stop)
        with pytest.raises(Killed):
            sink.begin(replace(TARGET, recreate=True), ignore)
    sink.close()
    load(make)
    assert make().inspect().num_rows == 10


def test_a_kill_while_a_shard_is_dropped_is_repaired(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    load(make)

    def stop(path: Path) -> None:
        raise Killed

    sink = make()
    with monkeypatch.context() as patch:
        patch.setattr(edge_folder.shutil, "rmtree", stop)
        with pytest.raises(Killed):
            sink.begin(replace(TARGET, recreate=True), ignore)
    sink.close()
    assert make().inspect() is None
    load(make, num_rows=4, fingerprint="new")
    assert make().inspect().num_rows == 4
    assert sorted(os.listdir(tmp_path / "db")) == ["embedlib.json", "embedlib.lock", "shard"]


@pytest.mark.parametrize("recreate", [True, False])
@pytest.mark.parametrize("content", ["notes.txt", "shard/segments"])
def test_a_folder_of_others_is_left_alone(
    make: Callable[..., Any], tmp_path: Path, recreate: bool, content: str
) -> None:
    (tmp_path / "db" / content).mkdir(parents=True)
    sink = make()
    with pytest.raises(SinkError, match="was not created by embedlib"):
        sink.begin(replace(TARGET, recreate=recreate), ignore)
    sink.close()
    with pytest.raises(SinkError, match="was not created by embedlib"):
        make().inspect()
    assert os.listdir(tmp_path / "db") == [content.partition("/")[0]]


def test_a_file_and_a_broken_mark_are_refused_in_one_line(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "db").write_text("x")
    with pytest.raises(SinkError, match="cannot be read: Not a directory"):
        make().inspect()
    (tmp_path / "db").unlink()
    load(make)
    mark = tmp_path / "db" / "embedlib.json"
    whole = json.loads(mark.read_text())
    for text, message in (
        (b"{", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"{}", "cannot be read"),
        (json.dumps({**whole, "format": 99}).encode(), "has format 99"),
    ):
        mark.write_bytes(text)
        with pytest.raises(SinkError, match=message) as caught:
            make().inspect()
        assert "\n" not in str(caught.value)


def test_the_shard_is_an_ordinary_one_and_points_of_others_are_not_ours(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    load(make)
    row, vector = make_rows(10)[3], make_vectors(make_rows(10))[3]
    shard = qdrant_edge.EdgeShard.load(str(tmp_path / "db" / "shard"))
    own = f"{row.digest.hex()} {row.chunk} {row.source_id}"
    expected = {"page_content": row.text, "metadata": row.metadata, "_embedlib": own}
    (record,) = shard.retrieve([row.id], True, True)
    assert record.payload == expected
    assert np.allclose(record.vector, vector, atol=1e-6)
    payload = {"page_content": "mine", "metadata": {}}
    foreign = qdrant_edge.Point(7, vector.tolist(), payload)
    shard.update(qdrant_edge.UpdateOperation.upsert_points([foreign]))
    shard.close()
    sink = begin(make)
    assert len(list(sink.scan())) == 10
    assert sink.inspect().num_rows == 11  # the engine counts what there is
    hits = sink.search(vector, 20)
    assert hits[0].id == row.id
    assert len(hits) == 10
    sink.close()


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
def test_a_higher_score_is_a_better_match(make: Callable[..., Any], similarity: Similarity) -> None:
    load(make, similarity=similarity)
    rows = make_rows(10)
    sink = make()
    vector = make_vectors(rows)[4]
    hits = sink.search(vector, 10)
    sink.close()
    assert hits[0].id == rows[4].id
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    others = make_vectors(rows)
    expected = {
        "cosine": others @ vector,
        "dot": others @ vector,
        "euclidean": -np.linalg.norm(others - vector, axis=1),
        "manhattan": -np.abs(others - vector).sum(axis=1),
    }[similarity]
    by_id = {row.id: score for row, score in zip(rows, expected, strict=True)}
    assert [by_id[hit.id] for hit in hits] == pytest.approx(scores, abs=1e-5)


def test_new_metadata_replaces_the_old_and_keeps_the_vector(make: Callable[..., Any]) -> None:
    load(make)
    rows = make_rows(10)
    changed = replace(rows[2], metadata={"only": 1}, digest=b"d" * 24)
    sink = begin(make)
    sink.write_metadata([changed, make_rows(1, first=100)[0]])
    assert len(list(sink.scan())) == 10
    hit = sink.search(make_vectors(rows)[2], 1)[0]
    sink.close()
    assert (hit.id, hit.text, hit.metadata) == (rows[2].id, rows[2].text, {"only": 1})
    assert hit.score > 0.999


def test_where_a_filter_leaves_too_few_rows_all_are_compared(make: Callable[..., Any]) -> None:
    """A graph leads past rows that few others are linked to."""
    load(make)
    sink, made = make(), Mock(wraps=qdrant_edge.SearchParams)
    sink.edge = SimpleNamespace(**{**vars(qdrant_edge), "SearchParams": made})
    vector, where = make_vectors(make_rows(1))[0], parse_filter("page < 3")
    for k, num_exact in ((3, 0), (4, 1)):
        assert len(sink.search_where(vector, k, where)) == 3
        assert made.mock_calls == [call(exact=True)] * num_exact
    sink.close()


def nested(num_dicts: int) -> dict[str, Any]:
    """Return metadata of as many dicts in one another."""
    metadata: dict[str, Any] = {}
    for _ in range(num_dicts - 1):
        metadata = {"a": metadata}
    return metadata


@pytest.mark.parametrize("method", ["write", "write_metadata"])
@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        # From 122 levels on the engine takes a row that it never reads again.
        (nested(101), "has metadata 'a' nested too deeply, and Qdrant stores up to 99 objects"),
        (nested(400), "has metadata 'a' nested too deeply"),
        ({"a": [{"n": 10**309}]}, "has a number of 310 digits in metadata 'a.0.n'"),
        ({"n": -(10**400)}, "has a number of 402 digits in metadata 'n'"),
    ],
)
def test_metadata_that_the_engine_cannot_keep_is_one_bad_row(
    make: Callable[..., Any], method: str, metadata: dict[str, Any], reason: str
) -> None:
    load(make)
    rows = make_rows(11)
    rows[3] = replace(rows[3], metadata=metadata, digest=b"x" * 24)
    rows[4] = replace(rows[4], metadata=nested(100))
    rows[5] = replace(rows[5], metadata={"n": 10**308, "also": -(10**308)})
    sink = begin(make)
    arguments = (rows, make_vectors(rows)) if method == "write" else (rows,)
    with pytest.raises(UnstorableRowsError, match="cannot store 1 of these rows") as caught:
        getattr(sink, method)(*arguments)
    (bad,) = caught.value.bad_rows
    assert (bad.id, bad.place) == (
        rows[3].source_id,
        f"{rows[3].source_id!r}, chunk {rows[3].chunk}",
    )
    assert bad.reason.startswith(reason)
    sink.close()
    sink = begin(make)  # which reads the log
    assert len(list(sink.scan())) == (11 if method == "write" else 10)
    stored = {hit.id: hit.metadata for hit in sink.search(make_vectors(rows)[0], 11)}
    sink.close()
    assert stored[rows[3].id] == make_rows(10)[3].metadata
    assert stored[rows[4].id] == rows[4].metadata
    assert stored[rows[5].id] == {"n": 1e308, "also": -1e308}


def test_metadata_that_cannot_be_stored_is_one_line_and_writes_nothing(
    make: Callable[..., Any],
) -> None:
    rows = make_rows(3)
    rows[1] = replace(rows[1], metadata={"bad": object()})
    sink = begin(make)
    with pytest.raises(SinkError, match="cannot be written") as caught:
        sink.write(rows, make_vectors(rows))
    assert "\n" not in str(caught.value)
    assert list(sink.scan()) == []
    sink.close()


def test_a_folder_that_is_open_elsewhere_is_one_line(make: Callable[..., Any]) -> None:
    load(make)
    reader = make()
    reader.search(make_vectors(make_rows(1))[0], 1)
    with pytest.raises(SinkError, match="is open already, in this process or another"):
        make().inspect()
    writer = make()
    with pytest.raises(SinkError, match="is open already, in this process or another"):
        writer.begin(TARGET, ignore)
    writer.close()
    reader.close()
    begin(make).close()


def test_rows_that_cannot_be_counted_at_the_end_are_one_line(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, rows = begin(make), make_rows(2)
    sink.write(rows, make_vectors(rows))
    said = "Input/output error (os error 5)"
    monkeypatch.setattr(sink, "_count", Mock(side_effect=Exception(said)))
    with pytest.raises(SinkError, match=r"be optimized: Input/output .*; its disk or netw"):
        sink.finish()
    sink.close()


def test_a_shard_that_cannot_be_closed_is_one_line_and_keeps_no_lock(
    make: Callable[..., Any],
) -> None:
    sink = begin(make)
    shard, said = sink._shard, "No space left on device (os error 28)"
    sink._shard = SimpleNamespace(close=Mock(side_effect=Exception(said)))
    with pytest.raises(SinkError, match=r"cannot be closed: No space left .*; its disk is full"):
        sink.close()
    shard.close()
    begin(make).close()


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("mmap: Permission denied (os error 13)", "the right to write there"),
        ("Read-only file system (os error 30)", "copy the folder"),
        ("No space left on device (os error 28)", "make room"),
        ("Input/output error (os error 5)", "its disk or network folder fails"),
        ("Too many open files (os error 24)", "ulimit -n"),
        ("Cannot allocate memory (os error 12)", "memory is full"),
        ("thread pool: Resource temporarily unavailable (os error 11)", "ulimit -u"),
        ("segment: bad magic number", r"recreate=True \(--recreate\) drops these rows"),
    ],
)
def test_what_the_system_refuses_is_no_reason_to_drop_the_rows(
    said: str, remedy: str, make: Callable[..., Any]
) -> None:
    load(make)
    sink = make()
    # By hand: root, whom tests may be run by, has every right.
    refusing = SimpleNamespace(load=Mock(side_effect=OSError(said)))
    sink.edge = SimpleNamespace(EdgeShard=refusing, Query=qdrant_edge.Query)
    with pytest.raises(SinkError, match=remedy) as caught:
        sink.search(make_vectors(make_rows(1))[0], 1)
    assert ("--recreate" in str(caught.value)) == ("os error" not in said)


def test_a_panic_without_threads_is_one_line(make: Callable[..., Any]) -> None:
    said = "unwrap() on Os { code: 11, kind: WouldBlock, message: 'temporarily unavailable' }\nnote"
    shard = SimpleNamespace(
        create=Mock(side_effect=PanicException(said)), load=Mock(side_effect=PanicException(said))
    )
    new = make()
    new.edge = SimpleNamespace(**{**vars(qdrant_edge), "EdgeShard": shard})
    with pytest.raises(SinkError, match=r"cannot be created: .*no more threads") as caught:
        new.begin(TARGET, ignore)
    assert "\n" not in str(caught.value)
    new.close()
    load(make)
    sink = make()
    sink.edge = SimpleNamespace(EdgeShard=shard)
    with pytest.raises(SinkError, match=r"cannot be opened: .*no more threads"):
        sink.inspect()
    shard.load.side_effect = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        sink.inspect()


def test_a_disk_that_is_nearly_full_is_told_before_the_engine_is_killed(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = make_rows(3)
    free = 10 << 20
    monkeypatch.setattr(
        edge_module, "shutil", SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=free))
    )
    sink = make()
    with pytest.raises(SinkError, match="only 10 MiB of its disk are free, the next rows may need"):
        sink.begin(TARGET, ignore)
    sink.close()
    free = 1 << 30
    sink = begin(make)
    sink.write(rows[:2], make_vectors(rows[:2]))
    free = 10 << 20
    for write in (
        lambda: sink.write(rows[2:], make_vectors(rows[2:])),
        lambda: sink.write_metadata(rows[:2]),
    ):
        with pytest.raises(SinkError, match="make room and run the load again to continue"):
            write()
    sink.close()
    sink = begin(make)  # what needs no room is done all the same
    assert len(sink.digests([row.id for row in rows])) == 2
    sink.close()


def test_other_options_than_it_was_made_with_are_refused(make: Callable[..., Any]) -> None:
    begin(make, "?m=8").close()
    begin(make).close()
    begin(make, "?m=8&on_disk=false").close()
    sink = make("?m=9")
    with pytest.raises(SinkError, match="was created with m=8, not 9; leave the option out"):
        sink.begin(TARGET, ignore)
    sink.begin(replace(TARGET, recreate=True), ignore)
    sink.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("edge:", "needs a folder"),
        ("edge://host/x", "needs a folder"),
        ("edge:x?n=8", "has no option 'n'"),
        ("edge:x?shards=2", "has no option 'shards'"),
    ],
)
def test_a_wrong_url_is_refused(url: str, message: str) -> None:
    with pytest.raises(SinkError, match=message):
        open_sink(url)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("m=1", "from 2 to 999999999"),
        ("m=x", "from 2"),
        ("m=1000000000", "from 2"),
        (f"m={'9' * 5000}", "from 2"),  # of which Python makes no number
        ("ef_construct=3", "from 4"),
        ("quantization=product", "one of none, scalar, binary"),
        ("on_disk=maybe", "must be true or false"),
    ],
)
def test_a_wrong_value_of_an_option_is_refused(option: str, message: str) -> None:
    with pytest.raises(SinkError, match=message):
        open_sink(f"edge:x?{option}")


def test_a_search_where_nothing_is_says_what_to_do(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    sink = make()
    with pytest.raises(SinkError, match="holds nothing"):
        sink.search(np.ones(DIM, np.float32), 1)
    with pytest.raises(SinkError, match="holds nothing"):
        sink.digests([])
    vectors = np.ones((1, DIM), np.float32)
    for change in (
        lambda: sink.delete([]),
        lambda: sink.write(make_rows(1), vectors),
        lambda: sink.write_both(make_rows(1), vectors, [{}]),
        sink.finish,
    ):
        with pytest.raises(SinkError, match="begin was not called"):
            change()
    assert not (tmp_path / "db").exists()


def test_what_a_killed_index_build_leaves_is_removed(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    load(make)
    builders = tmp_path / "db" / "shard" / "temp_segments"
    (builders / "segment_builder_x" / "vectors").mkdir(parents=True)
    begin(make).close()
    assert os.listdir(builders) == []
    assert make().inspect().num_rows == 10


def test_quantized_vectors_are_compared_again_with_the_exact_ones(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    rows = make_rows(500)
    vectors = random.standard_normal((500, 32), dtype=np.float32)
    sink = begin(make, "?quantization=binary", dim=32, similarity="dot")
    sink.write(rows, vectors)
    sink.finish()

    def recall() -> float:
        found = 0
        for vector in vectors[:50]:
            nearest = np.argsort(-(vectors @ vector))[:5]
            expected = {rows[index].id for index in nearest}
            found += len(expected & {hit.id for hit in sink.search(vector, 5)})
        return found / 250

    with_exact = recall()
    monkeypatch.setattr(edge_search, "search_params", lambda mark: None)
    assert with_exact > 1.2 * recall()
    sink.close()


def test_without_the_extra_the_message_has_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "qdrant_edge", None)
    with pytest.raises(SinkError, match=re.escape(install_line("qdrant"))):
        open_sink("edge:x")
