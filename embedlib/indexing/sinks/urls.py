"""Sink URLs: parsing, options and passwords."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from embedlib.checks import is_unicode
from embedlib.errors import SECRET_OPTION, SinkError, nearest

_HALF_A_LOGIN = re.compile(r"//[^/@\[]*:(?!\d+(?:[/,]|$))[^@]*")
"""A user with a password, or the first half of one, and no host, which a number would follow."""


@dataclass(frozen=True, kw_only=True)
class SinkUrl:
    """A destination as the user wrote it: `scheme:location?option=value`.

    Attributes:
        scheme: the part before the first colon.
        location: the rest without the options; for `scheme://...` it begins with `//`.
        options: the query part.
    """

    scheme: str
    location: str = field(repr=False)  # it may hold a password
    options: Mapping[str, str] = field(repr=False)

    @property
    def path(self) -> Path:
        """The location as a path; `~` is the home folder, as in a shell.

        Raises:
            SinkError: there is no such home folder.
        """
        try:
            return Path(self.location).expanduser()
        except RuntimeError as error:
            raise SinkError(
                f"{self.scheme}:{self.location}: there is no such home folder; write ./~ for a "
                "name that begins with ~"
            ) from error

    def take(self, *known: str) -> dict[str, str]:
        """Check the names of the options and return them.

        Raises:
            SinkError: an option is not one of `known`.
        """
        for option in self.options:
            if option not in known:
                raise SinkError(f"{self.scheme}: {_describe_unknown(option, known)}")
        return dict(self.options)


def _describe_unknown(option: str, known: tuple[str, ...]) -> str:
    if "@" in option:  # the second half of a password with an unescaped ? in it
        return (
            "the URL has an option with @ in its name; write ? and @ in a password as %3F and %40"
        )
    if re.fullmatch("api[_-]?key", option, re.IGNORECASE):
        return f"has no option {option!r}; a key comes from the environment (QDRANT_API_KEY)"
    return f"has no option {option!r}; {nearest(option, known) if known else 'it has none'}"


def parse_url(url: str) -> SinkUrl:
    """Split a destination into scheme, location and options.

    Raises:
        SinkError: the scheme is missing, an option is given twice, or it is not Unicode.
    """
    if not is_unicode(url):  # an argument of a command may have any byte
        raise SinkError(
            f"a destination must be UTF-8, and {without_password(url)!r} is not; rename the file "
            "or folder, or convert the URL"
        )
    scheme, colon, rest = url.partition(":")
    if not colon or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        # Not quoted in full: what looks like a path may be a mistyped URL with a password in it.
        raise SinkError(
            "a destination is SCHEME:PLACE, such as postgresql://localhost/mydb?table=docs, "
            f"edge:PATH or jsonl:FILE; {without_password(url)!r} has no scheme"
        )
    location, _, query = rest.partition("?")
    if "@" in query and _HALF_A_LOGIN.fullmatch(location):
        raise SinkError(
            f"{scheme}: the URL has an @ behind its ?; write ? and @ in a password as %3F and %40"
        )
    pairs = [pair.partition("=")[::2] for pair in query.split("&") if pair]
    options: dict[str, str] = {}
    for key, value in pairs:
        option = unquote(key)  # + is a plus, as in libpq
        if option in options:
            raise SinkError(f"{scheme}: the URL has the option {option!r} twice; give each once")
        options[option] = unquote(value)
    return SinkUrl(scheme=scheme.lower(), location=location, options=options)


def without_password(url: str) -> str:
    """Return a URL with `***` in place of its password, wherever that is."""
    url = re.sub(rf"(?i)((?:^|[?&\s]){SECRET_OPTION})[^&]*", r"\1***", url)
    # Up to the last @: a password may contain / ? and @ that should have been written as %2F and so
    # on. If an option contains an @, this hides too much. A number after the colon is a port.
    return re.sub(r"(//[^/?:]*):(?!\d+[/?,]).*@", r"\1:***@", url)


def is_true(value: str, option: str) -> bool:
    """Read a yes-or-no option of a URL.

    Raises:
        SinkError: the value is neither.
    """
    if value.lower() in ("true", "1", "yes"):
        return True
    if value.lower() in ("false", "0", "no"):
        return False
    raise SinkError(f"{option}={value}: it must be true or false")


def host_of(location: str) -> str:
    """Return host and port of `//user:password@host:port/...` for messages."""
    return urlsplit(location).netloc.rpartition("@")[2]
