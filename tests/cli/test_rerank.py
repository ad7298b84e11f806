from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from embedlib import Reranker
from tests.waiting import WAIT_SECONDS

Run = Callable[..., Result]
QUERY = "the city"
CANDIDATES = ["a river runs", "the city is large", "over the lazy dog", "a b c"]


@pytest.fixture(scope="module")
def folder(tiny_folder: Callable[[str], Path]) -> Path:
    return tiny_folder("bert-cross-encoder")


@pytest.fixture(scope="module")
def ranking(folder: Path) -> list[dict[str, Any]]:
    """What the library makes of it."""
    with Reranker(folder, engine_cache_dir=folder / "cache") as reranker:
        found: list[dict[str, Any]] = reranker.rank(QUERY, CANDIDATES)
        raw = reranker.rank(QUERY, CANDIDATES, raw_scores=True)
        prompted = reranker.rank(QUERY, CANDIDATES, prompt="search ")
    assert len({json.dumps(each) for each in (found, raw, prompted)}) == 3
    return [*found, *raw, *prompted]


@pytest.fixture
def rerank(run: Run, folder: Path) -> Run:
    """Run the command with the tiny model."""
    more = ("--model", folder, "--engine-cache-dir", folder / "cache")
    return lambda *arguments, **rest: run("rerank", *arguments, *more, **rest)


def rows(done: Result) -> list[dict[str, Any]]:
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def scores(rows: list[dict[str, Any]]) -> list[Any]:
    return [pytest.approx(row["score"], rel=1e-4) for row in rows]


def test_a_table_of_lines(rerank: Run, ranking: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "candidates.txt"
    path.write_text("".join(f"{text}\n" for text in CANDIDATES))
    done = rerank(QUERY, path)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        f"{entry['score']:8.4f}  {CANDIDATES[entry['corpus_id']]}" for entry in ranking[:4]
    ]


def test_json_of_json_lines(rerank: Run, ranking: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "hits.jsonl"
    path.write_text(
        "".join(
            json.dumps({"body": text, "id": f"d{i}"}) + "\n" for i, text in enumerate(CANDIDATES)
        )
    )
    found = rows(rerank(QUERY, path, "--field", "body", "--json", "-k", 2))
    assert [(row["corpus_id"], row["id"], row["body"]) for row in found] == [
        (entry["corpus_id"], f"d{entry['corpus_id']}", CANDIDATES[entry["corpus_id"]])
        for entry in ranking[:2]
    ]
    assert [row["score"] for row in found] == scores(ranking[:2])


def test_empty_lines_are_no_candidates(rerank: Run, ranking: list[dict[str, Any]]) -> None:
    found = rows(rerank(QUERY, "--json", stdin="\n \n" + "\n\n".join(CANDIDATES)))
    assert [row["corpus_id"] for row in found] == [
        2 + 2 * entry["corpus_id"] for entry in ranking[:4]
    ]


def test_messages_count_empty_lines(rerank: Run) -> None:
    text = "\n\n a\n\n" + "the city " * 60 + "\n"
    done = rerank(QUERY, "--on-truncate", "error", stdin=text)
    assert "Error: 1 text is too long (row 4: " in done.stderr
    found = rows(rerank(QUERY, "--on-truncate", "ignore", "--json", "-k", 1, stdin=text))
    assert len(found) == 1
    assert found[0]["corpus_id"] in (2, 4)


def test_a_warning_is_one_line_without_our_code(folder: Path) -> None:
    # In a process of its own, since pytest takes warnings before they are printed.
    command = [sys.executable, "-m", "embedlib", "rerank", QUERY, "--model", str(folder)]
    done = subprocess.run(
        [*command, "--engine-cache-dir", str(folder / "cache")],
        input="the city " * 60,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert done.stderr.startswith("Warning: 1 text is too long (row 0: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("option", "start"), [("--raw-scores", 4), ("--prompt=search ", 8)])
def test_options_of_the_call(
    option: str, start: int, rerank: Run, ranking: list[dict[str, Any]]
) -> None:
    found = rows(rerank(QUERY, option, "--json", stdin="\n".join(CANDIDATES)))
    assert [row["score"] for row in found] == scores(ranking[start : start + 4])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--instruction", "find"], "Error: instruction = 'find'; this model has no template"),
        (["no-such-file"], "Error: cannot read 'no-such-file'"),
        (["-k", "0"], "0 is not in the range x>=1"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, rerank: Run) -> None:
    done = rerank(QUERY, *arguments, stdin="a\n")
    assert done.exit_code != 0
    assert message in done.stderr


def test_a_template_that_the_folder_lacks(
    run: Run, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    arguments = (
        "rerank",
        QUERY,
        "--model",
        tiny_folder("qwen3-asked"),
        "--engine-cache-dir",
        tmp_path,
    )
    template = ("--template", "qwen3-reranker")
    plain = run(*arguments, *template, "--on-truncate", "ignore", stdin="a\n")
    told = run(*arguments, *template, "--instruction", "find", "--on-truncate=ignore", stdin="a\n")
    assert (plain.exit_code, told.exit_code) == (0, 0), told.output
    assert plain.stdout != told.stdout


def test_a_long_candidate_is_shown_on_one_line(rerank: Run) -> None:
    done = rerank(QUERY, "--on-truncate", "ignore", stdin="the\tcity " * 30)
    [line] = done.stdout.splitlines()
    assert line.endswith(" the city the ci...")
    assert len(line) == 72 + 10


def test_an_embedding_model_is_refused(run: Run, tiny_folder: Callable[[str], Path]) -> None:
    done = run("rerank", QUERY, "--model", tiny_folder("bert"), stdin="a\n")
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: ")


@pytest.mark.parametrize("options", [[], ["--quiet"]])
def test_candidates_that_are_typed(options: list[str], folder: Path) -> None:
    keyboard, terminal = os.openpty()
    try:
        os.write(keyboard, b"a city\n\x04")
        done = subprocess.run(
            [sys.executable, "-m", "embedlib", "rerank", "a", "--model", str(folder), *options],
            stdin=terminal,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
        )
    finally:
        os.close(keyboard)
        os.close(terminal)
    told = "reading texts from this terminal, one per line; Ctrl-D ends them\n"
    assert done.stderr.startswith(told) == (not options)
    assert done.stdout.endswith("  a city\n")
