from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from embedlib.bench import peers as peers_module
from embedlib.bench import race
from embedlib.bench.peers import PEERS, Peer, missing_modules
from embedlib.bench.race import start_contestant
from embedlib.bench.worker import make_contestant
from embedlib.cli import json_output, main
from embedlib.measuring.process import ContestantFailedError


def test_help_shows_the_defaults_and_the_peers() -> None:
    done = CliRunner().invoke(main, ["bench", "--help"], terminal_width=1000)
    assert done.exit_code == 0
    for text in ("1000", "10.0", *PEERS, "--json", "--texts", "--threads"):
        assert text in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vs", "faster"], "Error: vs = 'faster'"),
        (["--vs", "faster", "--vs", "fastembed"], "Error: vs = 'faster'"),  # the last took it all
        (["--rounds", "0"], "Error: rounds = 0"),
        (["--json", "no-such-folder/result.json"], "no such folder"),
        (["--python", "fastembed"], "--python 'fastembed': give PEER=INTERPRETER"),
        (["--task", "rerank", "--text-tokens", "9"], "are for --task encode"),
        (["--json", "."], "'--json': File '.' is a directory; give a file"),
        (["--vs", "all,faster"], "Error: vs = 'faster'"),
        (["--python", "infinity=a", "--python", "infinity=b"], "'infinity' is given twice"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(main, ["bench", "model", *arguments])
    assert done.exit_code != 0
    assert message in done.stderr


@pytest.mark.parametrize("is_there", [False, True])
def test_a_json_file_that_cannot_be_written_is_told_before_measuring(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "result.json"
    if is_there:
        path.write_text("old")

    opened = Path.open

    def refuse(**options: object) -> object:
        raise PermissionError(errno.EACCES, "Permission denied")

    def open_others(self: Path, *arguments: Any) -> object:
        return refuse() if self == path else opened(self, *arguments)

    # Not by the rights of a folder, which do not stop root.
    monkeypatch.setattr(json_output, "NamedTemporaryFile", refuse)
    monkeypatch.setattr(Path, "open", open_others)
    done = CliRunner().invoke(main, ["bench", "no-such-model", "--json", str(path)])
    assert done.exit_code == 1
    told = f"Error: cannot write {path}: Permission denied; give another file as --json\n"
    assert done.stderr == told


class Result:
    """Of a run that was not made."""

    def __init__(self, command: str) -> None:
        self.command = command

    def as_json(self) -> dict[str, Any]:
        return {"command": self.command}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Options of the runs, none of which is made; a table has the command alone."""
    runs: list[Any] = []

    def run(asked: Any, *, command: str, **_: object) -> Result:
        runs.append(asked)
        return Result(command)

    monkeypatch.setattr("embedlib.bench.run.run_bench", run)
    monkeypatch.setattr("embedlib.bench.table.render", lambda result: f"table: {result.command}")
    return runs


def test_all_is_all_also_beside_names(asked: list[Any]) -> None:
    for vs in ("all", "all,fastembed", "fastembed,all"):
        done = CliRunner().invoke(main, ["bench", "m", "--vs", vs])
        assert done.exit_code == 0, done.output
    assert [options.vs for options in asked] == 3 * [tuple(PEERS)]


def test_an_interpreter_may_be_in_the_home_folder(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.touch(mode=0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    arguments = ["--vs", "infinity", "--python", "infinity=~/python"]
    done = CliRunner().invoke(main, ["bench", "m", *arguments])
    assert done.exit_code == 0, done.output
    assert asked[0].pythons == {"infinity": str(python)}


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (["--token", "hf_secret"], "--token '***'"),
        (["--token=hf_secret"], "'--token=***'"),
        (["--texts", "http://user:secret@host/a b"], "'http://user:***@host/a b'"),
        (["--rounds", "2"], "embedlib bench m --rounds 2"),
    ],
)
def test_the_command_is_kept_without_secrets(
    arguments: list[str],
    kept: str,
    asked: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["embedlib", "bench", "m", *arguments])
    path = tmp_path / "result.json"
    done = CliRunner().invoke(main, ["bench", "m", "--json", str(path)])
    assert done.exit_code == 0, done.output
    for said in (done.stdout, json.loads(path.read_text())["command"]):
        assert kept in said
        assert "secret" not in said


@pytest.mark.parametrize("lost", ["table", "json"])
def test_of_the_table_and_the_json_one_is_kept_where_the_other_cannot_be_written(
    lost: str, asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "result.json"
    if lost == "table":
        monkeypatch.setattr("click.echo", full)
    else:
        monkeypatch.setattr(Path, "write_text", full)
    done = CliRunner().invoke(main, ["bench", "m", "--json", str(path)])
    assert done.exit_code == 1
    assert "No space left on device" in done.stderr
    assert done.stdout.startswith("table: ") is (lost == "json")
    assert path.exists() is (lost == "table")


def test_a_path_of_any_bytes_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    json_output.show({"model": "caf\udce9"}, "", str(path))
    assert json.loads(path.read_text()) == {"model": "caf\udce9"}


def test_a_json_file_is_left_as_it_is_until_there_are_figures(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text("old")
    for path in (old, new):
        done = CliRunner().invoke(main, ["bench", "m", "--rounds", "0", "--json", str(path)])
        assert "rounds = 0" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]
    assert old.read_text() == "old"


def test_the_reason_of_a_failure_is_not_endless() -> None:
    names = ", ".join(f"model-{number}" for number in range(1000))
    error = ContestantFailedError("torch", f"KeyError: one of {names}")
    assert error.reason.startswith("KeyError: one of model-0, model-1, ")
    assert len(error.reason) < 310
    assert str(error) == f"torch failed: {error.reason}"
    assert ContestantFailedError("torch", "it ended").reason == "it ended"
    secret = ContestantFailedError("tei", "http://user:secret@host:80/v1 answers with 503")
    assert secret.reason == "http://user:***@host:80/v1 answers with 503"


def test_a_child_that_dies_is_told_with_its_last_words() -> None:
    with (
        pytest.raises(ContestantFailedError, match=r"nobody failed: .* exit status 1, KeyError"),
        start_contestant("nobody", 1, None) as child,
    ):
        child.call("stats")


def test_a_peer_that_hangs_is_ended_and_the_others_have_no_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The child imports this module in place of ours, and nothing answers.
    module = tmp_path / "embedlib" / "bench"
    module.mkdir(parents=True)
    (module / "worker.py").write_text("import sys; sys.stdin.read()\n")
    for folder in (module, module.parent):
        (folder / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(race, "MAX_CALL_SECONDS", 0.01)
    told = "fastembed failed: bulk was given 0 s and took longer"
    with start_contestant("fastembed", 1, None) as child:
        with pytest.raises(ContestantFailedError, match=f"^{told}$"):
            child.call("bulk")
        with pytest.raises(ContestantFailedError, match="ended unexpectedly: exit status -9"):
            child.call("bulk", timeout_s=60)
    with start_contestant("embedlib", 1, None) as child:
        assert child._limit_s is None


def test_an_error_in_a_child_reaches_the_parent(tmp_path: Path) -> None:
    with start_contestant("embedlib", 1, None) as child:
        with pytest.raises(ContestantFailedError, match="embedlib failed: ModelNotFoundError: "):
            child.call(
                "load",
                folder=str(tmp_path / "nothing"),
                cache_dir=str(tmp_path),
                threads=1,
                options={},
                query="q",
            )
        assert child.call("missing", peer="embedlib-int8") == []
        assert child.age_s > 0


def test_missing_modules_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Peer(modules=("json", "no_such_module.part", "no_such_other"), remedy="")
    monkeypatch.setattr(peers_module, "PEERS", {"other": other})
    assert missing_modules("other") == ["no_such_module.part", "no_such_other"]


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_of_the_table_can_be_made(name: str) -> None:
    assert make_contestant(name).packages is not None
