"""Wrong command lines of all commands: one line says what is wrong and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import Result

from embedlib.cli import main
from embedlib.cli.other_servers import OTHER_SERVERS

Run = Callable[..., Result]
CONTEXT = click.Context(main, **main.context_settings)
COMMANDS = main.list_commands(CONTEXT)


def error_line(done: Result) -> str:
    """The one line with the error; click has told the usage above it."""
    *usage, line = done.stderr.splitlines()
    assert usage[0].startswith("Usage: ")
    assert not any(each.startswith("Error: ") for each in usage)
    assert done.exit_code == 2
    return line


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option(name: str, run: Run) -> None:
    line = error_line(run(name, "--xyzzy", "1"))
    assert line.startswith("Error: No such option '--xyzzy'; `main ")
    assert line.endswith(" --help` lists those it takes.")


def test_a_variable_that_is_no_switch(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDLIB_SEARCH_HYBRID", "maybe")
    line = error_line(run("search", "x", "--to", "edge:x"))
    assert line == (
        "Error: Invalid value for EMBEDLIB_SEARCH_HYBRID, which sets '--hybrid': 'maybe'; give 1, "
        "true, yes or on, or 0, false, no or off"
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_missing_is_shown_by_an_example(
    name: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EMBEDLIB_MODEL", raising=False)
    command = main.get_command(CONTEXT, name)
    assert command is not None
    needed = [each for each in command.params if each.required]
    if not needed:
        return
    line = error_line(run(name))
    assert line.startswith("Error: Missing ")
    assert f" For example: embedlib {name} " in line
    assert all(option in line for each in needed[:1] for option in each.opts if option[0] == "-")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["index", "docs", "-m", "x"],
            "Missing option '--to'. For example: embedlib index docs/ --model "
            "BAAI/bge-small-en-v1.5 --to edge:my-docs",
        ),
        (
            ["encode"],
            "EMBEDLIB_MODEL, or model in a file of settings. For example: embedlib encode",
        ),
        (["bench"], "EMBEDLIB_MODEL, or model in a file of settings. For example: embedlib bench"),
        (["serve"], "EMBEDLIB_MODEL, or model in a file of settings. For example: embedlib serve"),
        (
            ["encode", "nearby.txt", "-o", "x.npy"],
            "'nearby.txt' is a file and no model; write the model in front of it, or set EMBEDLIB",
        ),
        (
            ["search", "x", "--to"],
            "'--to' requires an argument. For example: embedlib search \"how",
        ),
        (
            ["search", "-1 is an error", "--to", "edge:x"],
            "such option '-1'; `main search --help` lists those it takes. Put -- before a QUESTION "
            "that begins with a dash.",
        ),
        (
            ["search", "x", "--to", "edge:x", "--candidates", "100"],
            "--candidates is for a reranker; add --rerank MODEL",
        ),
        (["rerank", "--all of it", "a.txt"], "takes. Put -- before a QUERY that begins with a d"),
        (
            ["search", "how", "do", "I", "--to", "edge:x"],
            "unexpected extra arguments (do I). A value with blanks needs quotes. For example: ",
        ),
        (["index", "a", "--to", "edge:x", "--limit", "x"], "'--limit': 'x'; give a whole number"),
        (["serve", "m", "--port", "x"], "'--port': 'x'; give a whole number from 0 to 65535"),
        (["serve", "m", "--tls-certificate", "nearby.txt"], "give both --tls-certificate and"),
        (["serve", "m", "--tls-key", "nearby.txt"], "give both --tls-certificate and"),
        (
            ["index", "--ray", "docs/", "-m", "m", "--to", "edge:x"],
            "'--ray': 'docs/' is no address of a cluster: auto, local or HOST:PORT, such as 10.0",
        ),
        (["serve", "--ray", "package:m"], "write --ray without one after MODEL"),
        (["serve", "m", "--name", "n"], "--name 'n'; it must be NAME=MODEL"),
        (["serve", "m", "--name", "n=o"], "--name 'n=o': o is none of the models given"),
        (["serve", "m", "--api-keys-file", "none"], "File 'none' does not exist; /"),
        (["serve", "m", "--webhook-secrets-file", "."], "File '.' is a directory; give a file"),
        (["serve", "m", "m"], "m is there twice; give it once"),
        (["serve", "m", "n", "--name", "n=m"], "two models have the same name; give one another"),
        (["tune", "m", "--texts", ""], "'--texts': '' is no path; write one, or . for the"),
        (["tune", "m", "--texts", "."], "File '.' is a directory; give a file"),
        (["completion"], "Choose from: bash, zsh, fish. For example: embedlib completion bash"),
        (["config", "x"], "extra argument (x). A value with blanks needs quotes. `main config -"),
        (["models", "x", "y"], 'needs quotes. For example: embedlib models "qwen3 apache"'),
        (
            ["convert", "./NOWHERE"],
            "there is no folder './NOWHERE'; give one with a model's files, ",
        ),
        (
            ["tune", "m", "--texts", "near.txt"],
            "'near.txt' does not exist; did you mean 'nearby.txt'",
        ),
        (["tune", "m", "--texts", "x.txt"], "'x.txt' does not exist; /"),
        (
            ["search", "caf\udce9", "--to", "edge:x"],
            "'QUESTION': its byte 0xe9, behind 'caf', is not utf-8; convert the text first, for",
        ),
        (["index", "sqlite:a.db", "--to", "edge:x", "--sql", "\udcff"], "'--sql': its byte 0xff"),
        (["encode", "m", "--prompt", "\udcff"], "'--prompt': its byte 0xff, behind '', is not utf"),
        (["tune", "m", "--texts", "no/x.txt"], "/no' cannot be read: No such file or directory"),
    ],
)
def test_the_remedy(
    arguments: list[str],
    message: str,
    run: Run,
    tmp_path: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(str(tmp_path))
    monkeypatch.delenv("EMBEDLIB_MODEL", raising=False)
    with open("nearby.txt", "w"):
        pass
    assert message in error_line(run(*arguments))


def test_options_of_other_servers_lead_to_options_that_are_there() -> None:
    command = main.get_command(CONTEXT, "serve")
    assert command is not None
    own = {option for each in command.params for option in each.opts}
    assert own.isdisjoint(OTHER_SERVERS)
    for name, remedy in OTHER_SERVERS.items():
        assert {*re.findall(r"--[a-z-]+", remedy)} <= own, name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("bench m --task rerank --query-seconds 1", "--query-seconds is for --task encode and"),
        ("bench-write --to x --num-texts 9", "--num-texts is for real texts; add --model"),
        ("compile m --texts TEXTS", "--texts is for measuring; give --fidelity too"),
        ("compile m --against bf16", "--against is for measuring; give --fidelity too"),
        ("index a --to x --max-delete 1", "--max-delete is for --delete-missing; add it"),
        ("index a --to x --since-overlap 1", "--since-overlap is for --since-field; add it"),
        ("index TEXTS --to x --glob *", "--glob is for the files of a folder, and SOURCES has no"),
        ("index - --to x --glob *", "--glob is for the files of a folder, and SOURCES has none"),
        ("chunks TEXTS --glob *", "--glob is for the files of a folder, and SOURCES has none; le"),
        ("index a --to x --sql q --glob *", "--glob is for files, not for --sql"),
        ("index a --to x --sql q --id-prefix file", "--id-prefix is for files, not for --sql"),
        ("index a --to x --max-active-dims 9", "--max-active-dims is for sparse vectors; add"),
        ("verify m --against N.npy --texts TEXTS --field x", "--field is for JSON Lines and Parq"),
        ("serve m --ray-replicas 1:2", "--ray-replicas is for a Ray cluster; add --ray"),
        ("serve m --ray-cpus 2", "--ray-cpus is for a Ray cluster; add --ray"),
        ("serve m --uds s --host h", "--host is not for --uds, which takes the place of a port;"),
        ("serve m --uds s --port 1", "--port is not for --uds, which takes the place of a port;"),
        ("serve m --keep-jobs-hours 1", "--keep-jobs-hours is for jobs; add --data-dir"),
        ("serve m --webhook-allow h.de", "--webhook-allow is for jobs; add --data-dir"),
    ],
)
def test_an_option_that_would_be_ignored(
    arguments: str, message: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TEXTS", "N.npy"):
        Path(name).touch()
    assert message in error_line(run(*arguments.split()))


def test_a_variable_may_be_for_another_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDLIB_BENCH_WRITE_NUM_TEXTS", "9")
    assert "no destination begins with 'x:'" in run("bench-write", "--to", "x:y").stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["search", "x", "--to", "edge:x", "postgresql://u:secret@h/db"],
        ["drop-old", "edge:x", "postgresql://h/db?sslpassword=secret"],
        ["tune", "m", "--texts", "postgresql://u:secret@h/db"],
    ],
)
def test_the_password_of_a_url_in_a_wrong_place_is_not_shown(
    arguments: list[str], run: Run
) -> None:
    line = error_line(run(*arguments))
    assert "postgresql://" in line
    assert "***" in line
    assert "secret" not in line
