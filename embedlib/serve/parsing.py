"""httptools' parser of requests, for a server that knows no protocol but HTTP/1.1.

A client may offer to go on in another protocol, as Java's does with every first request. A server
that does not know it ignores the offer (RFC 9110, section 7.8). httptools takes such a message for
complete behind its head. So the rest is parsed behind another head, of our own, that says how long
the body is and offers nothing.

Source: httptools 0.9, `HttpParser.feed_data`, whose parser is ready for another message after
HttpParserUpgrade, which tells how many bytes the head took.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

import httptools

FRAMING: Final = (b"content-length", b"transfer-encoding")
"""The headers that say where a body ends."""


class Resumable(Protocol):
    """What the parser tells of a message; it also has the callbacks of httptools."""

    def resume(self) -> Iterable[tuple[bytes, bytes]]:
        """Return the headers of the message, names in lower case; its head is parsed again.

        The callbacks of the second head, and the end of the message that came between, do not
        count.
        """
        ...


class RequestParser(httptools.HttpRequestParser):
    """Parses requests; offers of other protocols are ignored."""

    def __init__(self, protocol: Resumable) -> None:
        """Keep the protocol, whose callbacks are called."""
        super().__init__(protocol)
        self._protocol = protocol

    def feed_data(self, data: Any) -> None:
        """Parse some bytes.

        Args:
            data: the bytes.

        Raises:
            httptools.HttpParserError: they are no requests.
        """
        while True:
            try:
                super().feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                lines = (
                    b"%b: %b\r\n" % header
                    for header in self._protocol.resume()
                    if header[0] in FRAMING
                )
                data = b"POST / HTTP/1.1\r\n" + b"".join(lines) + b"\r\n" + data[offer.args[0] :]
            else:
                return
