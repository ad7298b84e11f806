"""What a server is too old for."""

from __future__ import annotations

from embedlib.errors import SinkError

_METADATA = (1, 16)
"""The first version with metadata of collections."""
_RANKING = (1, 20)
"""The first version whose text indexes rank.

Source: https://github.com/qdrant/qdrant-client/releases/tag/v1.20.0"""


def check_metadata(version: str, name: str) -> None:
    """Refuse a server that cannot store the model's name.

    Raises:
        SinkError: it is too old.
    """
    if _parse(version) < _METADATA:
        raise SinkError(
            f"{name}: the server is Qdrant {version}; embedlib stores the model's name in the "
            "metadata of a collection, which needs 1.16 or newer"
        )


def check_ranking(version: str, name: str) -> None:
    """Refuse a server whose text indexes do not rank.

    Raises:
        SinkError: it is too old.
    """
    if _parse(version) < _RANKING:
        raise SinkError(
            f"{name}: the server is Qdrant {version}; its text indexes do not rank, which needs "
            "1.20 or newer; leave full_text (--full-text) out, or load sparse vectors (--sparse)"
        )


def _parse(version: str) -> tuple[int, ...]:
    numbers = version.split("-")[0].split(".")
    return tuple(int(number) for number in numbers[:2] if number.isdecimal())
