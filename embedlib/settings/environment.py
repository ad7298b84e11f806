"""Settings from variables of the environment: `EMBEDLIB_THREADS` sets `threads`."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import get_args, get_type_hints

from embedlib.config import Config
from embedlib.settings.names import MACHINE_SETTINGS, PREFIX, SETTINGS, Setting, check_setting

_SWITCHES = {
    **dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True),
    **dict.fromkeys(("0", "false", "f", "no", "n", "off"), False),
}
"""Words for True and False, as for the variables of single commands. Source: click.BOOL."""


def variable_of(name: str) -> str:
    """Return the variable that sets an option."""
    return f"{PREFIX}{name.upper()}"


def read_environment(names: Iterable[str] = SETTINGS) -> dict[str, Setting]:
    """Return the settings of the environment, by name; an empty variable sets nothing.

    Raises:
        ConfigError: a value is out of range; the message names the variable.
    """
    found = {}
    for name in names:
        variable = variable_of(name)
        if text := os.environ.get(variable):
            found[name] = check_setting(name, _value(name, text), variable, variable)
    return found


def environment_options(given: Iterable[str] = ()) -> dict[str, object]:
    """Return the options of a model that the environment sets for a program, without those given.

    Raises:
        ConfigError: a value is out of range; the message names the variable.
    """
    names = [name for name in MACHINE_SETTINGS if name not in set(given)]
    return {name: setting.value for name, setting in read_environment(names).items()}


def mistyped_variables(others: Collection[str] = ()) -> dict[str, str]:
    """Return variables that nothing reads and that look like a setting's, with that one's name.

    Others are left alone: Kubernetes sets `EMBEDLIB_PORT` and its like beside a service "embedlib".

    Args:
        others: variables that are read and are no setting's, as those of one command's option.
    """
    known = [variable_of(name) for name in SETTINGS]
    found = {}
    for variable in sorted(os.environ):
        near = get_close_matches(variable, known, n=1, cutoff=0.85)
        is_read = variable in known or variable in others
        if variable.startswith(PREFIX) and not is_read and near:
            found[variable] = near[0]
    return found


def _value(name: str, text: str) -> object:
    """Return a text as the type of its field; one that does not fit is refused by its check."""
    hint = get_type_hints(Config).get(name, str)
    types = get_args(hint) or (hint,)
    for number in (int, float):
        if number in types:
            try:
                return number(text)
            except ValueError:
                return text
    if hint is bool:
        return _SWITCHES.get(text.strip().lower(), text)
    return text
