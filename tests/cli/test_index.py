"""`embedlib index`, `search`, `status` and `bench-write`, with a tiny model and files."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from embedlib.embedder import Embedder
from embedlib.errors import SinkError
from embedlib.progress.phases import Progress
from embedlib.progress.screens import Look, Reading
from embedlib.reranker import Reranker
from embedlib.testing import FakeSink, FakeStore
from tests.tiny_models.static import write_model2vec

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that loads at once."""
    folder = tmp_path_factory.mktemp("static")
    return str(write_model2vec(folder, normalize=True, max_length=None))


@pytest.fixture(scope="module")
def bert(tiny_folder: Callable[[str], Path]) -> str:
    """A model as most are: it reads a text up to a limit, with OpenVINO."""
    return str(tiny_folder("bert"))


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    for name, text in (("a.txt", "copy a folder"), ("b.txt", "measure time"), ("c.txt", "choose")):
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def out(tmp_path: Path) -> str:
    return f"jsonl:{tmp_path / 'out.jsonl'}"


def rows(out: str) -> dict[str, Any]:
    lines = Path(out.removeprefix("jsonl:")).read_text(encoding="utf-8").splitlines()
    return {row["source_id"]: row for row in map(json.loads, lines)}


def test_a_folder_is_loaded_and_loaded_again(run: Run, bert: str, docs: Path, out: str) -> None:
    first = run("index", docs, "--model", bert, "--to", out)
    assert first.exit_code == 0, first.output
    assert "Indexed 3 documents as 3 rows into jsonl:" in first.stdout
    stored = rows(out)
    assert sorted(stored) == [f"{docs}/{name}.txt" for name in "abc"]
    with Embedder(bert) as embedder:
        for row in stored.values():
            expected = embedder.encode_document([row["text"]])[0]
            np.testing.assert_allclose(row["embedding"], expected, atol=1e-5)
    second = run("index", docs, "--model", bert, "--to", out)
    assert second.exit_code == 0
    assert "embedded             0" in second.stdout
    assert "unchanged            3" in second.stdout
    found = run("search", "time", "--to", out, "--max-active-dims", 9)
    assert found.exit_code == 2
    assert f"--max-active-dims is for sparse vectors, and {out} has none" in found.stderr


