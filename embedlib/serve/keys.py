"""API keys: in every spelling that clients send, compared in constant time."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path

from embedlib.errors import ConfigError, first_line
from embedlib.serve.errors import HTTPError

_SCHEMES = ("bearer ", "api-key ")
MAX_SCHEMES = 2
"""In front of a key: of each more of them the rest of the header would be copied again."""
_SPACES = " \t"
"""Around the value of a header they are no part of it."""
KEY_HEADERS = ("authorization", "x-api-key", "api-key")


class Keys:
    """The keys of a server; with none of them every request is let in."""

    def __init__(self, keys: Iterable[str]) -> None:
        """Keep the keys."""
        self._keys = tuple(
            (sent, owner_of(key)) for key in keys for sent in _encodings(key.strip(_SPACES))
        )

    def check(self, headers: Mapping[str, str]) -> str:
        """Check the key of a request; return whose jobs it sees, as `owner_of`; empty: all.

        Source: RFC 6750 for `Bearer K`, RFC 9110, 5.5, for the spaces around a value; llama-index
        sends `Bearer Bearer K`, Baseten's clients `Api-Key K`, others the header `x-api-key`.

        Raises:
            HTTPError: it has none, or a wrong one.
        """
        if not self._keys:
            return ""
        # A proxy may add a header of its own. Every key is compared with each, so that the time
        # tells nothing of which one came near.
        given = [_without_scheme(headers[name]) for name in KEY_HEADERS if headers.get(name)]
        owners = [
            owner for sent in given for key, owner in self._keys if hmac.compare_digest(sent, key)
        ]
        if not owners:
            what = "is wrong" if any(given) else "is missing"
            raise HTTPError(
                401, f"the API key {what}; send it as Authorization: Bearer KEY", "unauthorized"
            )
        return owners[0]


def _without_scheme(given: str) -> bytes:
    given = given.lstrip(_SPACES)
    for _ in range(MAX_SCHEMES):
        if given[:16].lower().startswith(_SCHEMES):
            given = given.partition(" ")[2].lstrip(_SPACES)
    return given.rstrip(_SPACES).encode("latin-1")  # as it was decoded


def _encodings(key: str) -> set[bytes]:
    """Return what clients send of a key: curl UTF-8, Python's and JavaScript's own Latin-1."""
    try:
        return {key.encode(), key.encode("latin-1")}
    except UnicodeEncodeError:  # such clients cannot send it
        return {key.encode()}


def owner_of(key: str) -> str:
    """Return what stands on disk for the key that made a job: the same always, and not the key."""
    return blake2b(key.encode(), digest_size=16, person=b"embedlib-jobs").hexdigest()


def read_keys(path: str | Path, what: str = "API key") -> tuple[str, ...]:
    """Return the keys in a file, one a line; empty lines and lines that begin with # do not count.

    Args:
        path: the file.
        what: they are, for messages; webhook secrets are written the same way.

    Raises:
        ConfigError: the file cannot be read, or has no key.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # editors on Windows begin with a mark
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the {what}s in {path} cannot be read: {first_line(error)}") from None
    lines = (line.strip() for line in text.splitlines())
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError(f"{path} has no {what}; write one a line")
    return keys
