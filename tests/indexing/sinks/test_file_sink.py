from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedlib.errors import SinkError
from embedlib.indexing.sinks.file_lock import FileLock
from embedlib.indexing.sinks.file_rows import count_rows
from embedlib.indexing.sinks.file_sink import FileSink
from embedlib.indexing.sinks.file_tables import DATABASE, one_snapshot, open_database
from embedlib.indexing.sinks.opening import open_sink
from embedlib.packages.installing import import_extra, install_line
from embedlib.testing import check_sink
from embedlib.testing.check_sink import TARGET, make_rows, make_vectors
from embedlib.vectors import files

SCHEMES = ("jsonl", "npy", "parquet")
(ROW,) = make_rows(1)


def load(sink: Any, rows: list[Any]) -> None:
    sink.begin(TARGET, print)
    sink.write(rows, make_vectors(rows))
    sink.finish()
    sink.close()


def load_nothing(sink: Any) -> None:
    sink.begin(TARGET, print)
    sink.finish()
    sink.close()


def make(path: Path, scheme: str = "jsonl") -> Any:
    return open_sink(f"{scheme}:{path}")


def make_and_inspect(path: Path) -> None:
    with closing(make(path)) as sink:
        sink.inspect()


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_keeps_what_every_sink_promises(scheme: str, tmp_path: Path) -> None:
    check_sink(lambda: make(tmp_path / f"rows.{scheme}", scheme))


def test_jsonl_holds_every_field(tmp_path: Path) -> None:
    rows = make_rows(5)
    load(make(tmp_path / "a.jsonl"), rows)
    stored = read_jsonl(tmp_path / "a.jsonl")
    vectors = np.array([fields.pop("embedding") for fields in stored], np.float32)
    assert (vectors == make_vectors(rows)).all()
    assert stored == expected_fields(rows)


def test_npy_holds_vectors_and_rows_in_the_same_order(tmp_path: Path) -> None:
    rows = make_rows(5)
    load(make(tmp_path / "a.npy", "npy"), rows)
    assert (np.load(tmp_path / "a.npy") == make_vectors(rows)).all()
    assert read_jsonl(tmp_path / "a.npy.rows.jsonl") == expected_fields(rows)


def test_parquet_holds_every_field(tmp_path: Path) -> None:
    from pyarrow import parquet

    rows = make_rows(5)
    load(make(tmp_path / "a.parquet", "parquet"), rows)
    stored = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    vectors = np.array([fields.pop("embedding") for fields in stored], np.float32)
    assert (vectors == make_vectors(rows)).all()
    for fields in stored:
        fields["metadata"] = json.loads(fields["metadata"])
    assert stored == expected_fields(rows)


def test_an_empty_parquet_file_has_its_columns(tmp_path: Path) -> None:
    from pyarrow import parquet

    load(make(tmp_path / "a.parquet", "parquet"), [])
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table.num_rows == 0
    assert table.column_names == ["id", "source_id", "chunk", "text", "metadata", "embedding"]


def test_many_rows_cross_the_limits_of_one_statement_and_one_row_group(tmp_path: Path) -> None:
    from pyarrow import parquet

    rows = make_rows(9000)
    load(make(tmp_path / "a.parquet", "parquet"), rows)
    sink = make(tmp_path / "a.parquet", "parquet")
    sink.begin(TARGET, print)
    assert sink.digests([row.id for row in rows]) == {row.id: row.digest for row in rows}
    best = sink.search(make_vectors(rows[-1:])[0], 1)[0]
    assert best.score > 0.999
    sink.close()
    assert parquet.read_table(tmp_path / "a.parquet").num_rows == 9000


