from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from embedlib import Classifier
from embedlib.cli import classify as classify_module
from embedlib.errors import TruncationWarning
from embedlib.progress.phases import Progress
from embedlib.progress.screens import Reading

Run = Callable[..., Result]
TEXTS = ["a river runs", "the city is large", "hello world"]


@pytest.fixture(scope="module")
def folder(tiny_folder: Callable[[str], Path]) -> Path:
    return tiny_folder("bert-classifier")


@pytest.fixture
def classify(run: Run, folder: Path) -> Run:
    """Run the command with the tiny model."""
    more = ("--engine-cache-dir", folder / "cache")
    return lambda *arguments, **rest: run("classify", folder, *arguments, *more, **rest)


def test_the_same_as_the_library(
    classify: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classify_module, "_CHUNK_TEXTS", 2)
    path = tmp_path / "texts.jsonl"
    path.write_text(
        "".join(json.dumps({"text": text, "n": i}) + "\n" for i, text in enumerate(TEXTS))
    )
    with Classifier(folder, engine_cache_dir=folder / "cache") as classifier:
        expected = classifier.predict(TEXTS)
        raw = classifier.predict(TEXTS, raw_scores=True)
    for option, results in (((), expected), (("--raw-scores",), raw)):
        done = classify(path, "--json", "--top-k", 2, *option)
        assert done.exit_code == 0, done.output
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert [(row["text"], row["n"]) for row in rows] == list(zip(TEXTS, range(3), strict=True))
        for row, labels in zip(rows, results, strict=True):
            assert [each["label"] for each in row["labels"]] == [x["label"] for x in labels[:2]]
            assert [each["score"] for each in row["labels"]] == pytest.approx(
                [each["score"] for each in labels[:2]], rel=1e-4
            )
    lines = classify(path).stdout.splitlines()
    assert lines == [
        f"{labels[0]['label']} {labels[0]['score']:.4f}  {text}"
        for labels, text in zip(expected, TEXTS, strict=True)
    ]


def test_an_input_that_fails_is_named(classify: Run) -> None:
    done = classify("/proc/self/mem")  # EIO, of its first byte
    message = "Error: cannot read '/proc/self/mem': Input/output error\n"
    assert (done.exit_code, done.stderr) == (1, message)


def test_texts_are_counted_while_they_are_classified(
    classify: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "texts.txt", []
    path.write_text("".join(f"{text}\n" for text in TEXTS))

    class Spy(Progress):
        def watch(
            self, activity: str, unit: str = "", read: Callable[[], Reading] = Reading
        ) -> None:
            super().watch(activity, unit, read)
            self.read = read

        def __exit__(self, *error: object) -> None:
            seen.append(self.read())
            super().__exit__(*error)

    monkeypatch.setattr("embedlib.cli.progress.Progress", Spy)
    assert classify(path, "--json").exit_code == 0
    assert seen == [Reading(done=3, total=3)]


def test_a_missing_file_is_told(classify: Run) -> None:
    done = classify("no-such-file")
    assert done.exit_code == 1
    assert "Error: cannot read 'no-such-file'" in done.stderr


def test_messages_count_the_texts_of_all_inputs(
    classify: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classify_module, "_CHUNK_TEXTS", 2)
    path = tmp_path / "texts.txt"
    path.write_text("a\nb\na\n" + "the city " * 60 + "\n")
    done = classify(path, "--on-truncate", "error")
    assert "Error: 1 text is too long (row 3: " in done.stderr
    with pytest.warns(TruncationWarning, match=r"row 3: .* Classifier \(--on-truncate\)$"):
        classify(path)


def test_fields_that_no_json_has_are_printed_as_json(classify: Run, tmp_path: Path) -> None:
    """Half of an emoji, as many tools cut titles, and NaN, as Python writes it."""
    path = tmp_path / "texts.jsonl"
    lines = ['{"text": "a river", "title": "caf\u00e9 \\ud83d", "rank": NaN, "all": [1, Infinity]}']
    path.write_text("\n".join([*lines, '{"text": "\u00e9t\u00e9"}']), encoding="utf-8")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    done = classify(path, "--json")
    assert done.exit_code == 0, done.output
    first, second = done.stdout.splitlines()
    row = json.loads(first, parse_constant=refuse)
    assert (row["title"], row["rank"], row["all"]) == ("caf\u00e9 \ud83d", None, [1, None])
    assert '"text": "\u00e9t\u00e9"' in second  # what the output has is not escaped
