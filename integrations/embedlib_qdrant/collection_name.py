"""Which names a server's collection may have, checked before anything is sent."""

from __future__ import annotations

import unicodedata

from embedlib.errors import SinkError

MAX_NAME_BYTES = 255
_REFUSED = '<>:"/\\|?*'
"""Source of the length and these characters: the validation of Qdrant 1.18, which also refuses some
control characters. It takes `.` and `..`, which then lead out of its storage folder."""
_CONTROLS = ("Cc", "Cs", "Zl", "Zp")
"""Unicode's categories of control characters, lone surrogates, and separators of lines."""


def check_collection_name(name: str) -> None:
    """Refuse a name that cannot be the name of a folder in the server's storage.

    Raises:
        SinkError: says what is wrong with it.
    """
    wrong = _find_fault(name)
    if wrong is not None:
        raise SinkError(
            f"collection = {name!r:.60} {wrong}; a name has 1 to {MAX_NAME_BYTES} bytes, no "
            f"control characters and none of {' '.join(_REFUSED)}"
        )


def _find_fault(name: str) -> str | None:
    if name in (".", ".."):
        return "is the name of another folder"
    if not name.strip() or name != name.strip():
        return "is empty, or begins or ends with a blank"
    if len(name.encode(errors="replace")) > MAX_NAME_BYTES:
        return f"has {len(name.encode(errors='replace'))} bytes"
    for character in name:
        if character in _REFUSED or unicodedata.category(character) in _CONTROLS:
            return f"contains {character!r}"
    return None
