"""What commands show on standard error while they work, and what Ctrl-C leaves."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from embedlib.progress.phases import SHOWN, Progress
from embedlib.progress.screens import Reading, open_screen, terminal_columns

_QUIET = "embedlib.quiet"
_INTERRUPTED = "embedlib.interrupted"
_HUB_VARIABLE = "HF_HUB_DISABLE_PROGRESS_BARS"


def quiet_option() -> click.Option:
    """Return the option `-q`, `--quiet` of commands that show progress."""
    return click.Option(
        ["-q", "--quiet"],
        is_flag=True,
        expose_value=False,
        callback=_remember_quiet,
        help="Show no progress and no notices; warnings, errors and results are still printed.",
    )


def _remember_quiet(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    context.meta[_QUIET] = value
    if value and _HUB_VARIABLE not in os.environ:  # the hub's client draws bars of its own
        os.environ[_HUB_VARIABLE] = "1"
        context.call_on_close(lambda: os.environ.pop(_HUB_VARIABLE, None))


def open_progress() -> Progress:
    """Return the progress of the running command, on standard error; for a `with` block."""
    is_quiet = click.get_current_context().meta.get(_QUIET)
    return Progress(None if is_quiet else open_screen(sys.stderr))


@contextmanager
def loading(model: str | None, cache_folder: str | Path | None) -> Iterator[Progress]:
    """Show that a model is loaded, until the block watches something else."""
    from embedlib.models.hub import downloaded_bytes, may_be_on_hub

    with open_progress() as progress:
        if model is None or not may_be_on_hub(model):
            progress.watch(f"Loading {model or 'the model'}")
        elif not terminal_columns(sys.stderr):  # on a terminal the hub's client draws its own bars
            folder = None if cache_folder is None else str(cache_folder)
            before = downloaded_bytes(model, folder)
            progress.watch(
                f"Loading {model}",
                "B",
                lambda: Reading(done=downloaded_bytes(model, folder) - before),
            )
        token = SHOWN.set(progress)
        try:
            yield progress
        finally:
            SHOWN.reset(token)


@contextmanager
def measuring() -> Iterator[Callable[[str], None]]:
    """Yield a function that prints what is measured now, with a clock below."""
    with open_progress() as progress:

        def report(line: str) -> None:
            progress.pause()
            progress.say(line)
            progress.watch("measuring")

        yield report


def on_interrupt(describe: Callable[[], str]) -> None:
    """Let Ctrl-C print what this returns behind "Interrupted: "."""
    click.get_current_context().meta[_INTERRUPTED] = describe


def interrupted_line(context: click.Context) -> str:
    """Return what to print after Ctrl-C: what is kept, and how to go on."""
    describe = context.meta.get(_INTERRUPTED)
    return f"Interrupted: {describe()}" if describe is not None else "Interrupted."


def tell_if_typed(paths: tuple[str, ...]) -> None:
    """Say that texts are read from the terminal, where else nothing seems to happen.

    Args:
        paths: inputs of a command; "-" is standard input.
    """
    if "-" in paths and sys.stdin is not None and sys.stdin.isatty():
        with open_progress() as progress:
            progress.say("reading texts from this terminal, one per line; Ctrl-D ends them")


def prints_to_terminal() -> bool:
    """Whether results appear on the terminal, where a bar would run into them."""
    return sys.stdout is not None and sys.stdout.isatty()
