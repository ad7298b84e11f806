"""BatchRun: one batch from its check to its end, in bounded memory, resumable at any instant."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Literal

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


@dataclass(frozen=True, slots=True)
class _Running:
    line: Line
    request: RequestLine | None
    """None: an empty line."""
    num_texts: int
    task: asyncio.Task[Answer] | None


def _is_answered(each: _Running) -> bool:
    return each.task is None or not each.task.result().is_not_loaded


class _Window:
    """The lines that are answered now, in their order, and those behind the first one's answer."""

    def __init__(self, max_lines: Callable[[], int]) -> None:
        self._max_lines = max_lines
        self.running: deque[_Running] = deque()
        self._num_texts = 0
        self._num_bytes = 0

    @property
    def is_full(self) -> bool:
        return (
            len(self.running) >= self._max_lines()
            or self._num_texts >= MAX_TEXTS
            or self._num_bytes >= MAX_BYTES
        )

    def add(self, each: _Running) -> None:
        self.running.append(each)
        self._num_texts += each.num_texts
        self._num_bytes += len(each.line.data)

    def take_done(self) -> list[_Running]:
        """Take the first lines out, up to one that is not answered yet."""
        done = []
        while self.running and (self.running[0].task is None or self.running[0].task.done()):
            each = self.running.popleft()
            self._num_texts -= each.num_texts
            self._num_bytes -= len(each.line.data)
            done.append(each)
        return done


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
        if row.status == "cancelling":
            self.stop("cancelled")
        elif row.expires_at <= tools.clock.now():
            self.stop("expired")
        if row.in_progress_at is None and not await self._check():
            if self._end == "completed":
                return "failed"
        else:
            await self._answer_lines()
            if not self._is_loaded and self._end == "completed":
                return "not_loaded"
            if self._end != "completed":
                await self._refuse_lines()
        end, now = self._end, int(tools.clock.now())
        await self._tools.write(lambda: tools.batches.finish(row.id, end, now))
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
        while not self._stopped.is_set():
            if not await self._tools.read(checker.step):
                break
        if self._stopped.is_set():
            return False
        now = int(tools.clock.now())
        if checker.errors:
            await self._tools.write(lambda: tools.batches.fail(row.id, checker.errors, now))
            return False
        await self._tools.write(lambda: tools.batches.begin(row.id, checker.num_requests, now))
        return True

    async def _answer_lines(self) -> None:
        """Answer the lines behind the saved ones, in their order, several at once."""
        window = _Window(self._max_lines)
        ahead: deque[_Running] = deque()
        offset, number = await self._place()
        try:
            while True:
                while not self._stopped.is_set() and not window.is_full:
                    if not ahead:
                        ahead = await self._parse(offset, number)
                        if not ahead:
                            break
                        offset, number = ahead[-1].line.end, ahead[-1].line.number
                    window.add(self._start(ahead.popleft()))
                if not window.running:
                    return
                await self._wait(window.running[0])
                done = window.take_done()
                answered = [*takewhile(_is_answered, done)]
                if answered:
                    await self._save(answered)
                self._is_loaded = len(answered) == len(done)
                if self._stopped.is_set() or not self._is_loaded:
                    return
        finally:
            tasks = [each.task for each in window.running if each.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _max_lines(self) -> int:
        """Return how many lines may be answered at once: the share of one batch."""
        places = min(MAX_LINES, self._tools.options.max_waiting_requests // 2)
        return max(1, places // max(1, self._num_batches()))

    async def _refuse_lines(self) -> None:
        """Write why the lines behind the saved ones were not tried."""
        offset, number = await self._place()
        code = f"batch_{self._end}"
        while parsed := await self._parse(offset, number):
            lines = [
                write_reason(
                    self._row.id, each.line, each.request.custom_id, code, _REASONS[self._end]
                )
                for each in parsed
                if each.request is not None
            ]
            offset, number = parsed[-1].line.end, parsed[-1].line.number
            progress = Progress(input_offset=offset, num_lines=len(parsed), errors=b"".join(lines))
            await self._tools.write(partial(self._tools.batches.save, self._row.id, progress))

    async def _place(self) -> tuple[int, int]:
        """Return where the first line begins that is not saved, and how many are before it."""
        row = await self._tools.read(lambda: self._tools.batches.get(self._row.id))
        return row.input_offset, row.num_lines

    async def _parse(self, offset: int, number: int) -> deque[_Running]:
        row, tools = self._row, self._tools
        path = tools.folder.file(row.input_file_id)

        def parse() -> deque[_Running]:
            parsed: deque[_Running] = deque()
            # They were checked, perhaps by a server that allowed longer ones.
            limit = path.stat().st_size
            for line in read_lines(path, offset, number, limit):
                request = parse_line(line, row.endpoint) if line.data else None
                count = num_texts(bytes(request.body)) if request is not None else 0
                parsed.append(_Running(line, request, count, None))
            return parsed

        return await self._tools.read(parse)

    def _start(self, parsed: _Running) -> _Running:
        if parsed.request is None:
            return parsed
        request_id = f"{self._row.id}_{parsed.line.number}"
        body = bytes(parsed.request.body)
        task = asyncio.create_task(self._answer(body, request_id))
        return _Running(parsed.line, parsed.request, parsed.num_texts, task)

    async def _answer(self, body: bytes, request_id: str) -> Answer:
        """Answer a line; wait while the server is busy, and try again what the engine failed."""
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

    async def _wait(self, first: _Running) -> None:
        """Wait for the first answer, or until the batch is to stop."""
        if first.task is None:
            return
        stopping = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({first.task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()

    async def _save(self, done: list[_Running]) -> None:
        row, tools = self._row, self._tools
        output: list[bytes] = []
        errors: list[bytes] = []
        num_tokens, model = 0, None
        for each in done:
            if each.task is None or each.request is None:
                continue
            answer = each.task.result()
            lines = errors if answer.kind else output
            lines.append(write_answer(row.id, each.line, each.request.custom_id, answer))
            num_tokens += answer.num_tokens
            model = model or answer.model or None
        progress = Progress(
            input_offset=done[-1].line.end,
            num_lines=len(done),
            output=b"".join(output),
            errors=b"".join(errors),
            num_completed=len(output),
            num_failed=len(errors),
            num_tokens=num_tokens,
            model=model,
        )
        await self._tools.write(lambda: tools.batches.save(row.id, progress))
        tools.metrics.lines["done"] += len(output)
        tools.metrics.lines["failed"] += len(errors)
        self.num_completed += len(output)
        self.num_failed += len(errors)
        self.num_tokens += num_tokens
