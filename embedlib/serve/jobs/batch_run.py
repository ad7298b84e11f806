"""BatchRun: one batch from its check to its end, in bounded memory, resumable at any instant."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Literal, NamedTuple

from embedlib.serve.jobs.answers import Answer
from embedlib.serve.jobs.batches import BatchRow, End, Progress
from embedlib.serve.jobs.lines import (
    Checker,
    Line,
    RequestLine,
    num_texts,
    parse_line,
    read_lines,
    write_answer,
    write_reason,
)
from embedlib.serve.jobs.tools import Tools

State = Literal["done", "failed", "cancelled", "expired", "not_loaded"]
"""How a run ended; "not_loaded": the batch goes on when a server could load the model."""
MAX_TEXTS = 1024
"""Of a batch that are computed at once: two windows of the scheduler's, so that one is full."""
MAX_LINES = 512
"""Of all batches that are answered at once, and at most half of the places at a model's door: the
others are for requests whose clients wait."""
MAX_BYTES = 32 << 20
"""Of the lines that are answered at once; always one line."""
ATTEMPTS = 3
"""Of a line whose answer is a failure of the engine."""
FAILED_SECONDS = 1.0
_REASONS = {
    "cancelled": "the batch was cancelled before this request was tried",
    "expired": "the completion window was over before this request was tried",
}


class _Parsed(NamedTuple):
    """A line, and what it asks for."""

    line: Line
    request: RequestLine
    num_texts: int


class _Window:
    """The lines that are answered now, in their order, and those behind the first one's answer."""

    def __init__(self, max_lines: Callable[[], int]) -> None:
        self._max_lines = max_lines
        self.running: deque[tuple[_Parsed, asyncio.Task[Answer]]] = deque()
        self._num_texts = 0
        self._num_bytes = 0

    @property
    def is_full(self) -> bool:
        return (
            len(self.running) >= self._max_lines()
            or self._num_texts >= MAX_TEXTS
            or self._num_bytes >= MAX_BYTES
        )

    def add(self, parsed: _Parsed, task: asyncio.Task[Answer]) -> None:
        self.running.append((parsed, task))
        self._num_texts += parsed.num_texts
        self._num_bytes += len(parsed.line.data)

    def take_answered(self) -> list[tuple[_Parsed, Answer]]:
        """Take the first lines out, up to one without an answer, or whose model is not loaded."""
        answered = []
        while self.running and self.running[0][1].done():
            parsed, task = self.running[0]
            if task.result().is_not_loaded:
                break
            self.running.popleft()
            self._num_texts -= parsed.num_texts
            self._num_bytes -= len(parsed.line.data)
            answered.append((parsed, task.result()))
        return answered


