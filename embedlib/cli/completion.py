"""`embedlib completion`: what lets a shell complete commands and options."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from embedlib.errors import ConfigError
from embedlib.system.user_folders import user_folder

_SHELLS = ("bash", "zsh", "fish")
_NEEDS_COMPINIT = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n"
"""zsh has no completion at all until this has run, which a `.zshrc` need not do."""


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.option(
    "--install", is_flag=True, help="Write it where the shell finds it; new shells complete."
)
def completion(shell: str, install: bool) -> None:
    """Print or install the completion of SHELL.

    It completes commands, options, their values and files. With --install it is written to a file
    of its own, and for bash and zsh one line of ~/.bashrc or ~/.zshrc reads that file.

    \b
    Examples:
      embedlib completion bash --install
      embedlib completion fish > ~/.config/fish/completions/embedlib.fish
    """
    from click.shell_completion import get_completion_class

    from embedlib.cli import main

    made = get_completion_class(shell)
    assert made is not None, "click has these three"
    script = made(main, {}, "embedlib", "_EMBEDLIB_COMPLETE").source()
    if shell == "zsh":
        first, _, rest = script.partition("\n")  # "#compdef embedlib" must stay the first line
        script = f"{first}\n{_NEEDS_COMPINIT}{rest}"
    if not install:
        click.echo(script)
        return
    try:
        _install(shell, script)
    except RuntimeError:  # of Path.home
        raise ConfigError(
            f"this user has no home folder; set HOME, or let `embedlib completion {shell}` print "
            "the completion"
        ) from None


def _install(shell: str, script: str) -> None:
    from embedlib.models.new_file import new_file

    if shell == "fish":
        file = user_folder("XDG_CONFIG_HOME", ".config") / "fish" / "completions" / "embedlib.fish"
    else:
        file = user_folder("XDG_DATA_HOME", ".local/share") / "embedlib" / f"completion.{shell}"
    with _explaining(file, shell):
        file.parent.mkdir(parents=True, exist_ok=True)
        with new_file(file) as part:  # every new shell reads it: it must never be half of one
            part.write_text(f"{script}\n", encoding="utf-8")
    click.echo(f"Wrote {file}")
    if shell != "fish":  # which reads all files of that folder
        startup = _startup_file(shell)
        with _explaining(startup, shell):
            _read_at_start(startup, f'source "{file}"')
    click.echo(f"New shells complete `embedlib`; start one with: exec {shell}")


@contextmanager
def _explaining(file: Path, shell: str) -> Iterator[None]:
    """Say which file cannot be written; an error of a full disk does not."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot write {file}: {error.strerror}; `embedlib completion {shell}` prints the "
            "completion instead"
        ) from error


def _startup_file(shell: str) -> Path:
    if shell == "zsh":
        return Path(os.environ.get("ZDOTDIR") or Path.home()) / ".zshrc"
    return Path.home() / ".bashrc"


def _read_at_start(startup: Path, line: str) -> None:
    """Add the line to a shell's file, unless it is there already."""
    content = startup.read_bytes() if startup.exists() else b""
    if line.encode() in content.splitlines():
        return
    end = b"" if not content or content.endswith(b"\n") else b"\n"
    with startup.open("ab") as file:
        file.write(end + line.encode() + b"\n")
    click.echo(f"Added to {startup}: {line}")
