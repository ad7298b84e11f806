"""OwnJobs: the jobs that the clients of one API key see, as the dialects ask for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Generic

from embedlib.serve.errors import HTTPError
from embedlib.serve.jobs.batches import BatchRow
from embedlib.serve.jobs.database import Page, R, Store
from embedlib.serve.jobs.files import FileRow
from embedlib.serve.jobs.requests import RequestRow
from embedlib.serve.jobs.thread import StoreThread
from embedlib.serve.jobs.tools import Tools
from embedlib.serve.jobs.uploads import Upload
from embedlib.serve.jobs.worker import Worker

READ_BYTES = 256 << 10
"""Of a file that is sent, at once in memory."""


class OwnRows(Generic[R]):
    """The rows of a store that one owner sees."""

    def __init__(self, store: Store[R], thread: StoreThread, owner: str) -> None:
        """Take the store, its thread, and the owner."""
        self._store = store
        self._thread = thread
        self._owner = owner

    async def get(self, row_id: str) -> R:
        """Return a row."""
        return await self._thread.run(lambda: self._store.get(row_id, self._owner))

    async def page(
        self, *, after: str | None, limit: int, is_descending: bool = True, **equal: str | None
    ) -> Page[R]:
        """Return a page of them, as `Store.page`."""
        return await self._thread.run(
            lambda: self._store.page(
                self._owner, after=after, limit=limit, is_descending=is_descending, **equal
            )
        )


class OwnJobs:
    """Files, batches and asynchronous requests of one owner; the others are not there for it.

    Every method raises `HTTPError` for an id that is not there, and of a disk without room. What is
    added is on disk when its method returns.
    """

    def __init__(self, tools: Tools, worker: Worker, owner: str) -> None:
        """Take the stores, who runs the jobs, and the owner; "" sees all jobs."""
        self._tools = tools
        self._worker = worker
        self._owner = owner
        self.files = OwnRows(tools.files, tools.thread, owner)
        self.batches = OwnRows(tools.batches, tools.thread, owner)
        self.requests = OwnRows(tools.requests, tools.thread, owner)

    def now(self) -> float:
        """Return the Unix time."""
        return self._tools.clock.now()

    async def count(self) -> Mapping[tuple[str, str], int]:
        """Count the jobs that have not ended, by kind and state, whoever made them."""
        tools = self._tools

        def count() -> tuple[dict[str, int], dict[str, int], int]:
            requests = tools.requests
            return tools.batches.count(), requests.count(), requests.count_webhooks()

        batches, requests, tools.metrics.num_webhooks = await tools.thread.run(count)
        waiting = batches.get("validating", 0)
        tools.metrics.now = {
            ("batch", "queued"): waiting,
            ("batch", "running"): sum(batches.values()) - waiting,
            ("async", "queued"): requests.get("QUEUED", 0),
            ("async", "running"): requests.get("IN_PROGRESS", 0),
        }
        return tools.metrics.now

    def upload(self) -> Upload:
        """Return a file that is to be written."""
        return Upload(self._tools, self._owner)

    async def delete_file(self, file_id: str) -> None:
        """Delete a file, unless a batch reads it."""
        await self._tools.thread.write(lambda: self._tools.files.delete(file_id, self._owner))
        await self._tools.thread.run(lambda: self._tools.folder.remove(file_id))

    async def read_file(self, file_id: str) -> tuple[FileRow, AsyncIterator[bytes]]:
        """Return a file and its content in parts; it may be deleted or cut meanwhile."""
        row = await self.files.get(file_id)
        path = self._tools.folder.file(row.id)
        if not await self._tools.thread.run(path.is_file):
            raise HTTPError(404, f"the content of {row.id} is gone from --data-dir", "missing")
        return row, self._parts(row)

    async def _parts(self, row: FileRow) -> AsyncIterator[bytes]:
        run = self._tools.thread.run
        stream = await run(lambda: self._tools.folder.file(row.id).open("rb"))
        try:
            left = row.num_bytes
            while left:
                part = await run(partial(stream.read, min(READ_BYTES, left)))
                if not part:
                    raise HTTPError(500, f"the content of {row.id} was cut in --data-dir", "failed")
                left -= len(part)
                yield part
        finally:
            stream.close()

    async def add_batch(self, row: BatchRow) -> None:
        """Accept a batch."""

        def add() -> None:
            self._tools.folder.check_room()
            row.owner = self._owner
            self._tools.batches.add(row)

        await self._tools.thread.write(add)
        self._worker.wake()

    async def cancel_batch(self, batch_id: str) -> BatchRow:
        """Cancel a batch that has not ended; it ends soon."""
        now = int(self.now())
        row = await self._tools.thread.write(
            lambda: self._tools.batches.cancel(batch_id, now, self._owner)
        )
        self._worker.wake()
        return row

    async def add_request(self, row: RequestRow, body: bytes) -> None:
        """Accept a request, if its webhook may go where it names."""
        if row.webhook is not None:
            row.webhook = self._tools.policy.endpoint(row.webhook).url

        def add() -> None:
            self._tools.folder.check_room(len(body))
            row.owner = self._owner
            self._tools.requests.insert(row, body=body)

        await self._tools.thread.write(add)
        self._worker.wake()

    async def result(self, request_id: str) -> tuple[RequestRow, bytes]:
        """Return a request, and its result; empty: it has none."""

        def read() -> tuple[RequestRow, bytes]:
            row = self._tools.requests.get(request_id, self._owner)
            return row, self._tools.requests.blob(request_id, "result")

        return await self._tools.thread.run(read)

    async def cancel_request(self, request_id: str) -> tuple[RequestRow, bool]:
        """Cancel a request; return it, and whether it was still queued."""
        now = self.now()

        def cancel() -> tuple[RequestRow, bool]:
            is_cancelled = self._tools.requests.cancel(request_id, now, self._owner)
            return self._tools.requests.get(request_id), is_cancelled

        row, is_cancelled = await self._tools.thread.write(cancel)
        self._tools.metrics.ended["async", "cancelled"] += is_cancelled
        return row, is_cancelled
