"""multipart/form-data, read while it arrives.

Source: RFC 7578 and RFC 2046, 5.1.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser

from embedlib.serve.errors import HTTPError

MAX_HEAD_BYTES = 16 << 10
"""Of the head of one part."""
MAX_PARTS = 64
MAX_PARAMETERS = 64
"""Semicolons in a head or content type. Python looks for the quote that ends a value once for each,
from the start: 16 KiB of them would keep all requests waiting for half a second."""


@dataclass(frozen=True)
class Part:
    """The head of one part; its content follows."""

    name: str
    filename: str | None


class MultipartReader:
    """Divides a body into parts; holds no more of it than a boundary's length."""

    def __init__(self, content_type: str) -> None:
        """Take the boundary of a request's content type.

        Raises:
            HTTPError: it is of another type.
        """
        head = Message()
        head["content-type"] = content_type if _has_few_parameters(content_type) else ""
        boundary = head.get_param("boundary")
        if head.get_content_type() != "multipart/form-data" or not isinstance(boundary, str):
            raise HTTPError(
                400,
                f"content-type = {content_type!r:.80}; it must be multipart/form-data with its "
                "boundary, as curl -F sends it",
            )
        self._delimiter = b"\r\n--" + boundary.encode("latin-1", "replace")
        self._buffer = b"\r\n"  # the first boundary of a body has no line break before it
        self._is_head = False
        self._is_inside = False
        """Whether the first boundary was seen."""
        self._is_whole = False
        self._num_parts = 0

    def feed(self, data: bytes) -> Iterator[Part | bytes]:
        """Yield the heads of parts, and their content in pieces, of the next data of a body.

        Raises:
            HTTPError: the body is not made of parts.
        """
        self._buffer += data
        while not self._is_whole:
            if self._is_head:
                part = self._take_head()
                if part is None:
                    return
                yield part
                continue
            content, has_ended = self._take_content()
            if content and self._is_inside:
                yield content
            if not has_ended:
                return
            self._is_head = self._is_inside = True
        self._buffer = b""  # what follows the last boundary is nothing

    def check_whole(self) -> None:
        """Check that the body has ended.

        Raises:
            HTTPError: its last boundary is missing.
        """
        if not self._is_whole:
            raise HTTPError(400, "the body ends before its last boundary; send all of it")

    def _take_content(self) -> tuple[bytes, bool]:
        """Return content, and whether the part ends behind it."""
        place = self._buffer.find(self._delimiter)
        has_ended = place >= 0
        if not has_ended:  # its end may be the beginning of a boundary
            place = max(0, len(self._buffer) - len(self._delimiter) + 1)
        content = self._buffer[:place]
        self._buffer = self._buffer[place + len(self._delimiter) * has_ended :]
        return content, has_ended

    def _take_head(self) -> Part | None:
        """Return the head of the next part; None: it has not arrived, or there is none."""
        if len(self._buffer) < 2:
            return None
        if self._buffer.startswith(b"--"):
            self._is_whole = True
            return None
        end = self._buffer.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
        if not self._buffer.startswith(b"\r\n") or end < 0 <= len(self._buffer) - MAX_HEAD_BYTES:
            raise HTTPError(
                400, f"a part of the body has no head of at most {MAX_HEAD_BYTES:,} bytes"
            )
        if end < 0:
            return None
        text = self._buffer[2:end].decode("utf-8", "replace")
        self._num_parts += 1
        if self._num_parts > MAX_PARTS or not _has_few_parameters(text):
            raise HTTPError(
                400,
                f"the body has more than {MAX_PARTS} parts, or a head with more than "
                f"{MAX_PARAMETERS} semicolons; send file and purpose",
            )
        head = HeaderParser().parsestr(text)
        self._buffer = self._buffer[end + 4 :]
        self._is_head = False
        name = head.get_param("name", header="content-disposition")
        return Part(name if isinstance(name, str) else "", _filename(head))


def _has_few_parameters(text: str) -> bool:
    return text.count(";") <= MAX_PARAMETERS


def _filename(head: Message) -> str | None:
    """Return the name of a part's file, without what cannot be stored; None: it is no file.

    Raises:
        HTTPError: it is in a code that no text is in.
    """
    try:
        found = head.get_filename()
    except ValueError as error:  # the client names the codec
        raise HTTPError(400, f"a file name cannot be read: {error}; send it in UTF-8") from None
    return None if found is None else found.encode("utf-8", "replace").decode()
