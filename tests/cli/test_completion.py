from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from embedlib.cli import main

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Start commands in an empty folder, with a home folder of its own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for variable in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "ZDOTDIR"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_is_printed_and_installed_once(shell: str, folder: Path, run: Run) -> None:
    home = folder.parent / "home"
    printed = run("completion", shell)
    assert "_EMBEDLIB_COMPLETE" in printed.stdout
    assert [*home.iterdir()] == []
    startup = home / f".{shell}rc"
    startup.write_text("# no end of line")
    for _ in range(2):
        assert run("completion", shell, "--install").exit_code == 0
    if shell == "fish":
        written = home / ".config/fish/completions/embedlib.fish"
        assert startup.read_text() == "# no end of line"
    else:
        written = home / f".local/share/embedlib/completion.{shell}"
        assert startup.read_text() == f'# no end of line\nsource "{written}"\n'
    assert written.read_text() == printed.stdout


def test_a_folder_that_depends_on_the_current_one_is_ignored(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "data")  # as the specification of the variable says
    assert run("completion", "bash", "--install").exit_code == 0
    assert [*folder.iterdir()] == []
    assert (folder.parent / "home/.local/share/embedlib/completion.bash").is_file()


def test_a_completion_that_cannot_be_written_is_one_line(folder: Path, run: Run) -> None:
    (folder.parent / "home/.local").write_text("in the way")
    done = run("completion", "bash", "--install")
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: cannot write ")
    assert done.stderr.count("\n") == 1


def test_a_full_disk_leaves_the_completion_that_is_there(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_text(self: Path, content: str, encoding: str | None = None) -> int:
        self.write_bytes(content[:9].encode())
        raise OSError(errno.ENOSPC, "No space left on device")  # such an error names no file

    assert run("completion", "bash", "--install").exit_code == 0
    written = folder.parent / "home/.local/share/embedlib/completion.bash"
    before = written.read_text()
    monkeypatch.setattr(Path, "write_text", write_text)
    done = run("completion", "bash", "--install")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"Error: cannot write {written}: No space left on device; ")
    assert written.read_text() == before
    assert [*written.parent.iterdir()] == [written]


def test_completing_reads_no_settings(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "embedlib.toml").write_text("thread = 1")
    with main.make_context("embedlib", ["encode", "--pre"], resilient_parsing=True) as context:
        command = main.get_command(context, "encode")
        assert command is not None
        command.make_context("encode", ["a/b"], parent=context, resilient_parsing=True)


def test_a_user_without_a_home_folder_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # as for a user without an entry
    done = run("completion", "bash", "--install")
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: this user has no home folder; set HOME, or let `embedlib")


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (["en"], ["plain,encode"]),
        (["encode", ""], ["file,"]),  # MODEL, which may be a folder
        (["encode", "--thr"], ["plain,--threads"]),
        (["encode", "--engine", "openv"], ["plain,openvino"]),
        (["encdoe", "enc"], ["plain,encode"]),  # after a mistyped command: no traceback
    ],
)
def test_what_a_shell_is_offered(words: list[str], completions: list[str]) -> None:
    env = {
        "_EMBEDLIB_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["embedlib", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = CliRunner().invoke(main, prog_name="embedlib", env=env)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == completions
