from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import click
import pytest
from click.testing import Result

import embedlib
from embedlib.cli import main
from embedlib.cli.options import ENGINE_OPTIONS, MODEL_OPTIONS
from embedlib.config import Config
from embedlib.indexing.options import IndexOptions
from embedlib.settings.names import TEXT_SETTINGS
from tests.waiting import WAIT_SECONDS

Run = Callable[..., Result]
CONTEXT = click.Context(main, **main.context_settings)
COMMANDS = main.list_commands(CONTEXT)
# Not for a command line: prompts are given per call, and the queue has one caller.
NOT_OPTIONS = {
    "prompts",
    "examples",
    "quantization_ranges",
    "default_prompt_name",
    "similarity_fn_name",
    "max_queued_texts",
}


def test_the_commands() -> None:
    assert [*COMMANDS] == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_help(name: str) -> None:
    command = main.get_command(CONTEXT, name)
    assert command is not None
    assert command.help
    assert not command.get_short_help_str(60).endswith("...")  # as `embedlib --help` cuts it
    options = [p for p in command.get_params(CONTEXT) if isinstance(p, click.Option)]
    assert [option.name for option in options if not option.help] == []


@pytest.mark.parametrize(
    ("command", "variable", "message"),
    [
        ("search", "EMBEDLIB_SEARCH_TO", "no destination begins with 'nowhere:'"),
        ("bench-write", "EMBEDLIB_BENCH_WRITE_TO", "no destination begins with 'nowhere:'"),
        ("encode", "EMBEDLIB_ENCODE_FORMAT", "'nowhere:x' is not one of 'npy', 'jsonl'"),
    ],
)
def test_a_variable_is_named_after_its_flag(
    command: str, variable: str, message: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "nowhere:x")
    done = run(command, *([] if command == "bench-write" else ["a"]))
    assert message in done.stderr


@pytest.mark.parametrize("command", ["compile", "encode", "inspect", "tune", "verify"])
def test_a_variable_names_the_model(
    command: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDLIB_MODEL", "./no/such/model")
    assert "./no/such/model" in run(command).stderr


@pytest.mark.parametrize(
    ("name", "defaults"),
    [
        ("index", {field.name: field.default for field in fields(IndexOptions)}),
        ("index", {"since_overlap": embedlib.SourceOptions().since_overlap}),
        ("search", {"top_k": inspect.signature(embedlib.search).parameters["top_k"].default}),
    ],
)
def test_a_default_is_that_of_python(name: str, defaults: dict[str, object]) -> None:
    command = main.get_command(CONTEXT, name)
    assert command is not None
    shown = {option.name: option.get_default(CONTEXT) for option in command.get_params(CONTEXT)}
    wanted = {key: value for key, value in defaults.items() if value is not None}
    assert {key: shown[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["encode", "-m", "x"], "No such option '-m'; give MODEL without it, as shown above."),
        (["inspect", "--model=x"], "'--model'; give MODEL without it, as shown above."),
        (["serve", "--model", "x"], "'--model'; give MODEL without it, as shown above."),
        (["serve", "--model-id", "x"], "'--model-id'; give MODEL without it, as shown above."),
        (["serve", "x", "--hostname", "y"], "No such option '--hostname'; give --host."),
        (["serve", "x", "--modelss", "y"], "'--modelss'; `main serve --help` lists those"),
        (["status", "--to", "x"], "No such option '--to'; give URL without it, as shown above."),
        (["status", "--model", "x"], "'--model'; `main status --help` lists those it takes."),
        (["index", "--modle", "x"], "No such option '--modle'. Did you mean '--model'?"),
        (["search", "x", "--top", "3"], "No such option '--top'. Did you mean '--top-k'?"),
        (["--model", "x"], "'--model'; options stand behind the name of a command."),
        (["index", "docs", "-m", "x"], "Missing option '--to'."),
    ],
)
def test_a_flag_that_is_an_argument_here(arguments: list[str], message: str, run: Run) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith("Usage: ")
    assert message in done.stderr.splitlines()[-1]


