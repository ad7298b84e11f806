"""Checks the stored points of a folder of qdrant-client's local mode before the client reads them.

The client stores each point as a pickle. Who unpickles one that somebody else has made calls
whatever it names. So all of them are read here first, by an unpickler that knows points, vectors
and plain values, and nothing else.

Source: qdrant_client/local, qdrant_local.py and persistence.py.
"""

from __future__ import annotations

import io
import os
import pickle
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from embedlib.errors import SinkError, first_line
from embedlib.indexing import import_extra

STORAGE_FILE: Final = "storage.sqlite"
_MODELS: Final = "qdrant_client.http.models.models"
_PLAIN: Final = frozenset(
    {
        *(("datetime", name) for name in ("date", "datetime", "time", "timedelta", "timezone")),
        *(("uuid", "UUID"), ("decimal", "Decimal")),
    }
)
"""Types of values that other programs put into payloads. None of numpy's: the state of a dtype is
believed, and can make numbers of an array pointers."""


class _NamedError(Exception):
    """A pickle names something else than a point has."""


class _PointReader(pickle.Unpickler):
    """Reads a point; anything else that it names is an error, before it is looked up."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle names.

        Raises:
            _NamedError: it is no part of a point.
        """
        if (module, name) in _PLAIN:
            return super().find_class(module, name)
        if module == _MODELS and name.isidentifier():
            models = import_extra(_MODELS, "qdrant")
            found = getattr(models, name, None)
            if isinstance(found, type) and issubclass(found, models.BaseModel):
                return found
        raise _NamedError(f"{module}.{name}")


def check_points(folder: Path, collections: Iterable[str], sink_name: str) -> None:
    """Refuse a folder whose points the client must not read.

    Args:
        folder: of the client.
        collections: that it lists; others may be there and be read when one is created.
        sink_name: of the destination, for messages.

    Raises:
        SinkError: a point names something that no point has, or cannot be read.
    """
    place = folder / "collection"
    listed = {place / name / STORAGE_FILE for name in collections}
    for storage in sorted(listed.union(place.glob(f"*/{STORAGE_FILE}"))):
        if storage.exists():
            try:
                _check_storage(storage)
            except _NamedError as error:
                raise SinkError(
                    f"{sink_name}: {storage} has a point with {error}, which could run code; it "
                    "is not opened. If you trust who wrote it, read it with qdrant-client and "
                    "write what you need into another folder"
                ) from None
            except Exception as error:  # a damaged pickle may raise anything
                raise SinkError(
                    f"{sink_name}: {storage} cannot be read: {first_line(error)}"
                ) from error


def _check_storage(storage: Path) -> None:
    # To be written, too: what a killed process left half done is undone first, as the client does.
    address = f"file:{quote(os.fsencode(storage.absolute()))}?mode=rw"
    with closing(sqlite3.connect(address, uri=True)) as database:
        made = database.execute(
            "SELECT sql FROM sqlite_master WHERE lower(name) = 'points'"
        ).fetchone()
        if made is None:
            return  # the client makes the table
        # A view could show the client other points than these.
        if not str(made[0]).upper().startswith("CREATE TABLE"):
            raise ValueError("points is no table")
        for (value,) in database.execute("SELECT point FROM points"):
            _PointReader(io.BytesIO(value)).load()
