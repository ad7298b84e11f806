"""What a webhook says, and what follows from its delivery.

Source: Baseten's documentation, "Async inference" and "Securing async inference".
"""

from __future__ import annotations

from datetime import datetime, timezone
from urllib.parse import urlsplit

import msgspec

from embedlib.serve.jobs.requests import RequestRow, WebhookStatus
from embedlib.serve.jobs.spans import JobSpan
from embedlib.serve.jobs.tools import Tools, log
from embedlib.serve.jobs.webhook import DeliveryError, Sender, sign

ATTEMPTS = 8
FIRST_SECONDS = 2.0
"""Before the second attempt; doubled before each one after it: 254 seconds in all."""
MAX_RESULT_BYTES = 32 << 20
"""Of a result that is delivered; of a larger one the webhook says that it is to be fetched."""


async def deliver(row: RequestRow, tools: Tools, sender: Sender) -> None:
    """Deliver the webhook of a request once, and record what came of it.

    A server that is killed between the two delivers it again.
    """
    requests, counts = tools.requests, tools.metrics.deliveries
    result = b""
    is_large = row.num_bytes > MAX_RESULT_BYTES
    if not is_large:
        result = await tools.read(lambda: requests.blob(row.id, "result"))
    body = write_body(row, result, tools.clock.now(), is_large=is_large)
    headers = [("X-BASETEN-REQUEST-ID", row.id)]
    if tools.options.webhook_secrets:
        headers.append(("X-BASETEN-SIGNATURE", sign(body, tools.options.webhook_secrets)))
    num_attempts = row.webhook_attempts + 1
    assert row.webhook is not None, "only such requests have a time of delivery"
    started = tools.clock.now()
    failure: DeliveryError | None = None
    try:
        await sender.send(row.webhook, headers, body)
    except DeliveryError as error:
        failure = error
    now = tools.clock.now()
    state: WebhookStatus = "SUCCEEDED"
    if failure is not None:
        may_retry = failure.may_retry and num_attempts < ATTEMPTS
        state = "PENDING" if may_retry else "FAILED"
    tools.write_span(_span(row, started, now, state))
    if failure is None:
        counts["delivered"] += 1
        await tools.write(
            lambda: requests.update(row.id, webhook_status="SUCCEEDED", webhook_at=None)
        )
    elif state == "PENDING":
        at = now + FIRST_SECONDS * 2 ** (num_attempts - 1)
        counts["retried"] += 1
        await tools.write(
            lambda: requests.update(row.id, webhook_attempts=num_attempts, webhook_at=at)
        )
    else:
        message = f"the webhook was not delivered in {num_attempts} attempts: {failure}"
        log.warning("request %s: %s", row.id, message)
        counts["failed"] += 1
        await tools.write(lambda: requests.give_up_webhook(row.id, message))


def _span(row: RequestRow, started: float, ended: float, state: WebhookStatus) -> JobSpan:
    host = urlsplit(row.webhook or "").hostname or ""  # not the path, which may hold a secret
    return JobSpan(
        kind="webhook",
        job_id=row.id,
        traceparent=row.traceparent,
        started=started,
        ended=ended,
        state=state,
        error="" if state == "SUCCEEDED" else "failed",
        attributes={"server.address": host, "embedlib.attempt": row.webhook_attempts + 1},
    )


def write_body(row: RequestRow, result: bytes, now: float, *, is_large: bool) -> bytes:
    """Return what a webhook says of a request that has ended."""
    errors = []
    if row.error_code is not None:
        errors.append({"code": row.error_code, "message": row.error_message})
    elif is_large:
        message = (
            f"the result has {row.num_bytes:,} bytes; fetch it from /async_request/{row.id}/result"
        )
        errors.append({"code": "RESULT_TOO_LARGE", "message": message})
    content = {
        "request_id": row.id,
        "model_id": row.model,
        "deployment_id": "",
        "type": "async_request_completed",
        "time": as_time(now),
        "data": msgspec.Raw(result or b"null"),
        "errors": errors,
    }
    return msgspec.json.encode(content)


def as_time(seconds: float) -> str:
    """Return a time as ISO 8601 in UTC."""
    text = datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
