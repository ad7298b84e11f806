"""The `embedlib` command. Commands only read options and files and call the library.

This module must stay fast to import, because every `embedlib --help` imports it: a command's module
is imported when the command is used, and imports the library inside the command's function.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import threading
import warnings
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from typing import Any

import click

from embedlib.cli.progress import interrupted_line, quiet_option
from embedlib.cli.usage_errors import explain
from embedlib.errors import EmbedlibError, shortened, visible_line
from embedlib.threads.closing import is_worker
from embedlib.version import __version__

_COMMANDS = (
    *("bench", "bench-write", "chunks", "classify", "compile", "completion", "config", "convert"),
    *("doctor", "drop-old", "encode", "index", "inspect", "models", "pack", "rerank", "search"),
    *("serve", "status", "tune", "verify"),
)
"""The command NAME is the function NAME in the module NAME of this package, with _ for -."""

_WITHOUT_OUTPUT = {"encode", "serve"}
"""Commands that run with standard output closed: encode may write a file, and says what it cannot
write; of serve it has only the access log."""
_WITHOUT_PROGRESS = {"completion", "config", "doctor", "drop-old", "models", "serve", "status"}
_DEBUG = "embedlib.debug"
_EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
_EXIT_TERMINATED = 143  # 128 + SIGTERM


class _TerminatedError(KeyboardInterrupt):
    """SIGTERM came. Commands clean up and say what is kept, as they do after Ctrl-C."""


def _remember_debug(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    context.meta[_DEBUG] = context.meta.get(_DEBUG, False) or value


def _debug_option() -> click.Option:
    return click.Option(
        ["--debug"],
        is_flag=True,
        expose_value=False,
        callback=_remember_debug,
        help="Show the Python traceback of an error.",
    )


def _variable(command: str, option: click.Option) -> str:
    """Return the option's environment variable, named after its flag.

    click would name it after the parameter.
    """
    flag = max(option.opts, key=len).lstrip("-").replace("-", "_")
    return f"EMBEDLIB_{command}_{flag}".upper()


class _Commands(click.Group):
    """Imports a command's module when the command is used, and prints errors on one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        if cmd_name not in self.commands:
            name = cmd_name.replace("-", "_")
            command: click.Command = getattr(importlib.import_module(f"{__name__}.{name}"), name)
            if cmd_name not in _WITHOUT_PROGRESS:
                command.params.append(quiet_option())
            command.params.append(_debug_option())
            for option in command.params:
                if isinstance(option, click.Option):
                    option.envvar = _variable(name, option)
            self.add_command(command, cmd_name)
        return self.commands[cmd_name]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _COMMANDS and not ctx.resilient_parsing:  # not while a shell completes
            near = get_close_matches(args[0], _COMMANDS, n=1)
            way = f"Did you mean {near[0]!r}?" if near else "`embedlib --help` lists all commands."
            ctx.fail(f"No such command {shortened(args[0])!r}. {way}")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise explain(error, ctx) from None
        except click.exceptions.Exit:  # of --version or --help
            _refuse_closed_output()
            raise
        except BrokenPipeError:
            raise  # click exits silently when the reader of a pipe is gone
        except OSError as error:  # of --version or --help
            raise _of_stream(error) from error

    def invoke(self, ctx: click.Context) -> object:
        formatwarning, warnings.formatwarning = warnings.formatwarning, _format_warning
        unraisable, sys.unraisablehook = sys.unraisablehook, report_unraisable
        try:
            return super().invoke(ctx)
        except click.exceptions.Exit:  # of the --help of a command, too
            _refuse_closed_output()
            raise
        except click.UsageError as error:
            raise explain(error, ctx) from None
        except click.ClickException as error:
            error.message = shortened(error.message)  # type: ignore[misc] # may quote a long value
            raise
        except EmbedlibError as error:
            if ctx.meta.get(_DEBUG):
                raise
            raise click.ClickException(visible_line(str(error))) from error
        except BrokenPipeError:
            raise  # click exits silently when the reader of a pipe is gone
        except OSError as error:
            if ctx.meta.get(_DEBUG):
                raise
            raise _of_stream(error) from error
        except KeyboardInterrupt as error:
            code = _EXIT_TERMINATED if isinstance(error, _TerminatedError) else _EXIT_INTERRUPTED
            click.echo(interrupted_line(ctx), err=True)
            if any(map(is_worker, threading.enumerate())):
                # Ctrl-C was pressed again while a model was closing: the interpreter cannot exit
                # in order while a thread of the model computes. A load may be killed at any time.
                os._exit(code)
            ctx.exit(code)
        finally:
            warnings.formatwarning = formatwarning
            sys.unraisablehook = unraisable


def _refuse_closed_output() -> None:
    """Refuse to work for a result that click would drop without a word."""
    if sys.stdout is None:
        raise click.ClickException(
            "cannot write standard output: it is closed; /dev/null takes what nobody reads"
        )


def _of_stream(error: OSError) -> click.ClickException:
    """Return what to raise for an error of the operating system that no command has explained."""
    step = error.__traceback__
    while step is not None and step.tb_frame.f_code is not click.echo.__code__:
        step = step.tb_next
    if step is not None:
        return click.ClickException(f"cannot write standard output: {error.strerror}")
    return click.ClickException(f"{shortened(str(error))}; --debug shows the traceback")


def _escape_unprintable() -> None:
    """Print escapes of what the encoding of standard output lacks, as Python does on the other."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # It asks a file for its position, and the file may have become none.
        with suppress(OSError):
            sys.stdout.reconfigure(errors="backslashreplace")


def _clean_up_at_sigterm(context: click.Context) -> None:
    """Let SIGTERM end a command as Ctrl-C does, not at once: parts of files would stay behind."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
        context.call_on_close(partial(signal.signal, signal.SIGTERM, signal.SIG_DFL))


def _terminate(_number: int, _frame: object) -> None:
    raise _TerminatedError


def report_unraisable(unraisable: Any) -> None:
    """Report an error that Python cannot raise, unless it is a Ctrl-C that came at that instant."""
    if not isinstance(unraisable.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)


def _format_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Format a warning without its line of code, which the user of a command did not write."""
    return f"Warning: {message}\n"


@click.command(
    cls=_Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "EMBEDLIB",
        "show_default": True,
    },
    epilog="`embedlib COMMAND --help` explains a command, with examples. Every option can be set "
    "in the environment: --truncate-dim of `embedlib encode` is EMBEDLIB_ENCODE_TRUNCATE_DIM, and "
    "EMBEDLIB_THREADS the --threads of all commands. EMBEDLIB_MODEL is the model of commands that "
    "are given none. `embedlib config` shows what is set, also in files (docs/settings.md).",
)
@click.version_option(__version__, prog_name="embedlib", allow_from_autoenv=False)
@click.pass_context
def main(context: click.Context) -> None:
    """Text embeddings in your own process, at the speed of the chip."""
    if context.invoked_subcommand not in _WITHOUT_OUTPUT:
        _refuse_closed_output()
    _escape_unprintable()
    if context.invoked_subcommand != "serve":  # which answers what runs first
        _clean_up_at_sigterm(context)
    # gRPC, which connects to some destinations, writes log lines to the terminal. Its failures are
    # raised all the same. Only here, where the whole process is ours: a library must not set it.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


main.params.append(_debug_option())
