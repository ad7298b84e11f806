"""One asynchronous request: answered, put back into the queue, or failed.

Source: Baseten's documentation, "Async inference": codes of errors, `inference_retry_config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from embedlib.serve.errors import BUG_MESSAGE, Kind
from embedlib.serve.jobs.answers import Answer
from embedlib.serve.jobs.requests import RequestRow, Result
from embedlib.serve.jobs.spans import JobSpan
from embedlib.serve.jobs.tools import Tools, log

NOT_LOADED_SECONDS = 30.0
"""Before a request is tried again whose model could not be loaded."""
MAX_RESULT_BYTES = 512 << 20
"""Of a result; SQLite stores at most 1,000,000,000 bytes as one value."""
_CODES: Final[Mapping[Kind, str]] = {
    "not_found": "MODEL_DOES_NOT_EXIST",
    "timeout": "MODEL_PREDICT_TIMEOUT",
    "failed": "MODEL_PREDICT_ERROR",
    "internal": "INTERNAL_SERVER_ERROR",
}


async def run_request(row: RequestRow, tools: Tools) -> None:
    """Answer a request that was taken. Cancelling the task leaves it to the next start."""
    try:
        await _run(row, tools)
    except Exception:
        log.exception("request %s", row.id)
        await _end(row, Result("FAILED", 500, None, "", _CODES["internal"], BUG_MESSAGE), tools)


async def _run(row: RequestRow, tools: Tools) -> None:
    requests = tools.requests
    body = await tools.read(lambda: requests.blob(row.id, "body"))
    started = tools.clock.now()
    answer = await tools.answer(row.path, body, row.id)
    now = tools.clock.now()
    num_attempts = row.num_attempts + (not answer.is_busy)
    goes_back = answer.is_busy or (answer.has_failed and num_attempts < row.max_attempts)
    result = _result(answer)
    state = "QUEUED" if goes_back else result.status
    tools.write_span(_span(row, answer, started, now, state))
    if goes_back:
        wait = _seconds_to_wait(row, answer)
        await tools.write(
            lambda: requests.put_back(row.id, not_before=now + wait, num_attempts=num_attempts),
        )
        return
    await _end(row, result, tools)


async def _end(row: RequestRow, result: Result, tools: Tools) -> None:
    await tools.write(lambda: tools.requests.end(row.id, result, tools.clock.now()))
    tools.metrics.ended["async", "done" if result.status == "SUCCEEDED" else "failed"] += 1


def _span(row: RequestRow, answer: Answer, started: float, ended: float, state: str) -> JobSpan:
    return JobSpan(
        kind="async_request",
        job_id=row.id,
        traceparent=row.traceparent,
        started=started,
        ended=ended,
        state=state,
        error=answer.kind or "",
        attributes={
            "http.route": row.path,
            "http.response.status_code": answer.status,
            "gen_ai.usage.input_tokens": answer.num_tokens,
            **({"gen_ai.request.model": answer.model} if answer.model else {}),
        },
    )


def _seconds_to_wait(row: RequestRow, answer: Answer) -> float:
    if answer.is_busy:
        return NOT_LOADED_SECONDS if answer.is_not_loaded else answer.busy_seconds
    return min(row.delay_ms * 2.0**row.num_attempts, row.max_delay_ms) / 1000


def _result(answer: Answer) -> Result:
    if answer.error is not None:
        code = _CODES.get(answer.error.kind, "MODEL_INVALID_INPUT")
        return Result("FAILED", answer.status, None, answer.model, code, answer.error.message)
    if len(answer.body) > MAX_RESULT_BYTES:
        message = (
            f"the result has {len(answer.body):,} bytes, the limit is {MAX_RESULT_BYTES:,}; send "
            "fewer texts at a time, or a batch"
        )
        return Result("FAILED", 413, None, answer.model, "MODEL_INVALID_INPUT", message)
    return Result("SUCCEEDED", answer.status, answer.body, answer.model)
