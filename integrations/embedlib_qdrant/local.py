"""`qdrant+local:PATH`: a folder of qdrant-client's local mode, for tests and a few thousand rows.

The client locks the folder itself, stores the mark in its collection metadata, writes row by row,
and compares all vectors in a search.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import SinkError, first_line
from embedlib.indexing import (
    BadRow,
    Filter,
    Hit,
    Row,
    SinkState,
    SinkUrl,
    SparseVector,
    UnstorableRowsError,
    Vectors,
    import_extra,
)
from embedlib_qdrant.collection import MARK_KEY, CollectionSink
from embedlib_qdrant.collection_options import parse_options
from embedlib_qdrant.creation import multivector_config, sparse_config
from embedlib_qdrant.filters import search_candidates
from embedlib_qdrant.full_text import SIMPLE
from embedlib_qdrant.local_points import STORAGE_FILE, check_points
from embedlib_qdrant.metadata_limits import FOLDER_LIMITS
from embedlib_qdrant.names import check_collection_name
from embedlib_qdrant.one_line_errors import REMEDIES, open_already
from embedlib_qdrant.points import DISTANCES, SPARSE_NAME, Mark, row_payload
from embedlib_qdrant.retry import T

DEFAULT_COLLECTION = "embedlib"
_META_FILE = "meta.json"
_LOCK_FILE = ".lock"
"""Source of both: qdrant_client/local, qdrant_local.py."""


def open_sink(url: SinkUrl) -> LocalSink:
    """Make the sink of `qdrant+local:PATH`."""
    options = url.take("collection")
    collection = options.get("collection", DEFAULT_COLLECTION)
    if not url.location or url.location.startswith("//"):
        raise SinkError("qdrant+local: needs a folder, such as qdrant+local:vectors")
    check_collection_name(collection)
    return LocalSink(url.path, collection)


class LocalSink(CollectionSink):
    """A collection in a folder of qdrant-client's local mode."""

    metadata_limits = FOLDER_LIMITS

    def __init__(self, path: Path, collection: str) -> None:
        suffix = "" if collection == DEFAULT_COLLECTION else f"?collection={quote(collection)}"
        # Options of the graph have no effect here and are therefore refused.
        super().__init__(f"qdrant+local:{path}{suffix}", collection, parse_options({}))
        self._path = path
        self._client: Any = None

    def connect(self) -> Any:
        """Open the folder, which reads all points into memory; return the client."""
        if self._client is None:
            self._client = self._open()
        return self._client

    def call(self, action: Callable[[], T]) -> T:
        """Run a request."""
        try:
            with self._warnings_told():
                return action()
        except SinkError:
            raise
        except Exception as error:
            # The client raises ValueError, RuntimeError, and errors of SQLite and the system.
            raise SinkError(f"{self.name}: {first_line(error)}") from error

    def lock(self, shard: str | None) -> None:
        """Open the folder: the client takes a lock, which ends with the process."""
        self._read_meta()  # refuses a folder of others
        self.call(self.connect)

    def create(self, mark: Mark) -> None:
        """Create the collection."""
        models = self.models
        vectors = models.VectorParams(
            size=mark.dim,
            distance=models.Distance(DISTANCES[mark.similarity]),
            multivector_config=multivector_config(models, mark),
        )
        self.request(
            "create_collection",
            self.collection,
            vectors_config=vectors,
            sparse_vectors_config=sparse_config(models, mark),
            metadata={MARK_KEY: mark.to_json()},
        )

    def store(
        self, rows: Sequence[Row], vectors: Vectors, weights: Sequence[SparseVector] | None
    ) -> None:
        """Store points; the client writes one after the other."""
        both: list[Any] = [each.tolist() for each in vectors]
        if weights is not None:
            both = [
                {"": vector, SPARSE_NAME: self.sparse_of(sparse)}
                for vector, sparse in zip(both, weights, strict=True)
            ]
        bad_rows = list[BadRow]()
        points = [
            self.models.PointStruct(id=str(row.id), vector=vector, payload=row_payload(row))
            for row, vector in zip(rows, both, strict=True)
            if self.metadata_limits.takes(row, bad_rows)
        ]
        if points:
            self.request("upsert", self.collection, points)
        if bad_rows:
            raise UnstorableRowsError(self.name, bad_rows)

    def read_info(self, collection: str | None = None) -> Any:
        """Return the client's `CollectionInfo`; does not open, and so create, a missing folder."""
        if self._client is None and self._read_meta() is None:
            return None
        return super().read_info(collection)

    def inspect(self) -> SinkState | None:
        """Return what is stored, read from the files: the client would take its lock.

        The number of rows includes points that other programs added.
        """
        config = (self._read_meta() or {}).get(self.collection)
        if config is None:
            return None
        mark = self.mark_of(config.get("metadata"))
        storage = self._path / "collection" / self.collection / STORAGE_FILE
        if not storage.exists():
            return mark.to_state(0, "none, exact scan")
        try:
            address = f"file:{quote(os.fsencode(storage.absolute()))}?mode=ro"
            with closing(sqlite3.connect(address, uri=True)) as database:
                (num_rows,) = database.execute("SELECT count(*) FROM points").fetchone()
        except sqlite3.Error as error:
            raise SinkError(f"{self.name}: {storage}: {error}") from error
        return mark.to_state(num_rows, "none, exact scan")

    def search_where(self, vector: NDArray[np.float32], k: int, where: Filter) -> list[Hit]:
        """Return the nearest of the rows that pass a filter.

        The client's own filters differ from those of the engine: to it true is a number.
        """
        return search_candidates(
            lambda limit: self.search(vector, limit), k, where, self.name, most=None
        )

    def search_second(self, query: Any, using: str, k: int, where: Filter | None) -> list[Hit]:
        """Return the best rows by anything but their vectors; as for `search_where`."""
        if where is None:
            return super().search_second(query, using, k, None)
        return search_candidates(
            lambda limit: super(LocalSink, self).search_second(query, using, limit, None),
            *(k, where, self.name),
            most=None,
        )

    def check_full_text(self, language: str | None) -> None:
        """Refuse all languages: the client has no stems and no stop words."""
        super().check_full_text(language)
        if language not in (None, SIMPLE):
            raise SinkError(
                f"{self.name}: full_text = {language!r:.60}; the client's local mode takes words "
                "as they are; write 'simple', or load into edge: or a server"
            )

    def finish(self) -> None:
        """Index the words, if the load asks for it; every row is stored already."""
        self.build_text_index(self.read_info())

    def disconnect(self) -> None:
        """Close the folder, which releases the lock."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _open(self) -> Any:
        module = import_extra("qdrant_client", "qdrant")
        meta = self._path / _META_FILE
        if meta.exists() and meta.stat().st_size == 0:
            # The client was killed while it created the folder.
            meta.unlink()
        if self._is_locked():
            raise open_already(self.name)
        check_points(self._path, self._read_meta() or (), self.name)
        try:
            # One thread at a time calls, but not always the same.
            return module.QdrantClient(path=str(self._path), force_disable_check_same_thread=True)
        except OSError as error:
            raise self._cannot_open(error) from error

    def _is_locked(self) -> bool:
        # The client checks this too, but only after it has read all points, and then leaves files
        # open.
        try:
            with open(self._path / _LOCK_FILE, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        except OSError as error:
            raise self._cannot_open(error) from error
        return False

    def _cannot_open(self, error: OSError) -> SinkError:
        """Name the folder: the client writes its lock file to read, and names only that file."""
        remedy = REMEDIES.get(error.errno or 0, "make sure that the folder can be written")
        return SinkError(
            f"{self.name} cannot be opened: {error.strerror or error}: folder {str(self._path)!r}; "
            f"{remedy}"
        )

    def _read_meta(self) -> dict[str, Any] | None:
        """Return the collections of the folder; None: it is missing or empty.

        Raises:
            SinkError: qdrant-client did not create the folder.
        """
        try:
            text = (self._path / _META_FILE).read_bytes()
        except FileNotFoundError:
            if self._path.exists() and os.listdir(self._path):
                raise SinkError(
                    f"{self.name} is a folder that qdrant-client did not create; choose another one"
                ) from None
            return None
        except OSError as error:
            raise SinkError(f"{self.name} cannot be read: {error.strerror}") from error
        if not text:
            return None
        try:
            collections: dict[str, Any] = json.loads(text)["collections"]
        except (ValueError, KeyError, TypeError) as error:
            raise SinkError(f"{self.name}: {_META_FILE} cannot be read: {error!r}") from error
        return collections

    @contextmanager
    def _warnings_told(self) -> Iterator[None]:
        """Pass the client's warnings on to `tell`, such as the one about too many rows."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        for warning in caught:
            line = " ".join(str(warning.message).split())
            self.tell(f"{self.name}: {line}")