class BatchRun:
    """Runs one batch; what it has saved is not computed again when it is run anew."""

    def __init__(self, row: BatchRow, tools: Tools, num_batches: Callable[[], int]) -> None:
        """Take a batch that has not ended, and how many run now."""
        self._row = row
        self._num_batches = num_batches
        self._tools = tools
        self._end: End = "completed"
        self._is_loaded = True
        """False: a line's model could not be loaded."""
        self._stopped = asyncio.Event()
        self.num_completed = 0
        """Lines answered by this run; a run before it may have answered others."""
        self.num_failed = 0
        self.num_tokens = 0

    def stop(self, end: End) -> None:
        """End the batch soon: what runs is dropped, what is answered is kept."""
        self._end = end
        self._stopped.set()

    async def run(self) -> State:
        """Run the batch to its end, and return it. Cancelling leaves it to the next start."""
        row, tools = self._row, self._tools
        if row.in_progress_at is None and not await self._check():
            if self._end == "completed":
                return "failed"
        else:
            await self._answer_lines()
            if not self._is_loaded:
                return "not_loaded"
            if self._end != "completed":
                await self._refuse_lines()
        end, now = self._end, int(tools.clock.now())
        await tools.write(lambda: tools.batches.finish(row.id, end, now))
        return "done" if end == "completed" else end

    async def _check(self) -> bool:
        """Check the input; return whether it is right and the batch goes on."""
        row, tools = self._row, self._tools
        checker = Checker(
            tools.folder.file(row.input_file_id),
            row.endpoint,
            max_lines=tools.options.max_batch_requests,
            max_line_bytes=tools.options.max_body_bytes,
        )
        while not self._stopped.is_set() and await tools.read(checker.step):
            pass
        if self._stopped.is_set():
            return False
        now = int(tools.clock.now())
        if checker.errors:
            await tools.write(lambda: tools.batches.fail(row.id, checker.errors, now))
            return False
        await tools.write(lambda: tools.batches.begin(row.id, checker.num_requests, now))
        return True

    async def _answer_lines(self) -> None:
        """Answer the lines behind the saved ones, in their order, several at once."""
        window = _Window(self._max_lines)
        try:
            async for parsed in self._lines():
                while window.is_full and not self._stopped.is_set():
                    await self._save_answered(window)
                if self._stopped.is_set():
                    break
                window.add(parsed, asyncio.create_task(self._answer(parsed)))
            while window.running:
                await self._save_answered(window)
                if self._stopped.is_set():
                    return
        finally:
            tasks = [task for _, task in window.running]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _max_lines(self) -> int:
        """Return how many lines may be answered at once: the share of one batch."""
        places = min(MAX_LINES, self._tools.options.max_waiting_requests // 2)
        return max(1, places // self._num_batches())

    async def _refuse_lines(self) -> None:
        """Write why the lines behind the saved ones were not tried."""
        row, reason = self._row, _REASONS[self._end]
        async for parsed in self._slices():
            lines = [
                write_reason(row.id, line, request.custom_id, f"batch_{self._end}", reason)
                for line, request, _ in parsed
            ]
            last = parsed[-1].line
            progress = Progress(
                input_offset=last.end, num_lines=last.number, errors=b"".join(lines)
            )
            await self._tools.write(partial(self._tools.batches.save, row.id, progress))

    async def _lines(self) -> AsyncIterator[_Parsed]:
        async for parsed in self._slices():
            for each in parsed:
                yield each

    async def _slices(self) -> AsyncIterator[list[_Parsed]]:
        """Yield the lines behind the saved ones that are not empty, some at a time."""
        row, tools = self._row, self._tools
        path = tools.folder.file(row.input_file_id)
        saved = await tools.read(lambda: tools.batches.get(row.id))
        offset, number = saved.input_offset, saved.num_lines

        def parse(offset: int, number: int) -> tuple[list[Line], list[_Parsed]]:
            # They were checked, perhaps by a server that allowed longer ones.
            lines = read_lines(path, offset, number, path.stat().st_size)
            parsed = []
            for line in lines:
                if line.data:
                    request = parse_line(line, row.endpoint)
                    parsed.append(_Parsed(line, request, num_texts(bytes(request.body))))
            return lines, parsed

        while True:
            lines, parsed = await tools.read(partial(parse, offset, number))
            if not lines:
                return
            if parsed:
                yield parsed
            offset, number = lines[-1].end, lines[-1].number

    async def _answer(self, parsed: _Parsed) -> Answer:
        """Answer a line; wait while the server is busy, and try again what the engine failed."""
        request_id = f"{self._row.id}_{parsed.line.number}"
        body = bytes(parsed.request.body)
        num_failed = 0
        while True:
            answer = await self._tools.answer(self._row.endpoint, body, request_id)
            if answer.is_not_loaded:
                return answer
            if answer.is_busy:
                await self._tools.clock.sleep(answer.busy_seconds)
                continue
            num_failed += answer.has_failed
            if not answer.has_failed or num_failed >= ATTEMPTS:
                return answer
            await self._tools.clock.sleep(FAILED_SECONDS * 2 ** (num_failed - 1))

    async def _save_answered(self, window: _Window) -> None:
        """Wait for the first answer, or until the batch is to stop; save the answers there are."""
        _, first = window.running[0]
        stopping = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({first, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        answered = window.take_answered()
        if answered:
            await self._save(answered)
        elif first.done():
            self._is_loaded = False
            self._stopped.set()

    async def _save(self, answered: list[tuple[_Parsed, Answer]]) -> None:
        row, tools = self._row, self._tools
        output: list[bytes] = []
        errors: list[bytes] = []
        for (line, request, _), answer in answered:
            lines = errors if answer.kind else output
            lines.append(write_answer(row.id, line, request.custom_id, answer))
        num_tokens = sum(answer.num_tokens for _, answer in answered)
        models = (answer.model for _, answer in answered if answer.model)
        last = answered[-1][0].line
        progress = Progress(
            input_offset=last.end,
            num_lines=last.number,
            output=b"".join(output),
            errors=b"".join(errors),
            num_completed=len(output),
            num_failed=len(errors),
            num_tokens=num_tokens,
            model=next(models, None),
        )
        await tools.write(lambda: tools.batches.save(row.id, progress))
        tools.metrics.lines["done"] += len(output)
        tools.metrics.lines["failed"] += len(errors)
        self.num_completed += len(output)
        self.num_failed += len(errors)
        self.num_tokens += num_tokens
