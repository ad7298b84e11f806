"""Options of a URL that ask for something to be done by this load, and are not stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from embedlib.errors import SinkError
from embedlib.indexing import is_true
from embedlib_qdrant.points import METADATA_KEY

KINDS = ("keyword", "integer", "float", "bool", "geo", "datetime", "text", "uuid")
"""Source: `PayloadSchemaType` of qdrant-client."""
_NAME = r'(?:[\w-]+|"[^"]+")(?:\[\])*'
_FIELD = re.compile(rf"{_NAME}(?:\.{_NAME})*")
"""A path as Qdrant reads it; the server would refuse another one when all rows are loaded."""
_COMMA = re.compile(r',(?=(?:[^"]*"[^"]*")*[^"]*$)')
"""Between two indexes; one inside of quotes is a part of a name."""
NAMES = ("payload_index", "snapshot")


@dataclass(frozen=True, kw_only=True)
class LoadRequests:
    """What a load does besides writing rows.

    Attributes:
        payload_indexes: by path in the payload, the kind of index that is made of it.
        takes_snapshot: whether a collection is copied on the server before it is dropped.
    """

    payload_indexes: Mapping[str, str]
    takes_snapshot: bool


def parse_requests(options: Mapping[str, str]) -> LoadRequests:
    """Read these options of a URL; others are ignored.

    Raises:
        SinkError: a value is not allowed.
    """
    return LoadRequests(
        payload_indexes=_parse_indexes(options.get("payload_index")),
        takes_snapshot=is_true(options.get("snapshot", "false"), "snapshot"),
    )


def _parse_indexes(value: str | None) -> dict[str, str]:
    indexes: dict[str, str] = {}
    for part in [] if value is None else _COMMA.split(value):
        field, colon, kind = part.rpartition(":")
        if not colon or not _FIELD.fullmatch(field) or kind not in KINDS:
            raise SinkError(
                f"payload_index={value}: it must be FIELD:KIND, several with commas, such as "
                "lang:keyword,year:float; FIELD is of the metadata, in double quotes if its name "
                "has other characters than letters, digits, _ and -, KIND one of "
                f"{', '.join(KINDS)}"
            )
        indexes[f"{METADATA_KEY}.{field}"] = kind
    return indexes
