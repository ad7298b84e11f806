"""A change of model on a server: a collection beside another one, and an alias that is moved.

The alias `docs` stands for one of the collections `docs__embedlib_1`, `docs__embedlib_2` and so on,
or, before the first change, for another collection of embedlib. The next number is the one that is
loaded. The alias `docs__embedlib_old` stands for what is kept. A number is never used again, so a
search that goes on with a collection by its name never meets the rows of another model.

An alias is moved by naming it again, which the server stores in one step; to delete it first, in
the same request, would be two, and it could die between them.

Source: `update_aliases` in lib/storage/src/content_manager/toc/collection_meta_ops.rs, and
alias_mapping.rs, of Qdrant 1.18.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Final
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import SinkError
from embedlib.indexing import (
    Filter,
    Hit,
    ReplacedError,
    SinkState,
    StoredRow,
    Target,
    Tell,
    UnreachableSinkError,
    models_of,
    tell_nobody,
)
from embedlib_qdrant.collection_options import GivenOptions
from embedlib_qdrant.connection import Connection
from embedlib_qdrant.load_requests import LoadRequests
from embedlib_qdrant.names import (
    check_collection_name,
    create_aliases,
    find_collection,
    list_aliases,
)
from embedlib_qdrant.points import CONTENT_KEY, Mark
from embedlib_qdrant.retry import is_refused
from embedlib_qdrant.server import ServerSink

MARK: Final = "__embedlib_"
"""Between the name of the alias and the number of a collection."""
OLD: Final = f"{MARK}old"
"""Behind the name of an alias: the alias of what is kept."""


class GenerationSink(ServerSink):
    """A collection of a server, or the alias of one whose model can be changed."""

    def __init__(
        self,
        name: str,
        connection: Connection,
        collection: str,
        given: GivenOptions,
        requests: LoadRequests,
        replaces: GenerationSink | None = None,
    ) -> None:
        super().__init__(name, connection, collection, given, requests)
        self._replaces = replaces
        self._held: SinkState | None = None

    # A search goes on with the collection that it began with.

    def hold(self, state: SinkState) -> None:
        """Search only in the collection of these models; the first search finds out which it is."""
        self._held, self._mark = state, None
        self.collection = self._alias

    def query(
        self, query: Any, k: int, where: Filter | None, using: str | None = None
    ) -> list[Hit]:
        """Return the nearest points; when their collection is gone, find it again."""
        try:
            return super().query(query, k, where, using)
        except SinkError as error:
            is_held = self._held is not None and not self._has_begun
            if not is_held or isinstance(error, UnreachableSinkError):
                raise
            before, self._mark = self.collection, None
            self.require_stored()
            if self.collection == before:
                raise
        return super().query(query, k, where, using)

    def require_stored(self) -> Mark:
        """Return the mark of the collection that is searched."""
        if self._held is not None and self._mark is None and not self._has_begun:
            self._mark = self._find_held(self._held)
        return super().require_stored()

    def _find_held(self, held: SinkState) -> Mark:
        """Find the collection of the held rows, and read it from now on."""
        now: Mark | None = None
        for alias in (self._alias, f"{self._alias}{OLD}"):
            name = self._stands_for(alias)
            mark = None if name is None else self._mark_of(name)
            if name is not None and mark is not None and models_of(mark) == models_of(held):
                self.collection = name
                return mark
            now = now or mark
        raise ReplacedError(self.name, held, None if now is None else now.model)

    # The collection beside, and the one that is kept.

    def beside(self) -> GenerationSink:
        """Return the sink for the collection that the alias is to stand for next."""
        current = self._stands_for(self._alias)
        if current == self._alias:
            raise SinkError(
                f"{self.name} is a collection, and its name cannot be moved to another one; give "
                "it an alias, and name that in the URL from then on (docs/qdrant.md has the "
                "request)"
            )
        given = self._given_as_stored(current)
        name = f"{self._alias}{MARK}{self._number(current) + 1}"
        check_collection_name(name)
        place = self.name.removesuffix(self._alias)
        connection = self._connection.again()
        sink = GenerationSink(f"{place}{name}", connection, name, given, self._requests, self)
        sink.sleep = self.sleep
        return sink

    def old(self) -> SinkState | None:
        """Return what is kept since the last switch."""
        name = self._kept()
        if name is None:
            return None
        kept = GenerationSink(self.name, self._connection, name, self.given, self._requests)
        return kept.inspect()

    def switch(self) -> None:
        """Move the alias."""
        main = self._replaces
        assert main is not None, "only what `beside` returned is switched"
        self.check_lease()
        before = main._stands_for(main._alias)
        if before == self.collection:
            return
        if main._kept() is not None:
            raise SinkError(f"{main.name} keeps old rows already; remove them: embedlib drop-old")
        if before is not None:
            self._name(before, f"{main._alias}{OLD}")
        self._name(self.collection, main._alias)

    def drop_old(self) -> None:
        """Delete the collection that is kept, which deletes its alias as well."""
        name = self._kept()
        if name is None:
            return
        aliases = self.call(lambda: list_aliases(self.connect(), name))
        others = sorted({*aliases} - {f"{self._alias}{OLD}"})
        if others:
            raise SinkError(
                f"{self.name}: the old rows are in the collection {name!r}, for which other "
                f"aliases stand as well ({', '.join(others)}); move or delete these first"
            )
        self.exclude_writers(tell_nobody)
        try:
            self.request("delete_collection", name)
        finally:
            self.close()

    def begin(self, target: Target, tell: Tell) -> None:
        """Open or create the collection, and exclude those who write what it is to replace."""
        self.close()  # what was begun before
        if self._replaces is not None:
            self._replaces.exclude_writers(tell)
        super().begin(target, tell)

    def exclude_writers(self, tell: Tell) -> None:
        """Become the only writer without changing anything."""
        self.tell = tell
        self.collection = self._stands_for(self._alias) or self._alias
        self.lock(None)
        if self.read_info() is not None:
            self.take_lease()

    def check_lease(self) -> None:
        """Raise an error if another writer has taken over, here or what this is to replace."""
        super().check_lease()
        if self._replaces is not None:
            self._replaces.check_lease()

    def disconnect(self) -> None:
        """Give all locks and leases back."""
        super().disconnect()
        if self._replaces is not None:
            self._replaces.disconnect()

    def stored_rows(self, ids: Sequence[UUID]) -> dict[UUID, StoredRow]:
        """Return text and vector of stored rows."""
        options = self.require_stored().options
        records = self.request(
            "retrieve",
            *(self.collection, [str(id_) for id_ in ids]),
            with_payload=[CONTENT_KEY],
            with_vectors=True,
        )
        return {
            UUID(str(record.id)): StoredRow(
                record.payload[CONTENT_KEY], _as_array(record.vector, options.vector)
            )
            for record in records
        }

    def _stands_for(self, name: str) -> str | None:
        """Return the collection of an alias, or of this name; None: there is none."""

        def find() -> str | None:
            try:
                found = find_collection(self.connect(), name)
                return found if self.connect().collection_exists(found) else None
            except Exception as error:
                if name != self._alias and is_refused(error):
                    return None  # a token for one collection, which knows no other
                raise

        return self.call(find)

    def _kept(self) -> str | None:
        """Return the collection that is kept; None: there is none.

        A switch that was killed by halves has named the one that searches still find.
        """
        found = self._stands_for(f"{self._alias}{OLD}")
        return None if found == self._stands_for(self._alias) else found

    def _mark_of(self, collection: str) -> Mark | None:
        info = self.read_info(collection)
        return None if info is None else self.mark_of(info.config.metadata)

    def _given_as_stored(self, collection: str | None) -> GivenOptions:
        """Return the options of the URL, and for the others those of a collection."""
        mark = None if collection is None else self._mark_of(collection)
        if mark is None:
            return self.given
        stored = {
            field.name: getattr(mark.options, field.name)
            for field in fields(mark.options)
            if field.name not in self.given.names
        }
        return replace(self.given, options=replace(self.given.options, **stored))

    def _number(self, collection: str | None) -> int:
        """Return the number of a collection of this alias; 0: it has none."""
        prefix, _, number = (collection or "").rpartition(MARK)
        is_ours = prefix == self._alias and number.isdecimal() and number.isascii()
        return int(number) if is_ours else 0

    def _name(self, collection: str, alias: str) -> None:
        self.call(lambda: create_aliases(self.connect(), self.models, collection, [alias]))


def _as_array(vector: Any, name: str) -> NDArray[np.float32]:
    """Return the vector of a point, which may have a name, and a sparse one beside it."""
    return np.asarray(vector[name] if isinstance(vector, dict) else vector, np.float32)
