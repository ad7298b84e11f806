"""OpenAI's `/v1/batches`: a file of requests, answered into a file.

Source: openai-python 3.54, `types/batch.py`, `types/batch_create_params.py`.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, Literal
from uuid import uuid4

import msgspec

from embedlib.serve.dialects.dialect import OPENAI, job_route
from embedlib.serve.dialects.files import check_seconds
from embedlib.serve.dialects.paging import LIMITS, answer_page
from embedlib.serve.errors import HTTPError
from embedlib.serve.jobs.batches import BatchRow
from embedlib.serve.requests.asgi import Response
from embedlib.serve.requests.exchange import Exchange

ENDPOINTS: Final = (
    *("/v1/embeddings", "/v1/rerank", "/v2/rerank", "/v1/score", "/v1/classify", "/v2/embed"),
    *("/v1/multi-vector", "/embed", "/embed_sparse", "/rerank", "/predict", "/similarity"),
)
"""Routes whose bodies the lines of a batch may have."""
MAX_HOURS = 24 * 7
_TIMES: Final = (
    *("created_at", "in_progress_at", "expires_at", "finalizing_at", "completed_at"),
    *("failed_at", "expired_at", "cancelling_at", "cancelled_at"),
)


class OutputExpiry(msgspec.Struct):
    """How long the outputs of a batch are kept."""

    seconds: int
    anchor: Literal["created_at"] = "created_at"


class BatchBody(msgspec.Struct, kw_only=True):
    """The body of `POST /v1/batches`."""

    input_file_id: str
    endpoint: str
    completion_window: str
    """Hours, as 24h; after them the batch expires."""
    metadata: dict[str, str] | None = None
    output_expires_after: OutputExpiry | None = None


async def create(exchange: Exchange) -> Response:
    """Answer `POST /v1/batches`."""
    jobs = exchange.jobs
    body = await exchange.decode(BatchBody)
    if body.endpoint not in ENDPOINTS:
        raise HTTPError.wrong_value(
            "endpoint", body.endpoint, f"it must be one of {', '.join(ENDPOINTS)}"
        )
    now = int(jobs.now())
    seconds = int(exchange.shared.options.keep_jobs_seconds)
    if body.output_expires_after is not None:
        seconds = check_seconds(body.output_expires_after.seconds, "output_expires_after")
    row = BatchRow(
        id=f"batch_{uuid4().hex}",
        status="validating",
        endpoint=body.endpoint,
        input_file_id=body.input_file_id,
        completion_window=body.completion_window,
        metadata=_metadata(body.metadata),
        output_seconds=seconds,
        created_at=now,
        expires_at=now + _window_seconds(body.completion_window),
        output_file_id=f"file-{uuid4().hex}",
        error_file_id=f"file-{uuid4().hex}",
        traceparent=exchange.request.headers.get("traceparent", ""),
    )
    await jobs.add_batch(row)
    return await exchange.answer(describe_batch(row))


def _window_seconds(text: str) -> int:
    found = re.fullmatch(r"([1-9][0-9]{0,2})h", text)
    if found is None or int(found.group(1)) > MAX_HOURS:
        raise HTTPError.wrong_value(
            "completion_window", text, f"it must be hours, as 24h, at most {MAX_HOURS}h"
        )
    return int(found.group(1)) * 3600


def _metadata(given: dict[str, str] | None) -> str | None:
    """Source: openai-python, `types/shared_params/metadata.py`, for the limits."""
    if given is None:
        return None
    is_small = all(len(key) <= 64 and len(value) <= 512 for key, value in given.items())
    if len(given) > 16 or not is_small:
        raise HTTPError(
            400,
            "metadata: it may have 16 keys of 64 characters, with values of 512",
            param="metadata",
        )
    return json.dumps(given)


def describe_batch(row: BatchRow) -> dict[str, Any]:
    """Return a batch as OpenAI describes it."""
    has_ended = row.ended_at is not None
    content: dict[str, Any] = {
        "id": row.id,
        "object": "batch",
        "endpoint": row.endpoint,
        "model": row.model,
        "errors": None,
        "input_file_id": row.input_file_id,
        "completion_window": row.completion_window,
        "status": row.status,
        "output_file_id": row.output_file_id if has_ended and row.output_bytes else None,
        "error_file_id": row.error_file_id if has_ended and row.error_bytes else None,
        **{name: getattr(row, name) for name in _TIMES},
        "request_counts": {
            "total": row.num_total,
            "completed": row.num_completed,
            "failed": row.num_failed,
        },
        "metadata": json.loads(row.metadata) if row.metadata else None,
        "usage": {
            "input_tokens": row.num_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": row.num_tokens,
        },
    }
    if row.errors:
        content["errors"] = {"object": "list", "data": json.loads(row.errors)}
    return content


async def batches(exchange: Exchange) -> Response:
    """Answer `GET /v1/batches`: the newest first."""
    return await answer_page(exchange, exchange.jobs.batches, describe_batch, most=100, usual=20)


async def batch(exchange: Exchange) -> Response:
    """Answer `GET /v1/batches/{id}`."""
    return await exchange.answer(describe_batch(await exchange.jobs.batches.get(exchange.rest)))


async def cancel(exchange: Exchange) -> Response:
    """Answer `POST /v1/batches/{id}/cancel`."""
    return await exchange.answer(describe_batch(await exchange.jobs.cancel_batch(exchange.rest)))


ROUTES = (
    job_route("POST", "/v1/batches", create, OPENAI, "Answer a file of requests.", BatchBody),
    job_route("GET", "/v1/batches", batches, OPENAI, "The batches.", parameters=LIMITS),
    job_route("GET", "/v1/batches/{id}", batch, OPENAI, "One batch, with its progress."),
    job_route("POST", "/v1/batches/{id}/cancel", cancel, OPENAI, "End a batch."),
)
