"""Upload: a file that is written to disk while it arrives."""

from __future__ import annotations

import os
from uuid import uuid4

from embedlib.serve.errors import HTTPError
from embedlib.serve.jobs.files import FileRow
from embedlib.serve.jobs.tools import Tools

PART_BYTES = 1 << 20
"""Kept in memory before they are written."""


class Upload:
    """A file that arrives; it is no file until `finish`."""

    def __init__(self, tools: Tools, owner: str) -> None:
        """Begin with nothing, for this owner."""
        self._tools = tools
        self._owner = owner
        self.id = f"file-{uuid4().hex}"
        self._path = tools.folder.file(self.id)
        self._held = bytearray()
        self._is_kept = False
        self.num_bytes = 0

    async def __aenter__(self) -> Upload:
        """Return self."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Remove what arrived, unless it became a file."""
        if not self._is_kept:
            await self._tools.thread.run(lambda: self._tools.folder.remove(self.id))

    async def write(self, data: bytes) -> None:
        """Add data.

        Raises:
            HTTPError: the file is too large, or the disk has no room.
        """
        limit = self._tools.options.max_file_bytes
        self.num_bytes += len(data)
        if self.num_bytes > limit:
            raise HTTPError(
                413,
                f"the file has more than {limit:,} bytes; divide it, or start the server with a "
                "higher --max-file-mb",
                "too_large",
                param="file",
            )
        self._held += data
        if len(self._held) >= PART_BYTES:
            await self._flush()

    async def finish(self, *, filename: str, seconds: float) -> FileRow:
        """Make it a file, kept for some seconds; it is on disk when this returns.

        Raises:
            HTTPError: the disk has no room.
        """
        await self._flush()
        tools = self._tools
        now = int(tools.clock.now())
        row = FileRow(
            id=self.id,
            purpose="batch",
            filename=filename,
            num_bytes=self.num_bytes,
            created_at=now,
            expires_at=now + int(seconds),
            owner=self._owner,
        )

        def add() -> None:
            tools.folder.sync()
            tools.files.insert(row)

        # From here on it may be a file, even if nobody waits for the commit any more.
        self._is_kept = True
        try:
            await tools.thread.write(add)
        except Exception:
            self._is_kept = False
            raise
        return row

    async def _flush(self) -> None:
        data, self._held = self._held, bytearray()
        await self._tools.thread.run(lambda: self._append(data))

    def _append(self, data: bytearray) -> None:
        self._tools.folder.check_room(len(data))
        with self._path.open("ab") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