def test_a_mistyped_command(run: Run) -> None:
    done = run("idnex", "docs")
    assert done.exit_code == 2
    assert "No such command 'idnex'. Did you mean 'index'?" in done.stderr
    assert "No such command 'xyz'. `embedlib --help` lists all" in run("xyz").stderr


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_every_command(flag: str, run: Run) -> None:
    done = run(flag)
    assert done.exit_code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(name: str, run: Run) -> None:
    done = run(name, "-h")
    assert done.exit_code == 0
    assert f"Usage: main {name}" in done.stdout
    assert "--debug" in done.stdout


def test_progress_can_be_left_out() -> None:
    quiet = {
        name
        for name in COMMANDS
        for parameter in main.get_command(CONTEXT, name).params  # type: ignore[union-attr]
        if "--quiet" in parameter.opts and "-q" in parameter.opts
    }
    without = {"completion", "config", "doctor", "drop-old", "models", "serve", "status"}
    assert {*COMMANDS} - quiet == without


def test_quiet_hides_the_bars_of_the_hub_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_DISABLE_PROGRESS_BARS", raising=False)
    seen: list[str | None] = []
    monkeypatch.setattr(
        "embedlib.models.opening.OpenedModel.find",
        lambda *_: seen.append(os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS")),
    )
    for more in ([], ["-q"]):
        run("inspect", "some/model", *more)
    assert seen == [None, "1"]
    assert "HF_HUB_DISABLE_PROGRESS_BARS" not in os.environ


FEW_OPTIONS = {
    *("bench-write", "completion", "config", "convert", "doctor", "drop-old", "models", "status"),
}


@pytest.mark.parametrize("name", sorted({*COMMANDS} - FEW_OPTIONS))
def test_help_groups_the_options(name: str, run: Run) -> None:
    lines = run(name, "-h").stdout.splitlines()
    groups = [line for line in lines if line.endswith(":") and line[:1].isupper()]
    assert groups[0] == "Options:" or name == "inspect"
    assert groups[-2:] == ["Model files:", "General:"]
    listed = [line for line in lines[lines.index(groups[0]) :] if line.startswith("  ")]
    assert not [line for line in listed if line.strip().startswith(("[MODEL]", "QUESTION"))]
    own = lines[: lines.index("Model files:")]
    assert not any("--token " in line or "--quiet" in line for line in own)
    assert any("--help " in line for line in lines[lines.index("General:") :])


@pytest.mark.parametrize("name", ["compile", "verify"])
def test_the_precision_to_write_or_measure_is_no_option_of_all_models(name: str, run: Run) -> None:
    shown = run(name, "-h").stdout
    assert shown.index("\n  --precision [") < shown.index("\nEngine:")


def test_version(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert embedlib.__version__ in run("--version").stdout
    # The variable may be set for other reasons; it must not turn every call into --version.
    monkeypatch.setenv("EMBEDLIB_VERSION", "1")
    assert "Usage" in run("doctor", "--help").stdout


def test_every_config_field_is_an_option_or_left_out_on_purpose() -> None:
    of_some = {"template", "max_active_dims"}  # of rerankers, and of destinations
    offered = {*MODEL_OPTIONS, *TEXT_SETTINGS, *ENGINE_OPTIONS, *of_some}
    assert offered | NOT_OPTIONS == {field.name for field in fields(Config)}
    assert offered & NOT_OPTIONS == set()


def test_a_long_value_is_not_quoted_whole(run: Run) -> None:
    result = run("encode", "nowhere", "--truncate-dim", "x" * 100_000)
    assert result.exit_code == 2
    assert "Invalid value for '--truncate-dim': 'xxx" in result.stderr
    assert "xxx'; give a whole number" in result.stderr
    assert len(result.stderr) < 3000


@pytest.mark.parametrize("command", ["verify", "compile"])
def test_a_share_that_is_no_number(command: str, run: Run) -> None:
    flag = "--gate-mean" if command == "verify" else "--fidelity"
    done = run(command, "nowhere", flag, "nan")
    assert done.exit_code == 2
    assert f"Invalid value for '{flag}': nan is not in the range 0<=x<=1." in done.stderr


def test_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "embedlib", "--version"],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert (done.returncode, done.stdout) == (0, f"embedlib, version {embedlib.__version__}\n")


def test_a_closed_pipe_is_silent() -> None:
    # The reader is gone before anything is written, as with `embedlib ... | head -0`.
    script = (
        "import os, sys; reader, writer = os.pipe(); os.close(reader); os.dup2(writer, 1);"
        "from embedlib.cli import main; main(['doctor', '--help'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, timeout=WAIT_SECONDS
    )
    assert done.stderr == b""


@pytest.mark.parametrize("command", ["doctor", "--version"])
def test_a_full_disk_behind_standard_output_is_one_line(command: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "embedlib", command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=WAIT_SECONDS,
        )
    message = "Error: cannot write standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, message)


@pytest.mark.parametrize(
    ("command", "closed", "message"),
    [
        ("chunks - --input-format lines -m MODEL", "<&-", "cannot read standard input: it is"),
        ("encode MODEL -", "<&-", "cannot read standard input: it is closed; name a file"),
        ("encode MODEL TEXTS", ">&-", "cannot write standard output: it is closed; name a file"),
        ("encode MODEL TEXTS --format npy", ">&-", "cannot write standard output: it is closed;"),
        ("config", ">&-", "cannot write standard output: it is closed; /dev/null takes"),
        ("classify MODEL TEXTS --json", ">&-", "cannot write standard output: it is closed;"),
        ("encode --help", ">&-", "cannot write standard output: it is closed; /dev/null takes"),
        ("--version", ">&-", "cannot write standard output: it is closed; /dev/null takes"),
    ],
)
def test_a_closed_stream_is_one_line(
    command: str, closed: str, message: str, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("a text\n")
    command = command.replace("MODEL", str(tiny_folder("bert")))
    command = command.replace("TEXTS", str(tmp_path / "a.txt"))
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m embedlib {command} {closed}"],
        stderr=subprocess.PIPE,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: {message}")
    assert done.stderr.count("\n") == 1


def test_what_writes_no_result_there_needs_no_standard_output(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("a text\n")
    out = tmp_path / "out.npy"
    command = f"encode {tiny_folder('bert')} {tmp_path / 'a.txt'} -q -o {out}"
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m embedlib {command} >&-"],
        stderr=subprocess.PIPE,
        timeout=WAIT_SECONDS,
    )
    assert (done.returncode, done.stderr, out.exists()) == (0, b"", True)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_an_output_without_some_letters_gets_escapes(
    encoding: str, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    text = "a café → 😀"
    texts = tmp_path / "a.txt"
    texts.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "embedlib", "chunks", str(texts), "--model"]
    command.append(str(tiny_folder("bert")))

    def print_it(*options: str) -> bytes:
        done = subprocess.run(
            [*command, *options],
            capture_output=True,
            env={**os.environ, "PYTHONIOENCODING": encoding},
            timeout=WAIT_SECONDS,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout

    assert json.loads(print_it("--json").decode())["text"] == text
    shown = text if encoding != "latin-1" else "a café \\u2192 \\U0001f600"
    # click takes an ASCII terminal for one that is set up wrongly, and writes UTF-8.
    assert shown.encode("utf-8" if encoding == "ascii" else encoding) in print_it()


def test_ctrl_c_while_closing_ends_at_once() -> None:
    # Closing was cut short: the thread is still there, and a real one would compute for a while.
    script = """
import threading
import embedlib.embedder
from embedlib.cli import main
from embedlib.threads.closing import WorkerThread

class Embedder:
    def __init__(self, model, *, config):
        WorkerThread(threading.Event().wait, "any").start()
    def __enter__(self):
        return self
    def __exit__(self, *_):
        raise KeyboardInterrupt

embedlib.embedder.Embedder = Embedder
main(["encode", "m"])
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        input="",
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert (done.returncode, done.stderr) == (130, "Interrupted.\n")


def test_ctrl_c_inside_a_weak_reference_prints_nothing_of_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Dropped:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    def work(*_: object) -> None:
        Dropped()
        raise KeyboardInterrupt

    monkeypatch.setattr("embedlib.models.opening.OpenedModel.find", work)
    before = sys.unraisablehook
    done = run("inspect", "some/model")
    assert (done.exit_code, done.stderr) == (130, "Interrupted.\n")
    assert capsys.readouterr().err == ""
    assert sys.unraisablehook is before
