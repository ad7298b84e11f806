"""httptools' parser of requests, for a server that knows no protocol but HTTP/1.1.

A client may offer to go on in another protocol, as Java's does with every first request. A server
that does not know it ignores the offer (RFC 9110, section 7.8). httptools takes such a message for
complete behind its head. So the rest is parsed behind another head, of our own, that says how long
the body is and offers nothing.

Source: httptools 0.9, `HttpParser.feed_data`: HttpParserUpgrade tells how many bytes the head took.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

import httptools

FRAMING: Final = (b"content-length", b"transfer-encoding")
"""The headers that say where a body ends."""


class Resumable(Protocol):
    """What the parser tells of a message; it also has the callbacks of httptools."""

    def resume(self, parser: RequestParser) -> Iterable[tuple[bytes, bytes]]:
        """Return the headers of the head that the rest of a message is parsed behind.

        The callbacks of that head, and the end of the message that came before it, do not count.

        Args:
            parser: takes the place of the one before, which may take no more: the message may be
                the last of its connection.
        """


class RequestParser(httptools.HttpRequestParser):
    """Parses requests; offers of other protocols are ignored."""

    def __init__(self, protocol: Resumable) -> None:
        """Keep the protocol, whose callbacks are called."""
        super().__init__(protocol)
        # What comes behind the last request of a connection keeps it from no answer.
        self.set_dangerous_leniencies(lenient_data_after_close=True)
        self._protocol = protocol

    def feed_data(self, data: Any) -> None:
        """Parse some bytes.

        Args:
            data: the bytes.

        Raises:
            httptools.HttpParserError: they are no requests.
        """
        parser: RequestParser | None = self
        while parser is not None:  # a piece may hold any number of offers
            parser, data = parser._feed(data)

    def _feed(self, data: Any) -> tuple[RequestParser | None, Any]:
        """Parse bytes up to an offer; return the parser of what is behind it, and that."""
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            rest = memoryview(data)[offer.args[0] :]
        else:
            return None, b""
        parser = RequestParser(self._protocol)
        lines = (b"%b: %b\r\n" % header for header in self._protocol.resume(parser))
        parser._feed(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(lines))
        return parser, rest