def test_a_folder_is_the_same_source_by_any_path(
    run: Run, model: str, docs: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(docs.parent)
    run("index", "docs", "-m", model, "--to", out)
    for path in (docs, "./docs/", docs / "a.txt"):
        report = json.loads(run("index", path, "-m", model, "--to", out, "--json").stdout)
        assert (report["num_embedded"], report["num_rows"] + report["num_other"]) == (0, 3)
    monkeypatch.chdir("/")  # as cron does
    found = run("index", docs, "-m", model, "--to", out, "--id-root", docs.parent)
    assert "unchanged            3" in found.stdout


def test_rows_loaded_by_an_absolute_path_are_found_again(
    run: Run, model: str, docs: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by an earlier version, which took every path as it was written."""
    run("index", docs, "-m", model, "--to", out)
    assert set(rows(out)) == {f"{docs}/{name}.txt" for name in "abc"}
    (docs / "new.txt").write_text("another")
    monkeypatch.chdir(docs.parent)
    for options in (["--dry-run"], []):
        report = json.loads(
            run("index", "docs", "-m", model, "--to", out, "--json", *options).stdout
        )
        assert (report["num_embedded"], report["num_unchanged"]) == (1, 3)
    assert f"{docs}/new.txt" in rows(out)


def test_files_that_count_alike_are_told_apart(
    run: Run, model: str, out: str, tmp_path: Path
) -> None:
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for file in files:
        file.write_text(f"id,text\n1,{file.name}\n")
    alike = run("index", *files, "-m", model, "--to", out)
    assert alike.exit_code == 3
    assert "must be unique: id_prefix='file' (--id-prefix file) tells files apart" in alike.stderr
    done = run("index", *files, "-m", model, "--to", out, "--id-prefix", "file")
    assert done.exit_code == 0
    assert {f"{file}#1" for file in files} <= set(rows(out))


def test_what_vanished_is_deleted_when_asked(run: Run, model: str, docs: Path, out: str) -> None:
    run("index", docs, "-m", model, "--to", out)
    (docs / "a.txt").unlink()
    refused = run("index", docs, "-m", model, "--to", out, "--delete-missing")
    assert refused.exit_code == 1
    assert "1 of 3 rows are missing in the source" in refused.stderr
    assert len(rows(out)) == 3
    done = run("index", docs, "-m", model, "--to", out, "--delete-missing", "--max-delete", "0.5")
    assert done.exit_code == 0
    assert "deleted              1  no longer in the source" in done.stdout
    assert len(rows(out)) == 2


def test_rows_of_other_documents_are_told(
    run: Run, model: str, docs: Path, out: str, tmp_path: Path
) -> None:
    whole = run("index", docs, "-m", model, "--to", out)
    assert "  other" not in whole.stdout
    one = run("index", docs / "a.txt", "-m", model, "--to", out)
    assert one.exit_code == 0
    told = "other                2  stored rows of documents that were not read; --delete-missing"
    assert told in one.stdout
    as_json = run("index", docs / "a.txt", "-m", model, "--to", out, "--json")
    report = json.loads(as_json.stdout)
    assert (report["num_other"], report["num_unchanged"], report["name"]) == (2, 1, out)


@pytest.mark.parametrize("scheme", ["jsonl", "npy", "parquet", "edge"])
def test_a_document_that_became_shorter_is_not_found_by_its_old_text(
    scheme: str, run: Run, model: str, tmp_path: Path
) -> None:
    if scheme == "edge":
        pytest.importorskip("qdrant_edge")
    page, out = tmp_path / "page.md", f"{scheme}:{tmp_path / 'out'}"
    page.write_text("".join(f"# Part {n}\n\nThe secret of part {n}.\n\n" for n in range(6)))
    arguments = ("index", page, "-m", model, "--to", out, "--chunk-tokens", 16, "--json")
    num_rows = json.loads(run(*arguments).stdout)["num_rows"]
    assert num_rows >= 6
    page.write_text("One line.\n")
    assert json.loads(run(*arguments).stdout)["num_deleted"] == num_rows - 1
    found = run("search", "The secret of part 4.", "--to", out, "--json").stdout.splitlines()
    assert [json.loads(line)["text"] for line in found] == ["One line."]


def test_recreating_from_an_export_that_failed_is_refused(
    run: Run, model: str, docs: Path, out: str, tmp_path: Path
) -> None:
    run("index", docs, "-m", model, "--to", out)
    (tmp_path / "empty.csv").write_text("id,text\n")
    refused = run("index", tmp_path / "empty.csv", "-m", model, "--to", out, "--recreate")
    assert refused.exit_code == 1
    assert refused.stderr.splitlines() == [
        f"empty files were skipped: '{tmp_path / 'empty.csv'}'",
        f"Error: the source has no documents, and recreate would drop the 3 rows of {out}; nothing "
        "was dropped; check the source",
    ]
    assert len(rows(out)) == 3
    done = run("index", docs / "a.txt", "-m", model, "--to", out, "--recreate")
    assert done.stderr.splitlines() == [f"recreate drops the 3 rows of {out}"]
    assert len(rows(out)) == 1


def test_bad_rows_change_the_exit_code_and_are_written_down(
    run: Run, model: str, tmp_path: Path, out: str
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"id": 1, "text": "good", "page": 7}\n{"id": 2}\nnot json\n')
    errors = tmp_path / "errors.jsonl"
    done = run("index", source, "-m", model, "--to", out, "--errors-file", errors)
    assert done.exit_code == 3, done.output
    assert "skipped              2  bad rows" in done.stdout
    assert len(errors.read_text().splitlines()) == 2
    assert "text is" in done.stderr  # the guess is told
    assert rows(out)["1"]["metadata"] == {"source": "1", "page": 7}
    stopped = run("index", source, "-m", model, "--to", out, "--on-error", "stop")
    assert stopped.exit_code == 1
    assert stopped.stderr.splitlines()[-1].startswith("Error: ")


@pytest.mark.parametrize("source", ["docs", "docs/a.txt", "app.db"])
def test_an_errors_file_that_is_a_source_is_left_alone(
    source: str, run: Run, model: str, docs: Path, out: str, tmp_path: Path
) -> None:
    read = docs / "a.txt" if source != "app.db" else tmp_path / source
    read.touch()
    before = read.read_bytes()
    arguments = [tmp_path / source] if source != "app.db" else [f"sqlite:{read}", "--sql", "SELECT"]
    done = run("index", *arguments, "-m", model, "--to", out, "--errors-file", read)
    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        f"Error: errors_file {str(read)!r} is also an input, which writing would destroy; name "
        "another file"
    ]
    assert read.read_bytes() == before
    assert not Path(out.removeprefix("jsonl:")).exists()


def test_standard_input_needs_its_format(run: Run, model: str, out: str) -> None:
    unsure = run("index", "-m", model, "--to", out, stdin="one\n")
    assert unsure.exit_code == 1
    assert "--input-format" in unsure.stderr
    done = run("index", "-m", model, "--to", out, "--input-format", "lines", stdin="one\n\ntwo\n")
    assert done.exit_code == 0, done.output
    assert sorted(row["text"] for row in rows(out).values()) == ["one", "two"]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lines of a log in which ten seconds pass with every phase."""
    lines: list[str] = []

    class Spy(Progress):
        def watch(self, activity: str, unit: str = "", read: Any = Reading) -> None:
            super().watch(activity, unit, read)
            reading = read()
            look = Look(activity=activity, unit=unit, reading=reading, seconds=10, rate=0)
            lines.append(look.as_line())

    monkeypatch.setattr("embedlib.cli.progress.Progress", Spy)
    return lines


def test_the_phases_of_a_load(
    run: Run, model: str, docs: Path, out: str, watched: list[str]
) -> None:
    done = run("index", docs, "-m", model, "--to", out)
    assert done.exit_code == 0, done.output
    assert watched == [
        f"Loading {model}: 10 s",
        "Opening the destination: 10 s",
        "Indexing: 10 s, 0 of 3 docs",
        "Making the rows ready for search: 10 s",
    ]
    assert done.stderr == ""  # it took no ten seconds


def test_an_interrupted_load_says_what_is_kept_and_how_to_go_on(
    run: Run, model: str, docs: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("index", docs, "-m", model, "--to", out)
    assert run(*arguments, "--limit", 1).exit_code == 0

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("embedlib.indexing.run.Run.finish", interrupted)
    done = run(*arguments)
    assert done.exit_code == 130
    assert done.stderr.splitlines()[-1] == (
        "Interrupted: at least 3 rows of about 3 documents are stored; run the same command again "
        "to go on"
    )


def test_a_load_that_is_interrupted_before_its_first_row_counts_none(
    run: Run, model: str, docs: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("embedlib.indexing.run.Run.load", interrupted)
    done = run("index", docs, "-m", model, "--to", out)
    assert done.stderr.splitlines()[-1] == "Interrupted: run the same command again to go on"
    monkeypatch.setattr("embedlib.indexing.run.Run.count", interrupted)
    done = run("index", docs, "-m", model, "--to", out, "--dry-run")
    assert done.stderr.splitlines()[-1] == "Interrupted."


def test_quiet_leaves_results_and_errors(run: Run, model: str, tmp_path: Path, out: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"id": 1, "text": "good"}\n{"id": 2}\n')
    done = run("index", source, "-m", model, "--to", out, "-q")
    assert (done.exit_code, done.stderr) == (3, "")
    assert "skipped              1  bad row\n" in done.stdout
    refused = run("index", "no-such-file", "-m", model, "--to", out, "--quiet")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("Error: ")


def test_standard_input_may_be_closed(
    run: Run, model: str, docs: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import embedlib.cli.index as command

    monkeypatch.setattr(command, "sys", SimpleNamespace(stdin=None))
    monkeypatch.setattr("embedlib.cli.progress.sys", SimpleNamespace(stderr=None))
    for sources in ((), ("-", "--input-format", "lines")):
        refused = run("index", *sources, "-m", model, "--to", out)
        assert refused.exit_code == 2
        assert "standard input is closed" in refused.stderr
    assert run("index", docs, "-m", model, "--to", out).exit_code == 0
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(command, "sys", SimpleNamespace(stdin=terminal))
    assert (
        "name files or folders, or pipe texts in" in run("index", "-m", model, "--to", out).stderr
    )


def test_sql_is_read(run: Run, model: str, tmp_path: Path, out: str) -> None:
    import sqlite3

    with sqlite3.connect(tmp_path / "app.db") as database:
        database.execute("CREATE TABLE post (id INTEGER, body TEXT)")
        database.execute("INSERT INTO post VALUES (1, 'a text')")
    database.close()
    url = f"sqlite:{tmp_path / 'app.db'}"
    query = "SELECT id, body FROM post"
    done = run("index", url, "--sql", query, "-m", model, "--to", out)
    assert done.exit_code == 0, done.output
    assert rows(out)["1"]["text"] == "a text"
    for sources in ((), (url, url)):
        refused = run("index", *sources, "--sql", query, "-m", model, "--to", out)
        assert refused.exit_code == 2
        assert "--sql needs the URL of one database" in refused.stderr


def test_a_wrong_option_is_told_before_the_model_is_loaded(run: Run, docs: Path, out: str) -> None:
    refused = run("index", docs, "-m", "no/such/model", "--to", out, "--batch-rows", 0)
    assert refused.stderr == "Error: batch_rows = 0; it must be a whole number of at least 1\n"


def test_a_dry_run_writes_nothing(
    run: Run, model: str, docs: Path, out: str, tmp_path: Path
) -> None:
    done = run("index", docs, "-m", model, "--to", out, "--dry-run")
    assert done.exit_code == 0, done.output
    assert "Would index 3 documents as 3 rows" in done.stdout
    assert "embedding would take about 0 s here, by the time of 2 rows" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["docs"]


def test_searching_finds_the_text_itself(run: Run, model: str, docs: Path, out: str) -> None:
    run("index", docs, "-m", model, "--to", out)
    found = run("search", "measure time", "--to", out, "-k", 2)
    assert found.exit_code == 0, found.output
    assert found.stdout.splitlines()[:2] == [f"1.0000  {docs}/b.txt", "       measure time"]
    as_json = run("search", "measure time", "--to", out, "-k", 1, "--json", "--model", model)
    hit = json.loads(as_json.stdout)
    assert (hit["source_id"], hit["text"]) == (f"{docs}/b.txt", "measure time")
    assert "vector_score" not in hit
    where = f'source != "{docs}/b.txt"'
    others = run("search", "measure time", "--to", out, "--where", where, "--json")
    assert len(others.stdout.splitlines()) == 2
    assert "b.txt" not in others.stdout
    none = run("search", "measure time", "--to", out, "--where", "source > 1")
    assert (none.exit_code, none.stdout) == (0, "")
    assert none.stderr.endswith(
        "no row was found that passes --where 'source > 1'; a value of another type does not "
        'pass: "2021" is not 2021\n'
    )
    none = run("search", "measure time", "--to", out, "--where", 'source = "1" and year = "2"')
    assert none.stderr.endswith("""that passes --where 'source = "1" and year = "2"'\n""")
    none = run("search", "measure time", "--to", out, "--min-score", "2")
    assert none.stderr.endswith("no row was found with a score of 2 or more\n")
    assert not run("search", "x", "--to", out, "--where", "source > 1", "-q").output


def test_searching_with_a_reranker(
    run: Run,
    bert: str,
    docs: Path,
    out: str,
    tiny_folder: Callable[[str], Path],
    watched: list[str],
) -> None:
    run("index", docs, "-m", bert, "--to", out)
    reranker = tiny_folder("bert-cross-encoder")
    watched.clear()
    done = run("search", "measure time", "--to", out, "--rerank", reranker, "--json")
    assert done.exit_code == 0, done.output
    assert watched == [f"Loading {bert}: 10 s", f"Loading {reranker}: 10 s", "Searching: 10 s"]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    with Reranker(reranker) as ranking:
        expected = ranking.rank("measure time", [hit["text"] for hit in found])
    assert [entry["corpus_id"] for entry in expected] == [0, 1, 2]
    scores = [entry["score"] for entry in expected]
    assert [hit["score"] for hit in found] == pytest.approx(scores, abs=1e-6)
    assert max(hit["vector_score"] for hit in found) == pytest.approx(1)
    least = found[1]["score"]
    few = run("search", "measure time", "--to", out, "--rerank", reranker, "--min-score", least)
    assert len(few.stdout.splitlines()) == 4


def test_a_destination_knows_its_model(
    run: Run, model: str, docs: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nameless = run("index", docs, "--to", out)
    assert nameless.exit_code == 2
    assert f"name a model with --model; {out} holds no rows of one" in nameless.stderr
    nameless = run("index", docs, "--to", out, "--replace")
    assert "name a model with --model; --replace changes it, and" in nameless.stderr
    monkeypatch.setenv("EMBEDLIB_MODEL", model)
    assert run("index", docs, "--to", out).exit_code == 0
    monkeypatch.setenv("EMBEDLIB_MODEL", "no/such/model")
    for options in ([], ["--recreate"]):
        again = run("index", docs, "--to", out, *options)
        assert again.exit_code == 0, again.output


def test_the_model_has_to_fit_rows_that_stay(
    run: Run, model: str, docs: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str, _: object, state: object, *__: object) -> None:
        asked.append((name, state is not None))
        raise SinkError("stop")

    run("index", docs, "-m", model, "--to", out)
    changed = run("index", docs, "--to", out, "--replace")
    assert "name a model with --model; --replace changes it" in changed.stderr
    asked: list[tuple[str, bool]] = []
    monkeypatch.setattr("embedlib.indexing.stored_model.open_embedder", load)
    run("index", docs, "--to", out)
    run("index", docs, "--to", out, "--recreate")
    monkeypatch.setattr("embedlib.indexing.workers.state_to_fit", None)
    run("index", docs, "--to", out, "--recreate", "-m", "another")
    assert asked == [(model, True), (model, False), ("another", False)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--top-k", 0], "top_k = 0; it must be a whole number of at least 1"),
        ([" "], "question = ' '; it is empty; ask something"),
        (
            ["x", "--where", "lang = de"],
            "--where: character 8, 'de': a value must be here; put a string in quotes: \"de\"",
        ),
    ],
)
def test_a_question_is_checked_before_the_model_is_loaded(
    arguments: list[Any], message: str, run: Run, out: str
) -> None:
    assert run("search", *arguments, "--to", out).stderr == f"Error: {message}\n"


def test_a_model_folder_is_found_from_another_folder(
    run: Run, model: str, docs: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(model).parent)
    run("index", docs, "-m", Path(model).name, "--to", out)
    assert json.loads(run("status", out, "--json").stdout)["model"] == model


def test_searching_with_other_options_is_refused(run: Run, bert: str, docs: Path, out: str) -> None:
    run("index", docs, "-m", bert, "--to", out, "--max-seq-tokens", 16)
    refused = run("search", "x", "--to", out)
    assert refused.exit_code == 1
    assert "search with the same model and options" in refused.stderr
    assert run("search", "x", "--to", out, "--max-seq-tokens", 16).exit_code == 0


def test_a_chunk_shows_its_place(run: Run, model: str, tmp_path: Path, out: str) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Folders\n\nCopy a folder here.\n\n# Time\n\nMeasure the time it takes.\n")
    run("index", page, "-m", model, "--to", out, "--chunk-tokens", 12)
    found = run("search", "Measure the time it takes.", "--to", out, "-k", 9)
    assert f"{page} [" in found.stdout
    assert "  Time" in found.stdout


def test_status_tells_what_is_there(run: Run, model: str, docs: Path, out: str) -> None:
    empty = run("status", out)
    assert empty.exit_code == 1
    assert "holds nothing; load it with embedlib index" in empty.stderr
    run("index", docs, "-m", model, "--to", out)
    shown = run("status", out)
    assert "rows           3" in shown.stdout
    assert "precision      float32" in shown.stdout
    assert model in shown.stdout
    state = json.loads(run("status", out, "--json").stdout)
    assert (state["num_rows"], state["similarity"]) == (3, "cosine")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["docs", "--to", "nowhere:x"], "no destination begins with 'nowhere:'"),
        (["no-such-folder", "--to", "jsonl:x"], "no-such-folder"),
        (["sqlite:app.db", "--to", "jsonl:x"], "a database URL needs --sql"),
        (["docs", "--to", "jsonl:x", "--halfvec"], "has no option 'halfvec'"),
        (["docs", "--to", "jsonl:x", "--chunk-tokens", "9999"], "the model has room for"),
        (["docs", "--to", "jsonl:x", "--shard", "9"], "shard = '9'"),
    ],
)
def test_a_wrong_command_is_one_line(
    arguments: list[str],
    message: str,
    run: Run,
    bert: str,
    docs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("index", *arguments, "-m", bert)
    assert result.exit_code == 1, result.output
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["docs"]


@pytest.mark.parametrize("to", ["postgresql://h/db?", "postgresql://h/db?table=t&"])
def test_an_option_of_the_command_joins_those_of_the_url(
    to: str, run: Run, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(url: str) -> None:
        raise SinkError(f"opened {url}")

    monkeypatch.setattr("embedlib.indexing.sinks.opening.open_sink", refuse)
    done = run("index", docs, "--to", to[:-1], "--halfvec")
    assert done.stderr == f"Error: opened {to}halfvec=true\n"


@pytest.mark.parametrize("command", ["index", "chunks"])
def test_what_a_library_says_of_damaged_files_is_not_shown(
    command: str, run: Run, model: str, docs: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("pypdf")
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    options = ("--to", out) if command == "index" else ()
    assert run(command, docs, "-m", model, *options).exit_code == 0
    assert logger.level == logging.ERROR


def test_a_destination_is_closed_where_the_model_is_not_found(
    run: Run, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Watched(FakeSink):
        def close(self) -> None:
            closed.append(self.name)

    closed: list[str] = []
    monkeypatch.setattr("embedlib.indexing.sinks.opening.open_sink", lambda _: Watched(FakeStore()))
    assert run("index", docs, "-m", "./no/model", "--to", "fake:").exit_code == 1
    assert closed == ["fake:"]


def test_workers_of_a_cluster_find_the_destination_by_its_url(
    run: Run, docs: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tests/ray` does it with Ray."""

    class Watched(FakeSink):
        def close(self) -> None:
            asked.append("destination closed")

    def find_workers() -> Callable[..., Any]:
        def workers(model: str, address: str, **given: Any) -> Any:
            asked.append((model, address, given["num_workers"], given["state"]))
            return SimpleNamespace(model_name=model, close=lambda: asked.append("workers closed"))

        return workers

    def load(_: object, destination: object, **given: Any) -> None:
        asked.append(destination)
        raise SinkError("stop")

    asked: list[Any] = []
    monkeypatch.setattr("embedlib.indexing.sinks.opening.open_sink", lambda _: Watched(FakeStore()))
    monkeypatch.setattr("embedlib.indexing.workers.find_workers", find_workers)
    monkeypatch.setattr("embedlib.indexing.pipeline.index", load)
    run("index", docs, "-m", "a/model", "--to", out, "--ray", "local", "--ray-workers", 2)
    workers = ("a/model", "local", 2, None)
    assert asked[:3] == [workers, "destination closed", out]
    assert asked[3:] == ["workers closed", "destination closed"]


def test_a_name_with_a_line_break_stays_on_its_line(
    run: Run, model: str, out: str, tmp_path: Path
) -> None:
    table = tmp_path / "a\nb.csv"
    table.write_text("id,words\n1,some words of a text\n")
    done = run("index", table, "-m", model, "--to", out)
    assert done.exit_code == 0, done.output
    assert "a\\nb.csv: text is the field 'words'" in done.stderr
    refused = run("index", table, "-m", model, "--to", out, "--text-field", "other")
    assert refused.exit_code == 1
    assert "a\\nb.csv: there is no field 'other'" in refused.stderr.splitlines()[-1]


def test_bench_write_measures_and_spares_other_rows(
    run: Run, model: str, docs: Path, out: str, tmp_path: Path
) -> None:
    to = f"jsonl:{tmp_path / 'bench.jsonl'}"
    result = tmp_path / "result.json"
    for _ in range(2):
        done = run(
            *("bench-write", "--to", to, "--num-rows", 300, "--rounds", 2, "--dim", 4),
            *("--model", model, "--num-texts", 20, "--json", result),
        )
        assert done.exit_code == 0, done.output
    assert "| writing 300 x 4, batches of 2,048 " in done.stdout
    numbers = json.loads(result.read_text())
    assert (len(numbers["rows_per_s"]), len(numbers["encode_s"])) == (2, 3)
    assert len(numbers["index_s"]) == 2
    lost = run("bench-write", "--to", to, "--num-rows", 3, "--json", tmp_path / "none" / "x.json")
    assert (lost.exit_code, lost.stdout) == (2, "")  # before anything is measured
    assert lost.stderr.splitlines()[-1].endswith(": no such folder; create it first")
    run("index", docs, "-m", model, "--to", out)
    refused = run("bench-write", "--to", out)
    assert refused.exit_code == 1
    assert "bench-write needs a new destination" in refused.stderr
    assert len(rows(out)) == 3


@pytest.mark.parametrize("peer", ["langchain", "qdrant-client"])
def test_a_peer_needs_its_own_server(run: Run, out: str, peer: str) -> None:
    refused = run("bench-write", "--to", out, f"--vs-{peer}")
    scheme = {"langchain": "postgresql", "qdrant-client": "qdrant"}[peer]
    assert refused.exit_code == 1
    assert f"--vs-{peer} needs a {scheme}:// destination, not " in refused.stderr
