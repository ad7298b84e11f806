from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import Result

from embedlib.cli import main
from embedlib.cli.serve import serve
from embedlib.config import Config
from embedlib.models.opening import OpenedModel

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Start commands in an empty folder, with a home folder of its own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("ZDOTDIR", raising=False)
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Config]]:
    """Return a list of what `inspect` looks for; it then fails."""
    asked: list[tuple[str, Config]] = []

    def find(name: str, config: Config) -> OpenedModel:
        asked.append((name, config))
        raise OSError("stop")

    monkeypatch.setattr("embedlib.models.opening.OpenedModel.find", find)
    return asked


def test_an_option_is_above_its_variables_above_the_file(
    folder: Path, found: list[tuple[str, Config]], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "embedlib.toml").write_text('model = "a/file"')
    user = folder.parent / "home/.config/embedlib/config.toml"
    user.parent.mkdir(parents=True)
    user.write_text('cache_folder = "/of/the/user"\nlocal_files_only = true')
    run("inspect")
    monkeypatch.setenv("EMBEDLIB_MODEL", "a/variable")
    monkeypatch.setenv("EMBEDLIB_CACHE_FOLDER", "~/all")
    run("inspect")
    monkeypatch.setenv("EMBEDLIB_INSPECT_CACHE_FOLDER", "~/inspect")
    run("inspect")
    run("inspect", "an/argument", "--cache-folder=~/option")
    home = folder.parent / "home"
    assert [(name, str(config.cache_folder)) for name, config in found] == [
        ("a/file", "/of/the/user"),
        ("a/variable", f"{home}/all"),
        ("a/variable", f"{home}/inspect"),
        ("an/argument", f"{home}/option"),
    ]
    assert all(config.local_files_only for _, config in found)


@pytest.mark.parametrize("setting", ["chunk", "ignore"])
def test_chunk_as_a_setting_is_for_encode_alone(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDLIB_ON_TRUNCATE", setting)
    for name, *arguments in (("encode", "a/b"), ("search", "q", "--to=x:y"), ("classify", "a/b")):
        # With its settings: click keeps the option --help that a command makes first.
        context = click.Context(main, **main.context_settings)
        command = main.get_command(context, name)
        assert command is not None
        taken = command.make_context(name, [*arguments], context).params["on_truncate"]
        assert taken == ("warn" if setting == "chunk" and name != "encode" else setting)
        asked = command.make_context(name, [*arguments, "--on-truncate", "chunk"], context)
        assert asked.params["on_truncate"] == "chunk"


def test_a_setting_has_no_part_in_another_option_of_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EMBEDLIB_PRECISION", "float32")  # compile's is what it writes
    group = click.Context(main, **main.context_settings)
    command = main.get_command(group, "compile")
    assert command is not None
    assert command.make_context("compile", ["a/b"], group).params["precision"] == "fp8"


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("EMBEDLIB_THREADS", "Error: EMBEDLIB_THREADS = 'x'; it must be a whole number"),
        ("EMBEDLIB_ENGINE", "Error: EMBEDLIB_ENGINE: 'x' is not one of 'auto'"),
        (
            "EMBEDLIB_ENCODE_THREADS",
            "for EMBEDLIB_ENCODE_THREADS, which sets '--threads': 'x'; give",
        ),
    ],
)
def test_a_wrong_value_names_its_variable(
    variable: str, message: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "x")
    done = run("encode", "a/b")
    assert done.exit_code
    assert message in done.stderr.splitlines()[-1]
    assert run("encode", "--help").exit_code == 0


