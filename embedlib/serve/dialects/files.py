"""OpenAI's `/v1/files`: what batches read and write.

Source: openai-python 3.54, `resources/files.py`, `types/file_object.py`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from embedlib.serve.dialects.dialect import OPENAI, job_route
from embedlib.serve.dialects.paging import LIMITS, answer_page
from embedlib.serve.errors import HTTPError
from embedlib.serve.jobs.files import FileRow
from embedlib.serve.jobs.uploads import Upload
from embedlib.serve.requests.asgi import PartsResponse, Response
from embedlib.serve.requests.exchange import Exchange
from embedlib.serve.requests.multipart import MultipartReader, Part

MAX_FIELD_BYTES = 4096
JSON_LINES = "application/jsonl"
_PARAMETERS = (*LIMITS, "purpose", "order")
MIN_SECONDS, MAX_SECONDS = 3600, 2_592_000
"""Of `expires_after`. Source: openai-python, `types/file_create_params.py`."""


class FileForm(msgspec.Struct, kw_only=True):
    """The parts of `POST /v1/files`."""

    file: str
    """JSON Lines, one request a line."""
    purpose: Literal["batch"]


async def upload(exchange: Exchange) -> Response:
    """Answer `POST /v1/files`: the file is on disk, part by part, while it arrives."""
    jobs = exchange.jobs
    reader = MultipartReader(exchange.request.headers.get("content-type", ""))
    fields: dict[str, bytes] = {}
    filename: str | None = None
    part: Part | None = None
    assert exchange.parts is not None, "the route takes parts; this is a bug in embedlib"
    async with jobs.upload() as upload:
        async for data in exchange.parts:
            for found in reader.feed(data):
                if isinstance(found, Part):
                    part = found
                    if part.name == "file":
                        if filename is not None:
                            raise HTTPError(400, "file is there twice; send one", param="file")
                        filename = part.filename or "input.jsonl"
                        if "purpose" in fields:  # before the file is stored
                            _check_purpose(fields)
                    else:
                        fields[part.name] = b""
                elif part is not None:
                    await _take(found, part, fields, upload)
        reader.check_whole()
        _check_purpose(fields)
        if filename is None:
            raise HTTPError(400, "file is missing; send it as a part with this name", param="file")
        row = await upload.finish(filename=filename[:255], seconds=_seconds(exchange, fields))
    return await exchange.answer(describe_file(row))


async def _take(data: bytes, part: Part, fields: dict[str, bytes], upload: Upload) -> None:
    if part.name == "file":
        await upload.write(data)
        return
    fields[part.name] += data
    if len(fields[part.name]) > MAX_FIELD_BYTES:
        raise HTTPError(400, f"{part.name:.80} is too long; send file and purpose", "too_large")


def _check_purpose(fields: dict[str, bytes]) -> None:
    given = fields.get("purpose")
    if given is None:
        raise HTTPError(400, "purpose is missing; send purpose=batch", param="purpose")
    if given != b"batch":
        text = given.decode("utf-8", "replace")
        raise HTTPError.wrong_value("purpose", text, "only batch is there, send purpose=batch")


def _seconds(exchange: Exchange, fields: dict[str, bytes]) -> float:
    """Return how long a file is kept."""
    given = fields.get("expires_after[seconds]")
    if given is None:
        return exchange.shared.options.keep_jobs_seconds
    text = given.decode("utf-8", "replace")
    anchor = fields.get("expires_after[anchor]", b"created_at")
    if anchor != b"created_at" or not text.isdecimal():
        raise HTTPError(
            400,
            "expires_after: send the anchor created_at and whole seconds",
            param="expires_after",
        )
    return check_seconds(int(text), "expires_after")


def check_seconds(seconds: int, name: str) -> int:
    """Return a time that a client wants files to be kept.

    Raises:
        HTTPError: it is too short or too long.
    """
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise HTTPError.wrong_value(
            name, seconds, f"it must be {MIN_SECONDS} to {MAX_SECONDS} seconds"
        )
    return seconds


def describe_file(row: FileRow) -> dict[str, object]:
    """Return a file as OpenAI describes it."""
    return {
        "id": row.id,
        "object": "file",
        "bytes": row.num_bytes,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "filename": row.filename,
        "purpose": row.purpose,
        "status": "processed",
    }


async def files(exchange: Exchange) -> Response:
    """Answer `GET /v1/files`."""
    parameters = exchange.request.parameters()
    order = parameters.get("order", "desc")
    if order not in ("asc", "desc"):
        raise HTTPError.wrong_value("order", order, "it must be asc or desc")
    return await answer_page(
        exchange,
        exchange.jobs.files,
        describe_file,
        most=10_000,
        usual=10_000,
        is_descending=order == "desc",
        purpose=parameters.get("purpose"),
    )


async def file(exchange: Exchange) -> Response:
    """Answer `GET /v1/files/{id}`."""
    return await exchange.answer(describe_file(await exchange.jobs.files.get(exchange.rest)))


async def content(exchange: Exchange) -> Response:
    """Answer `GET /v1/files/{id}/content`, in parts."""
    row, parts = await exchange.jobs.read_file(exchange.rest)
    return PartsResponse(content_type=JSON_LINES, parts=parts, size=row.num_bytes)


async def delete(exchange: Exchange) -> Response:
    """Answer `DELETE /v1/files/{id}`."""
    await exchange.jobs.delete_file(exchange.rest)
    return await exchange.answer({"id": exchange.rest, "object": "file", "deleted": True})


ROUTES = (
    job_route("POST", "/v1/files", upload, OPENAI, "Add a file.", FileForm, takes_parts=True),
    job_route("GET", "/v1/files", files, OPENAI, "The files.", parameters=_PARAMETERS),
    job_route("GET", "/v1/files/{id}", file, OPENAI, "One file."),
    job_route("GET", "/v1/files/{id}/content", content, OPENAI, "The content of a file."),
    job_route("DELETE", "/v1/files/{id}", delete, OPENAI, "Delete a file."),
)
