"""The option `--ray` of commands that a cluster works for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., Any])


class _Address(click.ParamType[str]):
    """An address of a cluster, which a source or a model behind a bare `--ray` is not."""

    name = "address"

    def __init__(self, argument: str) -> None:
        """Create the type, for a command with this argument."""
        self._argument = argument

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the address; fails for any other text."""
        address = str(value)
        if address not in ("auto", "local") and re.fullmatch(r".+:\d+", address) is None:
            self.fail(
                f"{address!r} is no address of a cluster: auto, local or HOST:PORT, such as "
                f"10.0.0.1:6379; write --ray without one after {self._argument}",
                param,
                ctx,
            )
        return address


def ray_option(what: str, argument: str) -> Callable[[_F], _F]:
    """Return the option.

    Args:
        what: what the cluster does, for the help.
        argument: the command's, which must stand before a `--ray` without an address.
    """
    return click.option(
        "--ray",
        type=_Address(argument),
        is_flag=False,
        flag_value="auto",
        metavar="[ADDRESS]",
        help=f"{what}: auto, the running one; local, one for this command; or HOST:PORT. Write it "
        f"after {argument}.",
    )
