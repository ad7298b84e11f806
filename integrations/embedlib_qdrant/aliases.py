"""Aliases: other names of a server's collection, which may be moved to another one at any time."""

from __future__ import annotations

from typing import Any

from embedlib_qdrant.retry import is_refused


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
