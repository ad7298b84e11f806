"""`embedlib index` as it is run again: of a table that grows."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import Result

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
    assert refused.stderr.startswith(
        "Error: delete_missing needs the whole source, and since_field"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
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