def test_a_row_group_of_parquet_has_few_long_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column of a group holds 2 GiB at most."""
    from pyarrow import parquet

    monkeypatch.setattr(files, "_ROW_GROUP_CHARS", 250)  # a row has 180
    rows = make_rows(7, text="x" * 40)
    load(make(tmp_path / "a.parquet", "parquet"), rows)
    with parquet.ParquetFile(tmp_path / "a.parquet") as file:
        groups = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
        assert groups == [2, 2, 2, 1]
        assert file.read().column("text").to_pylist() == [row.text for row in rows]


def expected_fields(rows: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "id": str(row.id),
            "source_id": row.source_id,
            "chunk": row.chunk,
            "text": row.text,
            "metadata": row.metadata,
        }
        for row in rows
    ]


def test_what_is_read_together_is_of_one_moment(tmp_path: Path) -> None:
    load(make(tmp_path / "a.jsonl"), make_rows(2))
    file = tmp_path / "a.jsonl.embedlib" / DATABASE
    with closing(open_database(file)) as reader, closing(open_database(file)) as writer:
        with one_snapshot(reader):
            assert count_rows(reader, "row") == 2
            writer.execute("DELETE FROM row")
            assert count_rows(reader, "row") == 2
        assert count_rows(reader, "row") == 0


def test_the_file_appears_with_finish_and_is_left_alone_when_nothing_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rows = tmp_path / "a.jsonl", make_rows(3)
    sink = make(path)
    sink.begin(TARGET, print)
    sink.write(rows, make_vectors(rows))
    assert not path.exists()
    sink.finish()
    written = path.stat().st_mtime_ns, path.stat().st_ino
    sink.close()
    load_nothing(make(path))
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == written


def test_an_export_that_was_interrupted_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rows = tmp_path / "a.jsonl", make_rows(3)
    load(make(path), rows)
    old = path.read_bytes()
    sink = make(path)
    sink.begin(TARGET, print)
    sink.delete([rows[0].id])

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full_disk)
        with pytest.raises(SinkError, match="No space left on device"):
            sink.finish()
    sink.close()
    assert path.read_bytes() == old  # the old file stays until the new one is whole
    sink = make(path)
    sink.begin(TARGET, print)
    sink.finish()
    sink.close()
    assert len(read_jsonl(path)) == 2
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a.jsonl", "a.jsonl.embedlib"]


def test_a_removed_file_is_written_again(tmp_path: Path) -> None:
    path, rows = tmp_path / "a.jsonl", make_rows(3)
    load(make(path), rows)
    path.unlink()
    load(make(path), [])
    assert len(read_jsonl(path)) == 3


@pytest.mark.parametrize("name", ["a.npy", "a.npy.rows.jsonl"])
def test_a_file_that_was_edited_is_written_again(name: str, tmp_path: Path) -> None:
    load(make(tmp_path / "a.npy", "npy"), make_rows(3))
    written = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(written[:-50])
    load_nothing(make(tmp_path / "a.npy", "npy"))
    assert (tmp_path / name).read_bytes() == written


@pytest.mark.parametrize("recreate", [False, True])
@pytest.mark.parametrize(("scheme", "name"), [("jsonl", "a.jsonl"), ("npy", "a.npy.rows.jsonl")])
def test_a_file_of_somebody_else_is_left_alone(
    tmp_path: Path, recreate: bool, scheme: str, name: str
) -> None:
    path = tmp_path / name
    path.write_text("mine\n")
    with pytest.raises(SinkError, match=r"was not written by embedlib"):
        make(tmp_path / f"a.{scheme}", scheme).begin(replace(TARGET, recreate=recreate), print)
    assert path.read_text() == "mine\n"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("recreate", [False, True])
@pytest.mark.parametrize(("scheme", "other"), [*permutations(SCHEMES, 2)])
def test_a_file_of_another_format_is_left_alone(
    scheme: str, other: str, recreate: bool, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    load(make(path, scheme), make_rows(3))
    before = {item: item.read_bytes() for item in tmp_path.iterdir() if item.is_file()}
    told = f"^{path} was written as {scheme}, this is {other}:{path}; write {scheme}:{path}, or"
    sink = make(path, other)
    with pytest.raises(SinkError, match=told):
        sink.inspect()
    with pytest.raises(SinkError, match=told):
        sink.begin(replace(TARGET, recreate=recreate), print)
    sink.close()
    assert {item: item.read_bytes() for item in tmp_path.iterdir() if item.is_file()} == before


@pytest.mark.parametrize("scheme", ["jsonl", "npy"])
def test_an_empty_file_may_be_of_any_format(scheme: str, tmp_path: Path) -> None:
    load_nothing(make(tmp_path / "a"))
    assert (tmp_path / "a").read_bytes() == b""
    load(make(tmp_path / "a", scheme), [ROW])
    with closing(make(tmp_path / "a", scheme)) as sink:
        assert sink.inspect().num_rows == 1


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["-", "./-"])
def test_standard_output_is_no_destination(scheme: str, name: str) -> None:
    with pytest.raises(SinkError, match=f"^{scheme}:- is not standard output"):
        open_sink(f"{scheme}:{name}")


def test_a_folder_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    for use in (lambda sink: sink.inspect(), lambda sink: sink.begin(TARGET, print)):
        with pytest.raises(SinkError, match=f": there is no folder '{tmp_path}/typo'; make it"):
            use(make(tmp_path / "typo" / "a.jsonl"))
    assert list(tmp_path.iterdir()) == []


def test_the_current_folder_may_have_a_name_that_is_not_utf_8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    load(make(Path("rows.jsonl")), make_rows(3))
    with closing(make(Path("rows.jsonl"))) as sink:
        assert sink.inspect().num_rows == 3


def test_looking_changes_nothing_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(make(tmp_path / "a.jsonl"), make_rows(3))
    folder = tmp_path / "a.jsonl.embedlib"
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write anywhere
    sink = make(tmp_path / "a.jsonl")
    state = sink.inspect()
    assert state is not None
    assert state.num_rows == 3
    assert len(sink.search(make_vectors(make_rows(1))[0], 2)) == 2
    assert sorted(path.name for path in folder.iterdir()) == ["lock", "rows.sqlite"]
    sink.close()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_recreate_spares_who_is_reading(scheme: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    load(make(path, scheme), make_rows(3))
    reader, writer = make(path, scheme), make(path, scheme)
    keys = reader.scan()
    next(keys)
    writer.begin(replace(TARGET, fingerprint="folder:4567", recreate=True), print)
    assert [item.name for item in tmp_path.iterdir()] == ["a.embedlib"]
    rows = make_rows(2)
    writer.write(rows, make_vectors(rows))
    assert len(list(keys)) == 2  # of what was there when it began
    reader.close()
    after = make(path, scheme)  # as after a kill of the writer
    assert len(after.digests([row.id for row in rows])) == 2
    after.close()
    writer.finish()
    writer.close()
    sink = make(path, scheme)
    state = sink.inspect()
    assert state is not None
    assert (state.num_rows, state.fingerprint) == (2, "folder:4567")
    sink.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk that is always full")
def test_a_lock_on_a_full_disk_is_one_line() -> None:
    with pytest.raises(SinkError, match="cannot lock jsonl:a: /dev/full: "):
        FileLock(Path("/dev/full"), "jsonl:a")


def test_a_load_killed_while_it_recreates_leaves_no_file_of_dropped_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "a.jsonl"
    load(make(path), make_rows(2))
    with monkeypatch.context() as killed, closing(make(path)) as sink:
        killed.setattr(Path, "unlink", die)
        with pytest.raises(KeyboardInterrupt):
            sink.begin(replace(TARGET, recreate=True), print)
    load_nothing(make(path))
    assert read_jsonl(path) == []


def test_a_load_killed_in_its_first_moment_is_no_load(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    folder = tmp_path / "a.jsonl.embedlib"
    folder.mkdir()
    sqlite3.connect(folder / "rows.sqlite").close()
    with closing(make(path)) as sink:
        assert sink.inspect() is None
    load(make(path), make_rows(2))
    assert len(read_jsonl(path)) == 2


def test_a_batch_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    rows = make_rows(4)
    sink = make(tmp_path / "a.jsonl")
    sink.begin(TARGET, print)
    broken = [*rows[:3], replace(rows[3], text=object())]  # type: ignore[arg-type]
    with pytest.raises(SinkError):
        sink.write(broken, make_vectors(rows))
    assert list(sink.scan()) == []
    sink.close()


@pytest.mark.parametrize(
    "call",
    [
        *(FileSink.inspect, FileSink.finish, FileSink.load_position, FileSink.drop_old),
        lambda sink: sink.begin(TARGET, print),
        lambda sink: sink.digests([ROW.id]),
        lambda sink: sink.write([ROW], make_vectors([ROW])),
        lambda sink: sink.write_metadata([ROW]),
        lambda sink: [*sink.scan()],
        lambda sink: sink.delete([ROW.id]),
        lambda sink: sink.search(np.ones(TARGET.dim, np.float32), 1),
        lambda sink: sink.stored_rows([ROW.id]),
        lambda sink: sink.save_position("7"),
    ],
)
def test_a_broken_database_is_one_line(call: Callable[[FileSink], object], tmp_path: Path) -> None:
    load(make(tmp_path / "a.jsonl"), [ROW])
    database = tmp_path / "a.jsonl.embedlib" / "rows.sqlite"
    database.write_bytes(b"not a database, but long enough to look at" * 100)
    with (
        closing(make(tmp_path / "a.jsonl")) as sink,
        pytest.raises(SinkError, match=r"^cannot use jsonl:.*: file is not a database \("),
    ):
        call(sink)


def test_no_permission_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)  # root may write anywhere, so it is pretended
    with pytest.raises(SinkError, match=r"cannot use jsonl:.*Permission denied"):
        make(tmp_path / "a.jsonl").begin(TARGET, print)


def test_a_file_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    load(make(path), [ROW])

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)  # root may read anywhere
    told = re.escape(f"cannot use jsonl:{path}: Permission denied ({path})")
    with pytest.raises(SinkError, match=f"^{told}$"):
        make_and_inspect(path)


def test_what_may_not_be_read_is_not_taken_for_nothing(
    tmp_path: Path, forbid: Callable[[str | Path], None]
) -> None:
    load(make(tmp_path / "a.jsonl"), make_rows(1))
    forbid(tmp_path / "a.jsonl.embedlib" / "rows.sqlite")
    with pytest.raises(SinkError, match=r"^jsonl:.* cannot be read: Permission denied$"):
        make_and_inspect(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("url", "message"),
    [("jsonl:", "needs a file"), ("npy:a?table=b", "npy: has no option 'table'; it has none$")],
)
def test_a_wrong_url_is_refused(url: str, message: str) -> None:
    with pytest.raises(SinkError, match=message):
        open_sink(url)


def test_a_name_that_is_too_long_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="File name too long"):
        make(tmp_path / ("a" * 300)).begin(TARGET, print)


def test_searching_nothing_says_so(tmp_path: Path) -> None:
    sink = FileSink("jsonl", tmp_path / "a.jsonl")
    with pytest.raises(SinkError, match="holds nothing"):
        sink.search(np.zeros(6, np.float32), 1)


def test_a_missing_package_names_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(name: str) -> Callable[..., object]:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("embedlib.packages.installing.import_module", missing)

    with pytest.raises(SinkError, match=re.escape(install_line("parquet"))):
        import_extra("pyarrow", "parquet")