def test_the_address_of_a_service_is_no_port(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    group = click.Context(main, **main.context_settings)
    command = main.get_command(group, "serve")
    assert command is not None
    # Source: https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
    monkeypatch.setenv("EMBEDLIB_SERVE_PORT", "tcp://10.0.0.1:80")
    assert command.make_context("serve", ["a/b"], group).params["port"] == 8080
    monkeypatch.setenv("EMBEDLIB_SERVE_PORT", "80")
    assert command.make_context("serve", ["a/b"], group).params["port"] == 80
    monkeypatch.setenv("EMBEDLIB_SERVE_PORT", "x")
    assert run("serve", "a/b").exit_code == 2


def test_an_option_that_is_given_does_not_excuse_a_wrong_file(folder: Path, run: Run) -> None:
    (folder / "embedlib.toml").write_text("thread = 1")
    done = run("encode", "a/b", "--threads", "2")
    assert done.stderr.startswith(f"Error: {folder}/embedlib.toml: unknown key 'thread'")


def test_a_file_in_the_place_of_the_model_is_an_input(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "notes.txt").write_text("a\n")
    assert "./notes.txt" in run("encode", "./notes.txt", stdin="a").stderr
    monkeypatch.setenv("EMBEDLIB_MODEL", "./model")
    expected = "more.txt': no such file; a text itself comes by standard input: echo TEXT | "
    assert f"{expected}embedlib encode ..." in run("encode", "./notes.txt", "more.txt").stderr
    assert "no model folder './model'" in run("encode", "notes.txt").stderr
    assert "no model folder './model'" in run("encode", "-", stdin="a").stderr
    assert "is not there" not in run("encode", "package:other", "notes.txt").stderr
    for name in ("./other", "other.txt", "../other"):
        told = f"Error: {name!r} is not there, neither a file of texts nor a model folder (working "
        for inputs in ([], ["notes.txt"]):
            done = run("encode", name, *inputs)
            assert done.stderr.startswith(told)
            assert "EMBEDLIB_MODEL sets the model); check the spelling" in done.stderr


def test_a_missing_model_says_how_to_set_it(run: Run) -> None:
    for command in ("encode", "inspect", "serve"):
        done = run(command)
        assert done.exit_code == 2
        assert "EMBEDLIB_MODEL" in done.stderr


def test_config_shows_what_is_set_and_where(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "embedlib.toml").write_text('device = ["cuda:0", "cuda:1"]')
    monkeypatch.setenv("EMBEDLIB_TOKEN", "hf_secret")
    monkeypatch.setenv("EMBEDLIB_THREDS", "2")
    done = run("config")
    assert f"device         cuda:0,cuda:1  from {folder}/embedlib.toml" in done.stdout
    assert "token          (not shown)  from EMBEDLIB_TOKEN" in done.stdout
    assert "nothing reads EMBEDLIB_THREDS; did you mean EMBEDLIB_THREADS?" in done.stderr
    user_file = Path.home() / ".config" / "embedlib" / "config.toml"
    assert f"project's file {folder}/embedlib.toml\n" in done.stdout
    assert f"user's file    {user_file} (none)\n" in done.stdout
    shown = run("config", "--json")
    content = json.loads(shown.stdout)
    assert content["settings"]["token"]["from"] == "EMBEDLIB_TOKEN"
    assert content["project_file"] == f"{folder}/embedlib.toml"
    assert content["user_file"] == str(user_file)
    (folder / "embedlib.toml").unlink()
    assert "project's file none here\n" in run("config").stdout
    assert json.loads(run("config", "--json").stdout)["project_file"] is None
    assert "hf_secret" not in done.output + shown.output


def test_variables_of_commands_are_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDLIB_ENCODE_TRUNCATE_DIM", "128")
    done = run("config")
    assert "EMBEDLIB_ENCODE_TRUNCATE_DIM sets --truncate-dim of embedlib encode" in done.stdout
    assert done.stderr == ""


def test_config_lists_and_checks_the_variables_of_commands(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDLIB_SEARCH_TO", "postgresql://me:secret@host/db")
    done = run("config")
    assert "EMBEDLIB_SEARCH_TO sets --to of embedlib search\n" in done.stdout
    shown = run("config", "--json")
    variables = json.loads(shown.stdout)["variables"]
    assert variables == {"EMBEDLIB_SEARCH_TO": "sets --to of embedlib search"}
    assert "secret" not in done.output + shown.output
    for value, message in (
        ("x", "for EMBEDLIB_ENCODE_THREADS, which sets '--threads': 'x'; give a whole number"),
        ("0", "EMBEDLIB_ENCODE_THREADS = 0; it must be "),
    ):
        monkeypatch.setenv("EMBEDLIB_ENCODE_THREADS", value)
        wrong = run("config")
        assert wrong.exit_code
        assert message in wrong.stderr


def test_config_only_shows_what_another_command_would_do(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens no file of results, and no variable of another command turns on its traceback."""
    monkeypatch.setenv("EMBEDLIB_BENCH_JSON", "none/result.json")
    monkeypatch.setenv("EMBEDLIB_BENCH_WRITE_JSON", "result.json")
    monkeypatch.setenv("EMBEDLIB_ENCODE_DEBUG", "1")
    shown = run("config", "--json")
    assert json.loads(shown.stdout)["variables"] == {
        "EMBEDLIB_BENCH_JSON": "sets --json of embedlib bench",
        "EMBEDLIB_BENCH_WRITE_JSON": "sets --json of embedlib bench-write",
        "EMBEDLIB_ENCODE_DEBUG": "sets --debug of embedlib encode",
    }
    monkeypatch.setenv("EMBEDLIB_TUNE_THREADS", "0")
    assert run("config").stderr.startswith("Error: EMBEDLIB_TUNE_THREADS = 0; it must be ")


def test_the_home_folder_in_paths(folder: Path, run: Run) -> None:
    home = folder.parent / "home"
    (home / "notes.txt").write_text("a\n")
    assert "no model folder '~/m'" in run("encode", "~/m", "~/notes.txt").stderr
    refused = run("encode", "~/m", "~/notes.txt", "-o", "~/notes.txt", "--format", "npy")
    assert f"{home}/notes.txt" in refused.stderr
    done = run("index", "~/none.txt", "-m", "./m", "--to", "jsonl:~/x.jsonl")
    assert f"{home}/none.txt" in done.stderr


@pytest.mark.parametrize(("command", "seconds"), [("index", 60), ("encode", 15)])
def test_how_long_a_first_load_waits(
    command: str,
    seconds: float,
    folder: Path,
    found: list[tuple[str, Config]],
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Commands that embed for long wait longer; a setting says otherwise."""
    (folder / "a.txt").write_text("a text")
    given = {
        "index": ("a.txt", "--model", "a/model", "--to", "jsonl:rows.jsonl"),
        "encode": ("a/model", "a.txt"),
    }
    run(command, *given[command])
    monkeypatch.setenv("EMBEDLIB_PREPARE_SECONDS", "7")
    run(command, *given[command])
    assert [config.prepare_seconds for _, config in found] == [seconds, 7]
    assert {each.name: each.default for each in serve.params}["prepare_seconds"] == 60


def test_a_switch_that_is_on_can_be_turned_off(
    folder: Path, found: list[tuple[str, Config]], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a.txt").write_text("a text")
    for setting in ("true", "false"):
        monkeypatch.setenv("EMBEDLIB_PREPARE", setting)
        for given in ((), ("--no-prepare",), ("--prepare",)):
            run("encode", "a/model", "a.txt", *given)
    assert [config.prepare for _, config in found] == [True, False, True, False, False, True]
