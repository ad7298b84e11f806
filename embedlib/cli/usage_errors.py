"""What a wrong command line is told: click says what is wrong, this adds what to write instead."""

from __future__ import annotations

import re
from difflib import get_close_matches

import click
from click.core import ParameterSource

from embedlib.cli.other_servers import OTHER_SERVERS
from embedlib.errors import shortened, without_passwords

_ARGUMENTS = {"-m": "MODEL", "--model": "MODEL", "--model-id": "MODEL", "--to": "URL"}
"""Options of some commands, or of other programs, and the name of the argument that they are."""
_TEXTS = ("QUESTION", "QUERY")
"""Arguments that are texts and may begin with a dash."""


def explain(error: click.UsageError, group: click.Context) -> click.UsageError:
    """Return the error of a command line, in one line with what to write instead.

    Another error is returned where click's class would write its own words around the message.

    Args:
        error: click's.
        group: the context of `embedlib`, which knows the command where the error does not.
    """
    if error.ctx is None and group.invoked_subcommand is not None:
        assert isinstance(group.command, click.Group)
        command = group.command.get_command(group, group.invoked_subcommand)
        if command is not None:
            error.ctx = click.Context(command, group, group.invoked_subcommand)
    if isinstance(error, click.NoSuchOption):
        return _of_no_option(error)
    if isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter):
        _name_variable(error)
        # It quotes a value of any length; a new error would lose the kind and its usage line.
        error.message = shortened(without_passwords(_in_our_words(error)))  # type: ignore[misc]
        return error
    # Choices come on lines of their own.
    said = shortened(without_passwords(" ".join(error.format_message().split())))
    if isinstance(error, (click.MissingParameter, click.BadOptionUsage)):
        option = error.option_name if isinstance(error, click.BadOptionUsage) else None
        said = f"{said.removesuffix('.')}.{_for_example(error.ctx, option)}"
        return click.UsageError(said, error.ctx)
    if said.startswith("Got unexpected extra argument"):
        said = f"{said}. A value with blanks needs quotes.{_for_example(error.ctx)}"
        return click.UsageError(said, error.ctx)
    error.message = said  # type: ignore[misc]
    return error


def refuse(why: str, *names: str) -> None:
    """Refuse options of the command line that the running command would ignore.

    Those that a variable sets are not refused: it may be meant for another run of the command.

    Args:
        why: what the message says behind the option.
        *names: of the options' parameters.

    Raises:
        click.UsageError: one is given.
    """
    context = click.get_current_context()
    for option in context.command.params:
        name = str(option.name)
        if name in names and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{max(option.opts, key=len)} {why}")


def _name_variable(error: click.BadParameter) -> None:
    """Let the error say which variable has the value, if it is none of the command line."""
    option = error.param
    if not (error.ctx and isinstance(option, click.Option) and isinstance(option.envvar, str)):
        return
    source = error.ctx.get_parameter_source(str(option.name))
    if source is ParameterSource.ENVIRONMENT and not error.param_hint:
        error.param_hint = f"{option.envvar}, which sets {option.get_error_hint(error.ctx)}"


def _in_our_words(error: click.BadParameter) -> str:
    """Return what is wrong with a value; of a number also which ones are taken."""
    switch = re.fullmatch(r"(.*) is not a valid boolean\..*", error.message, re.DOTALL)
    if switch is not None:  # of a variable
        return f"{switch[1]}; give 1, true, yes or on, or 0, false, no or off"
    said = re.fullmatch(r"(.*) is not a valid (integer|float)( range)?\.", error.message, re.DOTALL)
    if said is None:
        return error.message
    kind = error.param.type if error.param is not None else None
    low, high = getattr(kind, "min", None), getattr(kind, "max", None)
    wanted = "a whole number" if said[2] == "integer" else "a number"
    if low is not None:
        wanted += f" of at least {low}" if high is None else f" from {low} to {high}"
    return f"{said[1]}; give {wanted}"


def _of_no_option(error: click.NoSuchOption) -> click.UsageError:
    """Return an error that names the option that was meant, or what has its place here."""
    context, name = error.ctx, shortened(error.option_name)
    if context is None:
        return error
    parameters = context.command.params
    argument = _ARGUMENTS.get(name, "")
    names = [parameter.human_readable_name.removesuffix("...") for parameter in parameters]
    options = [each for each in parameters if isinstance(each, click.Option)]
    known = [option for each in options for option in (*each.opts, *each.secondary_opts)]
    abbreviated = [each for each in known if each.startswith(name)]
    near = abbreviated[:1] or get_close_matches(name, known, n=1, cutoff=0.75)
    if argument in names:
        said = f"No such option {name!r}; give {argument} without it, as shown above."
    elif context.command.name == "serve" and name in OTHER_SERVERS:
        said = f"No such option {name!r}; {OTHER_SERVERS[name]}."
    elif near:
        said = f"No such option {name!r}. Did you mean {near[0]!r}?"
    elif isinstance(context.command, click.Group):
        said = f"No such option {name!r}; options stand behind the name of a command."
    else:
        said = f"No such option {name!r}; `{context.command_path} --help` lists those it takes."
        # Of a text click names its first letter, as an option, or all of it behind two dashes.
        text = next((each for each in names if each in _TEXTS), None)
        if text is not None and (len(name) == 2 or " " in name):
            said += f" Put -- before a {text} that begins with a dash."
    return click.UsageError(said, context)


def _for_example(context: click.Context | None, option: str | None = None) -> str:
    """Return the first example of a command's help, or the first with the option."""
    text = "" if context is None else context.command.help or ""
    examples = re.findall(r"^ +(embedlib .+)$", text.partition("Example")[2], re.MULTILINE)
    found = [each for each in examples if option is None or option in each.split()] or examples
    if found:
        return f" For example: {found[0]}"
    return "" if context is None else f" `{context.command_path} --help` shows what it takes."
