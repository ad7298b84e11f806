"""Worker: starts what is due, several jobs at once, and records what runs out of time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from embedlib.serve.errors import HTTPError
from embedlib.serve.jobs.batch_run import BatchRun
from embedlib.serve.jobs.batches import BatchRow, End
from embedlib.serve.jobs.deliveries import deliver
from embedlib.serve.jobs.metrics import ENDS
from embedlib.serve.jobs.request_run import run_request
from embedlib.serve.jobs.spans import JobSpan
from embedlib.serve.jobs.tools import Tools, log
from embedlib.serve.jobs.webhook import Sender

TICK_SECONDS = 1.0
"""Between two looks for what is due by the clock; what is accepted is looked for at once."""
SWEEP_SECONDS = 60.0
"""Between two looks for what is kept no longer."""
MAX_BATCHES = 4
"""Batches that run at once; further ones wait, in their order."""
MAX_OPEN = 16
"""Batches that are looked at in a tick: so many end at once, which needs no place of those that
run, but a line of each in memory."""
MAX_REQUESTS = 64
MAX_REQUEST_BYTES = 64 << 20
"""Of asynchronous requests that run at once; below it one more may begin, of any size."""
MAX_DELIVERIES = 16
MAX_HOST_DELIVERIES = 4
"""To one host: one that does not answer leaves places to the others."""
MAX_DELIVERY_BYTES = 64 << 20
"""Of webhooks that are delivered at once; below it one more may begin."""


class Worker:
    """Runs the jobs of a folder on the event loop."""

    def __init__(self, tools: Tools, sender: Sender) -> None:
        """Take what to run them with."""
        self._tools = tools
        self._sender = sender
        self._woken = asyncio.Event()
        self._batches: dict[str, BatchRun] = {}
        self._not_loaded: set[str] = set()
        """Batches that wait for a server which has their model; they have no place."""
        self._requests: dict[str, int] = {}
        """The sizes of those that run."""
        self._deliveries: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start."""
        self._spawn(self._run())

    def wake(self) -> None:
        """Look for what is due, now."""
        self._woken.set()

    async def stop(self) -> None:
        """Stop everything; what is not saved is done again at the next start."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        swept_at = 0.0
        while True:
            self._woken.clear()
            try:
                await self._expire()
                await self._start_batches()
                await self._start_requests()
                await self._start_deliveries()
                now = self._tools.clock.now()
                if abs(now - swept_at) >= SWEEP_SECONDS:  # the clock may be set back
                    swept_at = now
                    await self._sweep()
            except Exception:  # nothing may end this loop: jobs would wait for ever
                log.exception("a look for jobs that are due")
            await self._tools.clock.wait(self._woken, TICK_SECONDS)

    async def _start_batches(self) -> None:
        tools = self._tools
        now = tools.clock.now()
        but = frozenset(self._not_loaded)  # it is read on the store's thread
        rows = await tools.read(lambda: tools.batches.open(limit=MAX_OPEN, now=now, but=but))
        for row in rows:
            end: End | None = "expired" if row.expires_at <= now else None
            if row.status == "cancelling":
                end = "cancelled"
            # What only has to be ended needs no place.
            if row.id not in self._batches and (end or len(self._batches) < MAX_BATCHES):
                run = self._batches[row.id] = BatchRun(row, tools, lambda: len(self._batches))
                self._spawn(self._run_batch(row, run))
            if end is not None:
                self._batches[row.id].stop(end)

    async def _run_batch(self, row: BatchRow, run: BatchRun) -> None:
        tools = self._tools
        started, state = tools.clock.now(), "stopped"
        try:
            state = await run.run()
            if state == "not_loaded":
                self._not_loaded.add(row.id)
                log.warning("batch %s waits: its model is not loaded, or lost; see /ready", row.id)
        except Exception:
            log.exception("batch %s", row.id)
            error = {
                "code": "server_error",
                "line": None,
                "message": "the server has a bug, or the input or output is gone; see its log",
                "param": None,
            }
            now = int(tools.clock.now())
            await tools.write(lambda: tools.batches.fail(row.id, [error], now))
            state = "failed"
        finally:
            del self._batches[row.id]
            if state in ENDS:
                tools.metrics.ended["batch", state] += 1
            tools.write_span(
                JobSpan(
                    kind="batch",
                    job_id=row.id,
                    traceparent=row.traceparent,
                    started=started,
                    ended=tools.clock.now(),
                    state=state,
                    error="failed" if state == "failed" else "",
                    attributes={
                        "http.route": row.endpoint,
                        "gen_ai.usage.input_tokens": run.num_tokens,
                        "embedlib.lines_completed": run.num_completed,
                        "embedlib.lines_failed": run.num_failed,
                    },
                )
            )
            if state != "stopped":  # its failure could not be written: not again at once
                self.wake()

    async def _start_requests(self) -> None:
        tools = self._tools
        most = max(1, min(MAX_REQUESTS, tools.options.max_waiting_requests // 4))
        max_requests = most - len(self._requests)
        max_bytes = MAX_REQUEST_BYTES - sum(self._requests.values())
        if max_requests <= 0 or max_bytes <= 0:
            return
        now = tools.clock.now()
        rows = await tools.write(
            lambda: tools.requests.take(max_requests=max_requests, max_bytes=max_bytes, now=now),
        )
        for row in rows:
            self._requests[row.id] = row.num_bytes
            self._spawn(self._ended(self._requests, row.id, partial(run_request, row, tools)))

    async def _start_deliveries(self) -> None:
        tools, running = self._tools, self._deliveries
        max_requests = MAX_DELIVERIES - len(running)
        max_bytes = MAX_DELIVERY_BYTES - sum(running.values())
        if max_requests <= 0 or max_bytes <= 0:
            return
        now = tools.clock.now()
        but = [*running]
        rows = await tools.read(
            lambda: tools.requests.due(
                max_requests=max_requests,
                max_per_host=MAX_HOST_DELIVERIES,
                max_bytes=max_bytes,
                now=now,
                but=but,
            ),
        )
        for row in rows:
            running[row.id] = row.num_bytes
            self._spawn(self._ended(running, row.id, partial(deliver, row, tools, self._sender)))

    async def _ended(
        self, running: dict[str, int], row_id: str, work: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            await work()
            self.wake()
        except Exception:  # not woken: a delivery is still due, and may fail the same way
            log.exception("request %s", row_id)
        finally:
            del running[row_id]

    async def _expire(self) -> None:
        tools = self._tools
        now = tools.clock.now()
        count = await tools.write(lambda: tools.requests.expire(now))
        tools.metrics.ended["async", "expired"] += count

    async def _sweep(self) -> None:
        """Delete what is kept no longer."""
        tools = self._tools
        now = tools.clock.now()
        before = now - tools.options.keep_jobs_seconds

        def delete() -> list[str]:
            tools.batches.delete_ended(before)
            tools.requests.delete_ended(before)
            return [*tools.files.delete_expired(now)]

        for file_id in await tools.write(delete):
            await tools.thread.run(partial(tools.folder.remove, file_id))
        with suppress(HTTPError):  # a full disk is no reason to wait: it moves pages first
            await tools.thread.run(tools.requests.shrink)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
