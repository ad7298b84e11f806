"""Baseten's asynchronous requests: accepted at once, answered later, told by a webhook.

Source: Baseten's documentation, "Async inference" and the reference of its inference API. Ours
besides: the result is kept and can be fetched, `path` names a route, and requests are listed.
"""

from __future__ import annotations

from typing import Final, get_args
from uuid import uuid4

import msgspec

from embedlib.serve.dialects.batches import ENDPOINTS
from embedlib.serve.dialects.dialect import BASETEN, job_route
from embedlib.serve.dialects.paging import LIMITS, answer_page
from embedlib.serve.errors import HTTPError
from embedlib.serve.jobs.deliveries import as_time
from embedlib.serve.jobs.requests import RequestRow, Status
from embedlib.serve.requests.asgi import Response
from embedlib.serve.requests.exchange import Exchange

PATHS: Final = (*ENDPOINTS, "/embed_all", "/")
"""Routes that may answer a request."""
_PARAMETERS = (*LIMITS, "status")


class Retries(msgspec.Struct):
    """How often a request is tried that the model failed."""

    max_attempts: int = 3
    initial_delay_ms: int = 1000
    max_delay_ms: int = 5000


class AsyncPredictBody(msgspec.Struct, kw_only=True):
    """The body of `POST /async_predict`."""

    model_input: msgspec.Raw
    """The body of a route."""
    webhook_endpoint: str | None = None
    priority: int = 0
    """0 to 2; lower ones first."""
    max_time_in_queue_seconds: int = 600
    inference_retry_config: Retries | None = None
    path: str | None = None
    """The route; None: by the fields of `model_input`. embedlib's own."""


async def predict(exchange: Exchange) -> Response:
    """Answer `POST /async_predict`: 202 when the request is on disk."""
    jobs = exchange.jobs
    body = await exchange.decode(AsyncPredictBody)
    retries = body.inference_retry_config or Retries()
    for name, value, least, most in (
        ("priority", body.priority, 0, 2),
        ("max_time_in_queue_seconds", body.max_time_in_queue_seconds, 10, 259_200),
        ("inference_retry_config.max_attempts", retries.max_attempts, 1, 10),
        ("inference_retry_config.initial_delay_ms", retries.initial_delay_ms, 0, 10_000),
        ("inference_retry_config.max_delay_ms", retries.max_delay_ms, 0, 60_000),
    ):
        if not least <= value <= most:
            raise HTTPError.wrong_value(name, value, f"it must be {least} to {most}")
    if body.path is not None and body.path not in PATHS:
        raise HTTPError.wrong_value("path", body.path, f"it must be one of {', '.join(PATHS)}")
    model_input = bytes(body.model_input)
    path = body.path or await _path_of(exchange, model_input)
    now = jobs.now()
    row = RequestRow(
        id=uuid4().hex,
        status="QUEUED",
        path=path,
        num_bytes=len(model_input),
        priority=body.priority,
        created_at=now,
        status_at=now,
        queue_until=now + body.max_time_in_queue_seconds,
        not_before=now,
        max_attempts=retries.max_attempts,
        delay_ms=retries.initial_delay_ms,
        max_delay_ms=retries.max_delay_ms,
        webhook=body.webhook_endpoint,
        webhook_status="NO_WEBHOOK_PROVIDED" if body.webhook_endpoint is None else "PENDING",
        traceparent=exchange.request.headers.get("traceparent", ""),
    )
    await jobs.add_request(row, model_input)
    return await exchange.answer({"request_id": row.id}, status=202)


async def _path_of(exchange: Exchange, model_input: bytes) -> str:
    """Return the route whose fields a body has.

    Raises:
        HTTPError: it is no object.
    """
    try:
        fields = await exchange.decode(dict[str, msgspec.Raw], model_input)  # parses no text
    except HTTPError as error:
        message = error.message.replace("the body", "model_input")
        raise HTTPError(400, message, param="model_input") from None
    if "documents" in fields:
        return "/rerank"
    return "/v1/embeddings" if "input" in fields else "/"


def describe_request(row: RequestRow) -> dict[str, object]:
    """Return a request as Baseten describes it."""
    errors = []
    if row.error_code is not None:
        errors.append({"code": row.error_code, "message": row.error_message})
    return {
        "request_id": row.id,
        "model_id": row.model,
        "deployment_id": "",
        "status": row.status,
        "webhook_status": row.webhook_status,
        "created_at": as_time(row.created_at),
        "status_at": as_time(row.status_at),
        "errors": errors,
    }


async def status(exchange: Exchange) -> Response:
    """Answer `GET /async_request/{id}`."""
    return await exchange.answer(describe_request(await exchange.jobs.requests.get(exchange.rest)))


async def cancel(exchange: Exchange) -> Response:
    """Answer `DELETE /async_request/{id}`."""
    row, is_cancelled = await exchange.jobs.cancel_request(exchange.rest)
    message = "" if is_cancelled else f"it is {row.status}; only a QUEUED request can be cancelled"
    return await exchange.answer(
        {"request_id": row.id, "canceled": is_cancelled, "message": message}
    )


async def result(exchange: Exchange) -> Response:
    """Answer `GET /async_request/{id}/result`: what the route answered."""
    row, body = await exchange.jobs.result(exchange.rest)
    if body:
        return Response(body)
    if row.ended_at is None:
        raise HTTPError(404, f"the request is {row.status}; come again", "missing", retry_seconds=1)
    reason = row.error_message or "there is no result"
    raise HTTPError(row.http_status or 404, f"the request is {row.status}: {reason}", "missing")


async def requests(exchange: Exchange) -> Response:
    """Answer `GET /async_requests`: the newest first."""
    wanted = exchange.request.parameters().get("status")
    if wanted is not None and wanted not in get_args(Status):
        raise HTTPError.wrong_value(
            "status", wanted, f"it must be one of {', '.join(get_args(Status))}"
        )
    return await answer_page(
        exchange, exchange.jobs.requests, describe_request, most=100, usual=20, status=wanted
    )


async def queue(exchange: Exchange) -> Response:
    """Answer `GET /async_queue_status`."""
    now = await exchange.jobs.count()
    return await exchange.answer(
        {
            "model_id": "",
            "deployment_id": "",
            "num_queued_requests": now["async", "queued"],
            "num_in_progress_requests": now["async", "running"],
        }
    )


ROUTES = (
    *(
        job_route(
            "POST",
            f"{prefix}/async_predict",
            predict,
            BASETEN,
            "Answer a request later.",
            AsyncPredictBody,
            status=202,
        )
        # As Baseten's own paths name a deployment; there is one here.
        for prefix in ("", "/production", "/development", "/environments/{id}", "/deployment/{id}")
    ),
    job_route("GET", "/async_request/{id}", status, BASETEN, "The state of a request."),
    job_route("DELETE", "/async_request/{id}", cancel, BASETEN, "Cancel a request that is queued."),
    job_route("GET", "/async_request/{id}/result", result, BASETEN, "The answer of a request."),
    job_route("GET", "/async_requests", requests, BASETEN, "The requests.", parameters=_PARAMETERS),
    job_route("GET", "/async_queue_status", queue, BASETEN, "How many requests wait and run."),
)
