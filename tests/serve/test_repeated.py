"""Heads that a connection carries again: nothing but the same head is taken for one."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
import uvicorn
from hypothesis import example, given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from embedlib.serve.app import Application
from embedlib.serve.http.connection import Connection
from embedlib.serve.http.repeated import RepeatedHead
from embedlib.serve.metrics import Metrics
from embedlib.serve.models.admission import Unread
from embedlib.serve.models.catalog import Catalog
from embedlib.serve.requests.asgi import Receive, Request, Response, Send

BODY = b'{"input": "a"}'
HEAD = b"POST /v1 HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\nAuthorization: Bearer k\r\n\r\n"
WHOLE = HEAD + BODY
CONNECT = b"CONNECT x:80 HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
OTHER = WHOLE.replace(b"Bearer k", b"Bearer other")


def longer(body: bytes, digits: bytes | None = None) -> bytes:
    return HEAD.replace(b"14", digits or b"%d" % len(body)) + body


@pytest.mark.parametrize(
    ("data", "body"),
    [
        (WHOLE, BODY),
        (longer(b""), b""),
        (longer(b"b" * 1234), b"b" * 1234),
        (longer(BODY, b"00014"), BODY),  # as the parser reads it
        (longer(BODY, b"+14"), None),
        (longer(BODY, b"0000000014"), None),
        (longer(b"", b" "), None),
        (WHOLE[:-1], None),
        (WHOLE + b"P", None),
        (WHOLE + WHOLE, None),
        (HEAD, None),
        (HEAD[:30], None),
        (b"\r\n" + WHOLE, None),
        (WHOLE.replace(b"Bearer k", b"Bearer l"), None),
        (WHOLE.replace(b"Bearer k", b"Bearer k2"), None),
        (WHOLE.replace(b"Bearer k\r\n", b"Bearer k\r\nExpect: 100-continue\r\n"), None),
        (WHOLE.replace(b"Host", b"host"), None),
    ],
)
def test_the_same_head_has_another_length_at_most(data: bytes, body: bytes | None) -> None:
    found = RepeatedHead.find(WHOLE, [b"host", b"content-length", b"authorization"], len(BODY))
    assert found is not None
    assert found.body_of(data) == body


@pytest.mark.parametrize(
    ("data", "names", "num_body_bytes"),
    [
        (WHOLE + b"P", [b"content-length"], 14),
        (WHOLE, [b"content-length"], 13),
        (WHOLE, [b"content-length", b"content-length"], 14),
        (WHOLE, [b"content-length", b"transfer-encoding"], 14),
        (WHOLE, [b"content-length", b"expect"], 14),
        (WHOLE, [b"content-length", b"upgrade"], 14),
        (WHOLE, [b"host"], 14),
        (WHOLE.replace(b"Content-Length", b"X-Length"), [b"x-length"], 14),
        (HEAD[:-2] + BODY, [b"content-length"], 14),
        (WHOLE.replace(b"Bearer", b"Bearer" * 2000), [b"content-length"], 14),
    ],
)
def test_an_unusual_head_is_not_kept(data: bytes, names: list[bytes], num_body_bytes: int) -> None:
    assert RepeatedHead.find(data, names, num_body_bytes) is None


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written = b""
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Echo(Application):
    """Answers with what it understood of a request."""

    is_draining = False

    def __init__(self) -> None:  # of an application only what a connection needs
        self.requests: list[Request] = []
        self.metrics = Metrics(Catalog([]), Unread())

    async def answer(self, request: Request, receive: Receive, send: Send) -> None:
        assert request.direct is not None
        body = request.direct.take_body()
        if body is None:
            body, is_whole = b"", False
            while not is_whole:
                message = await receive()
                body += message["body"]
                is_whole = not message.get("more_body")
        self.requests.append(request)
        for _ in body[:3]:  # others may come meanwhile, and would be answered before this one
            await asyncio.sleep(0)
        request.headers.pop("content-length", None)
        told = [request.method, request.path, request.headers, body.decode("latin-1")]
        response = Response(msgspec.json.encode(told))
        if not response.send_directly(request.direct, []):
            await response.send(send)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await self.answer(Request.from_scope(scope), receive, send)


def answers(parts: list[bytes], *, repeats: bool = True) -> tuple[list[Any], Echo]:
    """Return the answers of a connection to which these bytes come; an empty part is a pause."""
    echo = Echo()

    class Tested(Connection):
        application = echo
        head_seconds = answer_seconds = 30.0

        def _remember(self, data: bytes) -> None:
            if repeats:
                super()._remember(data)

    async def talk() -> bytes:
        config = uvicorn.Config(echo, ws="none", lifespan="off", log_config=None)
        transport = Transport()
        loop = asyncio.get_running_loop()
        connection = Tested(config, ServerState(), {}, _loop=loop)
        connection.connection_made(transport)
        for part in parts:
            if part and not transport.is_closed:
                connection.data_received(part)
            for _ in range(0 if part else 9):  # what came is answered meanwhile
                await asyncio.sleep(0)
        for _ in range(99):
            await asyncio.sleep(0)
        connection.connection_lost(None)
        return transport.written

    written = asyncio.run(talk())
    return [part for part in written.split(b"HTTP/1.1 ") if part], echo


def test_a_head_that_comes_again_is_understood_once() -> None:
    found, echo = answers([WHOLE, b"", longer(b"b"), b"", longer(b""), b"", WHOLE])
    bodies = [msgspec.json.decode(part.partition(b"\r\n\r\n")[2])[3] for part in found]
    assert bodies == [BODY.decode(), "b", "", BODY.decode()]
    assert echo.requests[1] is echo.requests[2] is echo.requests[3]


PARTS = st.sampled_from(
    [
        WHOLE,
        longer(b"bb"),
        longer(b""),
        WHOLE + WHOLE,
        OTHER,
        OTHER[:25],
        OTHER[25:],
        b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n",
        CONNECT,
        b"HEAD /ping HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        WHOLE.replace(b"HTTP/1.1", b"HTTP/1.0"),
        WHOLE.replace(b"Host: x", b"Connection: close"),
        WHOLE.replace(b"Content-Length: 14", b"Transfer-Encoding: chunked"),
        WHOLE.replace(b"Host: x", b"Content-Length: 14"),
        HEAD.replace(b"Content-Length: 14", b"Transfer-Encoding: chunked") + b"1\r\na\r\n0\r\n\r\n",
        WHOLE.replace(b"Host: x", b"Expect: 100-continue"),
        WHOLE.replace(b"Host: x", b"Upgrade: websocket\r\nConnection: upgrade"),
        WHOLE.replace(b"\r\n\r\n", b"\n\n"),
        HEAD,
        HEAD[:25],
        HEAD[25:],
        BODY,
        b"\r\n",
        b"x",
    ]
)


@settings(max_examples=80)
@given(st.lists(PARTS | st.just(b""), max_size=12))
@example([WHOLE, b"", OTHER[:25], b"", OTHER[25:], b"", WHOLE, b"", WHOLE])
@example([WHOLE, b"", HEAD[:25], b"", WHOLE])
@example([WHOLE, b"", WHOLE, b"", OTHER, b"", OTHER])
@example([CONNECT, b"", CONNECT, b"", WHOLE])
@example([HEAD[:25], HEAD[25:] + BODY, b"", HEAD[25:] + BODY])
@example([WHOLE, b"", WHOLE, longer(b""), WHOLE, OTHER, b"", longer(b""), WHOLE])
def test_every_answer_is_as_if_each_head_was_parsed(parts: list[bytes]) -> None:
    assert answers(parts)[0] == answers(parts, repeats=False)[0]


def test_a_connection_is_closed_once_it_was_idle_for_so_long() -> None:
    """One timer looks when the last answer was."""
    loop = Mock()

    class Idle(Connection):
        def __init__(self) -> None:
            self.loop, self.transport, self.flow = loop, Transport(), Mock()
            self.cycle = Mock(response_complete=True)
            self.server_state, self.pipeline = ServerState(), deque()
            self.timeout_keep_alive_task, self.timeout_keep_alive = None, 75

    connection = Idle()
    for loop.time.return_value in (0.0, 10.0, 60.0):
        connection.on_response_complete()
    assert [each.args[0] for each in loop.call_later.call_args_list] == [75]
    for loop.time.return_value in (75.0, 135.0):
        assert not connection.transport.is_closing()
        loop.call_later.call_args.args[1]()
    assert [each.args[0] for each in loop.call_later.call_args_list] == [75, 60.0]
    assert connection.transport.is_closing()
