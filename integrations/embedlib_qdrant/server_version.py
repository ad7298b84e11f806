"""What a server is too old for."""

from __future__ import annotations

from typing import Final

from embedlib.errors import SinkError

METADATA: Final = (
    (1, 16),
    "embedlib stores the model's name in the metadata of a collection, which needs 1.16 or newer",
)
"""The first version that has it, and why it is needed."""
RANKING: Final = (
    (1, 20),
    "its text indexes do not rank, which needs 1.20 or newer; leave full_text (--full-text) out, "
    "or load sparse vectors (--sparse)",
)
"""Source: https://github.com/qdrant/qdrant-client/releases/tag/v1.20.0"""


def check_version(version: str, needed: tuple[tuple[int, int], str], name: str) -> None:
    """Refuse a server that cannot do what is needed.

    Raises:
        SinkError: it is too old.
    """
    least, why = needed
    numbers = version.split("-")[0].split(".")
    if tuple(int(number) for number in numbers[:2] if number.isdecimal()) < least:
        raise SinkError(f"{name}: the server is Qdrant {version}; {why}")
