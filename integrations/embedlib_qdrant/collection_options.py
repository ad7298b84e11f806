"""Options of a URL that are fixed when a collection is created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, cast, get_args

from embedlib.errors import SinkError
from embedlib.indexing import is_true

Quantization = Literal["none", "scalar", "binary"]

OVERSAMPLING = 3.0
"""A search in quantized vectors finds this many times the requested rows, then compares their exact
vectors."""


@dataclass(frozen=True, kw_only=True)
class CollectionOptions:
    """How a collection is created; fixed from then on.

    Attributes:
        m: edges of a node of the HNSW graph.
        ef_construct: candidates examined when a node is added to the graph.
        on_disk: keep vectors and graph on disk instead of in memory.
        quantization: search in smaller copies of the vectors first.
        shards: number of shards of a server's collection.
        replicas: copies of each shard, on different nodes of a cluster.
        write_consistency: replicas that must have taken a write before it is answered.
        vector: name of the vector; empty: the one without a name.

    Source: defaults of m and ef_construct: `storage.hnsw_index` of Qdrant's config/config.yaml.
    """

    m: int = 16
    ef_construct: int = 100
    on_disk: bool = False
    quantization: Quantization = "none"
    shards: int = 1
    replicas: int = 1
    write_consistency: int = 1
    vector: str = ""


OPTION_NAMES = tuple(field.name for field in fields(CollectionOptions))


@dataclass(frozen=True, kw_only=True)
class GivenOptions:
    """The options of a URL, and the defaults of the others.

    Attributes:
        names: the options that the URL has.
        options: all values, defaults included.
    """

    names: tuple[str, ...]
    options: CollectionOptions

    def check_stored(self, stored: CollectionOptions, name: str) -> None:
        """Refuse a collection that was created with other options.

        Raises:
            SinkError: an option in the URL differs.
        """
        for option in self.names:
            is_, wanted = getattr(stored, option), getattr(self.options, option)
            if is_ != wanted:
                raise SinkError(
                    f"{name} was created with {option}={_write(is_)}, not {_write(wanted)}; leave "
                    "the option out, or pass recreate=True (--recreate) to drop these rows and "
                    "start over"
                )


def parse_options(options: Mapping[str, str]) -> GivenOptions:
    """Parse the options of a URL, whose names were checked.

    Raises:
        SinkError: a value is not allowed.
    """
    parsed: dict[str, Any] = {}
    for option, value in options.items():
        if option == "on_disk":
            parsed[option] = is_true(value, option)
        elif option == "quantization":
            parsed[option] = _parse_quantization(value)
        elif option == "vector":
            parsed[option] = _parse_vector(value)
        else:
            parsed[option] = _parse_number(option, value)
    return GivenOptions(names=tuple(parsed), options=CollectionOptions(**parsed))


_LOWEST = {"m": 2, "ef_construct": 4, "shards": 1, "replicas": 1, "write_consistency": 1}
"""Source: all but m: `minimum` of Qdrant's OpenAPI schema. A graph
with m = 1 cannot be searched, and m = 0 means no graph.
"""


def _parse_number(option: str, value: str) -> int:
    lowest = _LOWEST[option]
    # Of too large a number Qdrant would say so when the rows that it replaces are dropped.
    if not value.isdecimal() or len(value) > 9 or int(value) < lowest:
        raise SinkError(f"{option}={value}: it must be a whole number from {lowest} to 999999999")
    return int(value)


def _parse_vector(value: str) -> str:
    if not value.isprintable() or value != value.strip() or not value:
        raise SinkError(f"vector = {value!r}; it must be a name, without blanks at its ends")
    return value


def _parse_quantization(value: str) -> Quantization:
    if value not in get_args(Quantization):
        known = ", ".join(get_args(Quantization))
        raise SinkError(f"quantization={value}: it must be one of {known}")
    return cast(Quantization, value)


def _write(value: object) -> str:
    return str(value).lower()
