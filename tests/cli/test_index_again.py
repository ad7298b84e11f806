"""`embedlib index` as it is run again: of a table that grows, and of a folder that is watched."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from embedlib import index

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> str:
    return str(tiny_folder("bert"))


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.txt").write_text(f"text of {name}")
    return folder


@pytest.fixture
def out(tmp_path: Path) -> str:
    return f"jsonl:{tmp_path / 'out.jsonl'}"


def texts(out: str) -> dict[str, str]:
    lines = Path(out.removeprefix("jsonl:")).read_text(encoding="utf-8").splitlines()
    return {Path(row["source_id"]).name: row["text"] for row in map(json.loads, lines)}


def report_changes(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], Collection[str]]) -> None:
    """Let these steps change files, each as soon as the command waits, and then press Ctrl-C."""

    def changes(_folders: Any) -> Iterator[Collection[str]]:
        yield ()
        for step in steps:
            yield step()
        raise KeyboardInterrupt

    monkeypatch.setattr("embedlib.indexing.watching.folder_changes", changes)


def test_only_new_rows_of_a_table_are_read(run: Run, model: str, tmp_path: Path, out: str) -> None:
    def insert(*numbers: int) -> None:
        with closing(sqlite3.connect(tmp_path / "app.db")) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS post (id INTEGER, body TEXT)")
            rows = [(number, f"text {number}") for number in numbers]
            database.executemany("INSERT INTO post VALUES (?, ?)", rows)

    command = ("index", f"sqlite:{tmp_path / 'app.db'}", "--sql", "SELECT * FROM post", "--json")
    since = ("--since-field", "id", "--since-overlap", 0, "-m", model, "--to", out)
    insert(1, 2, 3)
    assert json.loads(run(*command, *since).stdout)["num_documents"] == 3
    insert(4, 5)
    again = run(*command, *since)
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["num_documents"] == 3  # the last one again, and the new ones
    assert len(texts(out)) == 5
    refused = run(*command, *since, "--delete-missing")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("Error: delete_missing and replace need the whole source")


def test_a_watched_folder_is_loaded_until_ctrl_c(
    run: Run, model: str, docs: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change() -> Collection[str]:
        (docs / "b.txt").write_text("another")
        return {str(docs / "b.txt")}

    report_changes(monkeypatch, change)
    done = run("index", docs, "-m", model, "--to", out, "--watch")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Indexed 3 documents as 3 rows into jsonl:")
    assert lines[1].startswith("Indexed 1 document as 1 row into jsonl:")
    assert lines[2].startswith("Indexed 4 documents as 4 rows into jsonl:")
    assert "embedded             4" in done.stdout
    assert texts(out)["b.txt"] == "another"


def test_each_pass_opens_the_destination_itself(
    run: Run, model: str, docs: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def note(source: Any, sink: Any, **options: Any) -> Any:
        sinks.append(sink if isinstance(sink, str) else type(sink).__name__)
        return index(source, sink, **options)

    sinks: list[str] = []
    monkeypatch.setattr("embedlib.indexing.pipeline.index", note)
    report_changes(monkeypatch, lambda: {str(docs / "b.txt")})
    assert run("index", docs, "-m", model, "--to", out, "--watch").exit_code == 0
    assert sinks == ["FileSink", out], "the first load has closed the one that was checked"


def test_a_bad_file_of_any_pass_decides_the_exit_code(
    run: Run, model: str, docs: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil() -> Collection[str]:
        (docs / "b.txt").write_bytes(b"\xff")
        return {str(docs / "b.txt")}

    def repair() -> Collection[str]:
        (docs / "b.txt").write_text("another")
        return {str(docs / "b.txt")}

    report_changes(monkeypatch, spoil, repair)
    done = run("index", docs, "-m", model, "--to", out, "--watch", "--json")
    assert done.exit_code == 3, done.output
    *passes, total = map(json.loads, done.stdout.splitlines())
    assert [report["num_bad"] for report in (*passes, total)] == [0, 1, 0, 1]
    assert total["seconds"] == pytest.approx(sum(report["seconds"] for report in passes))
    assert (passes[0]["num_other"], total["num_other"]) == (0, None)
    assert texts(out)["b.txt"] == "another"


def test_files_that_are_gone_are_deleted_while_a_folder_is_watched(
    run: Run, model: str, docs: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove() -> Collection[str]:
        (docs / "b.txt").unlink()
        return {str(docs / "b.txt")}

    report_changes(monkeypatch, remove)
    options = ("--watch", "--delete-missing", "--max-delete", 1)
    assert run("index", docs, "-m", model, "--to", out, *options).exit_code == 0
    assert set(texts(out)) == {"a.txt", "c.txt"}


def test_ctrl_c_before_the_first_file_is_the_end(
    run: Run, model: str, tmp_path: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report_changes(monkeypatch)
    (tmp_path / "empty").mkdir()
    done = run("index", str(tmp_path / "empty"), "-m", model, "--to", out, "--watch")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "waiting until there is one" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["docs/a.txt", "--watch"], "watch needs folders"),
        (["docs", "--watch", "--recreate"], "watch and recreate exclude one another"),
        (["docs", "--watch", "--ray"], "--watch is for folders, and not with --ray"),
        (["docs", "--sparse", "m", "--ray"], "leave sparse (--sparse) or ray (--ray) out"),
        (["sqlite:x", "--sql", "SELECT 1", "--watch"], "not with --sql"),
        (["docs", "--since-field", "x"], "is for the rows of a query"),
    ],
)
def test_what_does_not_go_together_is_refused(
    arguments: list[str],
    message: str,
    run: Run,
    docs: Path,
    out: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(docs.parent)
    refused = run("index", *arguments, "-m", "no/such/model", "--to", out)
    assert refused.exit_code in (1, 2)
    assert message in refused.stderr
