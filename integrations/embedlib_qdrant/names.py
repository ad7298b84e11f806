"""Names of a server's collection: which ones it may have, and its aliases.

An alias is another name of a collection, which may be moved to another one at any time.
"""

from __future__ import annotations

import unicodedata
from typing import Any

from embedlib.errors import SinkError
from embedlib_qdrant.retry import is_refused

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


def find_collection(client: Any, name: str) -> str:
    """Return the collection that an alias stands for now, or the name if it is not an alias."""
    try:
        aliases = client.get_aliases().aliases
    except Exception as error:
        if is_refused(error):  # a token for one collection; it names that, not an alias
            return name
        raise
    return next((each.collection_name for each in aliases if each.alias_name == name), name)


def list_aliases(client: Any, collection: str) -> list[str]:
    """Return the aliases of a collection."""
    return [each.alias_name for each in client.get_collection_aliases(collection).aliases]


def create_aliases(client: Any, models: Any, collection: str, names: list[str]) -> None:
    """Make all of these names stand for a collection, in one step."""
    client.update_collection_aliases(
        [
            models.CreateAliasOperation(
                create_alias=models.CreateAlias(collection_name=collection, alias_name=name)
            )
            for name in names
        ]
    )
