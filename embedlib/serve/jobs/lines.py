"""The lines of a batch: read within bounds, checked, and written with their answers.

Source: openai-python 3.54, `types/batch_error.py` and the guide of the Batch API for the fields.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from embedlib.serve.errors import HTTPError
from embedlib.serve.jobs.answers import Answer
from embedlib.serve.wire import decode

SLICE_LINES = 512
SLICE_BYTES = 8 << 20
"""Lines that are read at once, at most; always one."""
MAX_ID_CHARS = 512
MAX_ERRORS = 100
"""Wrong lines of an input that are told."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of an input that is not empty."""

    number: int
    """From 1."""
    end: int
    """Where the next line begins."""
    data: bytes
    is_cut: bool = False
    """Whether the line is longer than allowed."""


class RequestLine(msgspec.Struct):
    """What a line says."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


def read_lines(path: Path, offset: int, number: int, max_line_bytes: int) -> list[Line]:
    """Return the next lines of a file; none at its end.

    Args:
        path: of the file.
        offset: where to begin.
        number: lines before it.
        max_line_bytes: of a line; one that is longer is returned cut, to be refused.
    """
    lines: list[Line] = []
    num_bytes = 0
    with path.open("rb") as stream:
        stream.seek(offset)
        while len(lines) < SLICE_LINES and num_bytes < SLICE_BYTES:
            data = stream.readline(max_line_bytes + 1)
            if not data:
                break
            number += 1
            offset += len(data)
            num_bytes += len(data)
            text = data.removeprefix(BOM_UTF8) if number == 1 else data
            # An empty line counts, so that numbers are those of an editor; it is no request.
            is_cut = len(data) > max_line_bytes and not data.endswith(b"\n")
            lines.append(Line(number, offset, text.strip(), is_cut))
    return lines


def parse_line(line: Line, endpoint: str) -> RequestLine:
    """Return what a line says.

    Raises:
        HTTPError: a field is missing or wrong.
    """
    try:
        found = decode(line.data, RequestLine)
    except HTTPError as error:
        message = error.message.replace("the body", "the line")
        raise HTTPError(400, message, param=error.param) from None
    if not 0 < len(found.custom_id) <= MAX_ID_CHARS:
        raise HTTPError(
            400,
            f"custom_id has {len(found.custom_id)} characters; it must have 1 to {MAX_ID_CHARS}",
            param="custom_id",
        )
    if found.method != "POST":
        raise HTTPError.wrong_value("method", found.method, "it must be POST")
    if found.url != endpoint:
        raise HTTPError.wrong_value(
            "url", found.url, f"it must be the batch's endpoint, {endpoint}"
        )
    if bytes(found.body)[:1] != b"{":
        raise HTTPError(400, "body: it must be an object, as the route takes it", param="body")
    return found


def num_texts(body: bytes) -> int:
    """Return how many texts a body has, as far as one can tell: the values of its lists."""
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return 1  # its route will refuse it
    return max(1, sum(len(value) for value in fields.values() if isinstance(value, list)))


class Checker:
    """Checks an input line by line, all or nothing."""

    def __init__(self, path: Path, endpoint: str, *, max_lines: int, max_line_bytes: int) -> None:
        """Begin at the first line.

        Args:
            path: of the input.
            endpoint: of the batch.
            max_lines: that an input may have.
            max_line_bytes: of a line.
        """
        self._path = path
        self._endpoint = endpoint
        self._max_lines = max_lines
        self._max_line_bytes = max_line_bytes
        self._offset = 0
        self._number = 0
        self._digests: set[bytes] = set()
        self.num_requests = 0
        self.errors: list[dict[str, Any]] = []

    def step(self) -> bool:
        """Check some lines more; return whether there may be others."""
        lines = read_lines(self._path, self._offset, self._number, self._max_line_bytes)
        for line in lines:
            if line.is_cut:
                self._wrong(
                    "line_too_long",
                    line.number,
                    f"the line has more than {self._max_line_bytes:,} bytes; divide its texts, or "
                    "start the server with a higher --max-body-mb",
                )
                return False
            if line.data:
                self._check(line)
            if self.num_requests > self._max_lines or len(self.errors) >= MAX_ERRORS:
                return False
        if not lines:
            if not self.num_requests and not self.errors:
                self._wrong("empty_file", None, "the input has no line; write one a request")
            return False
        self._offset, self._number = lines[-1].end, lines[-1].number
        return True

    def _check(self, line: Line) -> None:
        try:
            found = parse_line(line, self._endpoint)
        except HTTPError as error:
            code = "invalid_json_line" if error.param is None else f"invalid_{error.param}"
            self._wrong(code, line.number, error.message, error.param)
            return
        self.num_requests += 1
        if self.num_requests > self._max_lines:
            self._wrong(
                "too_many_requests",
                line.number,
                f"the input has more than {self._max_lines:,} requests; divide it, or start the "
                "server with a higher --max-batch-requests",
            )
            return
        digest = blake2b(found.custom_id.encode(), digest_size=16).digest()
        if digest in self._digests:
            self._wrong(
                "duplicate_custom_id",
                line.number,
                f"custom_id = {found.custom_id!r:.80} is there twice; give each line its own",
                "custom_id",
            )
        self._digests.add(digest)

    def _wrong(self, code: str, number: int | None, message: str, param: str | None = None) -> None:
        self.errors.append({"code": code, "line": number, "message": message, "param": param})


def write_answer(batch_id: str, line: Line, custom_id: str, answer: Answer) -> bytes:
    """Return a line of an output: a request and its answer."""
    request_id = f"{batch_id}_{line.number}"
    response = {
        "status_code": answer.status,
        "request_id": request_id,
        "body": msgspec.Raw(answer.body),
    }
    return _write(request_id, custom_id, response, None)


def write_reason(batch_id: str, line: Line, custom_id: str, code: str, message: str) -> bytes:
    """Return a line of an error file: a request that was not tried, and why."""
    error = {"code": code, "message": message}
    return _write(f"{batch_id}_{line.number}", custom_id, None, error)


def _write(
    request_id: str, custom_id: str, response: dict[str, Any] | None, error: object
) -> bytes:
    content = {
        "id": f"batch_req_{request_id.removeprefix('batch_')}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return msgspec.json.encode(content) + b"\n"
