"""A sink of your own: rows in an SQLite file, checked with embedlib.testing.check_sink.

docs/contributing.md explains the steps. A package that registers `open_sink` as an entry point of
the group embedlib.sinks under the name "mine" makes `embedlib index ... --to mine:PATH` work.
"""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np

from embedlib import indexing
from embedlib.errors import SinkError
from embedlib.testing import check_sink


def open_sink(url: indexing.SinkUrl) -> MySink:
    """Make the sink for a URL; an entry point names this function."""
    url.take()  # names the options of the sink; this one has none
    return MySink(url.path)


class MySink:
    """A file of rows; `embedlib.indexing.Sink` documents the methods."""

    def __init__(self, path: Path) -> None:
        self.name = f"mine:{path}"
        self._path = path
        self._lock: indexing.FileLock | None = None
        self._dim = 0

    def inspect(self) -> indexing.SinkState | None:
        """Return what is stored."""
        if not self._path.exists():
            return None
        ((state,),) = self._run("SELECT state FROM mine_load")
        ((num_rows,),) = self._run("SELECT count(*) FROM mine_row")
        return indexing.SinkState(num_rows=num_rows, index="none, exact scan", **json.loads(state))

    def begin(self, target: indexing.Target, tell: indexing.Tell) -> None:
        """Lock the file, then check or create it."""
        self._lock = indexing.FileLock(self._path.with_name(f"{self._path.name}.lock"), self.name)
        state = self.inspect()  # raises SinkError for a file of another program
        indexing.check_target(state, target, self.name)
        if target.similarity not in ("cosine", "dot"):
            raise SinkError(f"{self.name} compares by cosine or dot, not by {target.similarity}")
        if state is None or target.recreate:
            self._create(target)
        self._dim = target.dim

    def digests(self, ids: Sequence[UUID]) -> dict[UUID, bytes]:
        """Return the digests of stored rows."""
        query = "SELECT digest FROM mine_row WHERE id = ?"
        found = {id_: self._run(query, (id_.bytes,)) for id_ in ids}
        return {id_: rows[0][0] for id_, rows in found.items() if rows}

    def write(self, rows: Sequence[indexing.Row], vectors: indexing.Vectors) -> None:
        """Insert or replace rows in one transaction."""
        indexing.check_vectors(vectors, len(rows), self._dim)
        values = (
            (
                *(row.id.bytes, row.source_id, row.chunk, row.text),
                *(json.dumps(row.metadata), row.digest, vector.tobytes()),
            )
            for row, vector in zip(rows, vectors, strict=True)
        )
        self._run_many("REPLACE INTO mine_row VALUES (?, ?, ?, ?, ?, ?, ?)", values)

    def write_metadata(self, rows: Sequence[indexing.Row]) -> None:
        """Replace metadata and digests in one transaction."""
        values = ((json.dumps(row.metadata), row.digest, row.id.bytes) for row in rows)
        self._run_many("UPDATE mine_row SET metadata = ?, digest = ? WHERE id = ?", values)

    def scan(self) -> Iterator[indexing.RowKey]:
        """Yield the key of every row; a store of any size should read it in pages."""
        for id_, source_id, chunk in self._run("SELECT id, source_id, chunk FROM mine_row"):
            yield indexing.RowKey(id=UUID(bytes=id_), source_id=source_id, chunk=chunk)

    def delete(self, ids: Sequence[UUID]) -> None:
        """Remove rows."""
        self._run_many("DELETE FROM mine_row WHERE id = ?", ((id_.bytes,) for id_ in ids))

    def finish(self) -> None:
        """Do nothing: this store has no search index."""

    def search(self, vector: indexing.Vectors, k: int) -> list[indexing.Hit]:
        """Compare the vector with every row."""
        return self._nearest(vector, k, self._run("SELECT * FROM mine_row"))

    def search_where(
        self, vector: indexing.Vectors, k: int, where: indexing.Filter
    ) -> list[indexing.Hit]:
        """Compare the vector with every row that passes the filter."""
        accepts = indexing.matcher(where)
        rows = self._run("SELECT * FROM mine_row")
        return self._nearest(vector, k, [row for row in rows if accepts(json.loads(row[4]))])

    def _nearest(
        self, vector: indexing.Vectors, k: int, rows: list[tuple[Any, ...]]
    ) -> list[indexing.Hit]:
        if not rows:
            return []
        vectors = np.array([np.frombuffer(row[6], np.float32) for row in rows])
        state = self.inspect()
        assert state is not None
        if state.similarity == "cosine":
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            vector = vector / np.linalg.norm(vector)
        scores = vectors @ vector
        best = np.argsort(-scores)[:k].tolist()
        return [_hit(float(scores[number]), *rows[number]) for number in best]

    def close(self) -> None:
        """Release the lock; connections are closed after every call."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _create(self, target: indexing.Target) -> None:
        """Create the file under another name, so that a killed process leaves all of it or none."""
        new = self._path.with_name(f"{self._path.name}.new")
        new.unlink(missing_ok=True)
        fields = ("dim", "similarity", "fingerprint", "model", "precision")
        state = json.dumps({field: getattr(target, field) for field in fields})
        with closing(sqlite3.connect(new)) as database:
            database.execute(
                "CREATE TABLE mine_row"
                " (id BLOB PRIMARY KEY, source_id, chunk, text, metadata, digest, vector)"
            )
            database.execute("CREATE TABLE mine_load AS SELECT ? AS state", (state,))
            database.commit()
        os.replace(new, self._path)

    def _run(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            with closing(sqlite3.connect(self._path)) as database:
                return database.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise SinkError(f"{self.name}: {error}; choose another file") from error

    def _run_many(self, query: str, values: Iterable[Sequence[Any]]) -> None:
        try:
            with closing(sqlite3.connect(self._path)) as database, database:  # one transaction
                database.executemany(query, values)
        except sqlite3.Error as error:
            raise SinkError(f"{self.name}: {error}; run the load again to continue") from error


def _hit(
    score: float, id_: bytes, source_id: str, chunk: int, text: str, metadata: str, *_: Any
) -> indexing.Hit:
    about = json.loads(metadata)
    return indexing.Hit(
        score=score, id=UUID(bytes=id_), source_id=source_id, chunk=chunk, text=text, metadata=about
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        url = indexing.parse_url(f"mine:{folder}/rows.db")
        check_sink(lambda: open_sink(url))
    print("check_sink found nothing wrong")
