"""What a connection may send beside requests: the protocol of the server, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.server import ServerState

from embedlib.serve import ServeOptions, create_app
from embedlib.serve.http.connection import MAX_HEAD_BYTES, MAX_WAITING
from embedlib.serve.http.server import _protocol
from embedlib.testing import FakeEngine, fake_embedder
from tests.waiting import WAIT_SECONDS

HEAD = b"Host: x\r\nX-Api-Key: right\r\n"
REQUEST = b"GET /v1/models HTTP/1.1\r\n" + HEAD + b"\r\n"
CHUNKED = b"POST /tokenize HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


class Connection:
    """A connection whose client is the test."""

    def __init__(self, kind: type[Any], config: uvicorn.Config, engine: FakeEngine) -> None:
        self.engine = engine
        self.transport = Mock()
        self.transport.get_extra_info.return_value = None
        self.transport.get_write_buffer_size.return_value = 0
        self.transport.is_closing.return_value = False
        self.transport.close.side_effect = lambda: self.transport.is_closing.configure_mock(
            return_value=True
        )
        self.protocol = kind(config, ServerState(), {})
        self.protocol.connection_made(self.transport)

    async def send(self, data: bytes) -> bytes:
        """Send data and return what has come back, as soon as nothing runs."""
        self.transport.write.reset_mock()
        self.protocol.data_received(data)
        while tasks := self.protocol.tasks:
            await asyncio.wait(tasks)
        return b"".join(call.args[0] for call in self.transport.write.call_args_list)

    @property
    def has_limit(self) -> bool:
        """Whether the connection ends if nothing more comes."""
        timers = (self.protocol._head_limit, self.protocol.timeout_keep_alive_task)
        return any(timer is not None and not timer.cancelled() for timer in timers)


Converse = Callable[[Callable[[Connection], Awaitable[None]]], None]


@pytest.fixture
def converse() -> Converse:
    """Return a function that runs a conversation of a client with a server."""

    def run(conversation: Callable[[Connection], Awaitable[None]]) -> None:
        async def all_of_it() -> None:
            options = ServeOptions(api_keys=("right",))
            engine = FakeEngine()
            application = create_app({"fake": fake_embedder(engine)}, options=options)
            await application.start()
            await application.loaded()
            config = uvicorn.Config(application, ws="none", log_config=None)
            connection = Connection(_protocol(application), config, engine)
            await asyncio.wait_for(conversation(connection), WAIT_SECONDS)
            connection.protocol.connection_lost(None)
            while tasks := connection.protocol.tasks:
                await asyncio.wait(tasks)
            engine.release()
            await application.close()

        asyncio.run(all_of_it())

    return run


@pytest.mark.parametrize("stray", [b"\r\n", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\na"])
def test_a_connection_without_a_request_always_ends(converse: Converse, stray: bytes) -> None:
    """Also after what is no request: an empty line, or the body of one that is answered."""

    async def conversation(connection: Connection) -> None:
        assert connection.has_limit
        assert b"200 OK" in await connection.send(REQUEST)
        assert connection.has_limit
        await connection.send(stray)
        await connection.send(b"\r\n")
        assert connection.has_limit
        assert not connection.transport.close.called

    converse(conversation)


def test_the_bound_of_a_head_ends_with_it(converse: Converse) -> None:
    """An answer that takes longer is not cut off."""

    async def conversation(connection: Connection) -> None:
        await connection.send(REQUEST[:9])
        limit = connection.protocol._head_limit
        assert not limit.cancelled()
        await connection.send(REQUEST[9:20])
        assert connection.protocol._head_limit is limit  # another one would be left behind
        await connection.send(REQUEST[20:])
        assert limit.cancelled()

    converse(conversation)


def test_a_proxy_at_a_unix_socket_tells_who_asks(converse: Converse) -> None:
    async def conversation(connection: Connection) -> None:
        for header, client in (
            (b"", None),
            (b"X-Forwarded-For: 198.51.100.1, 203.0.113.9\r\n", ("203.0.113.9", 0)),
        ):
            head = REQUEST.removesuffix(b"\r\n") + header + b"\r\n"
            assert (await connection.send(head)).startswith(b"HTTP/1.1 200")
            assert connection.protocol.scope["client"] == client

    converse(conversation)


def test_a_head_has_a_bound(converse: Converse) -> None:
    half = MAX_HEAD_BYTES // 2
    head = REQUEST[:-2] + b"X-Long: " + b"a" * half

    async def conversation(connection: Connection) -> None:
        assert await connection.send(head) == b""
        assert b"200 OK" in await connection.send(b"a" * half + b"\r\n\r\n")
        assert await connection.send(head) == b""
        assert await connection.send(b"a" * half) == b""
        assert b"400" in await connection.send(b"a" * (half + 1))
        assert connection.transport.close.called

    async def of_what_is_none(connection: Connection) -> None:
        await connection.send(head)
        assert (await connection.send(b"a" * MAX_HEAD_BYTES + b"\r\nno name\r\n")).count(
            b"400 Bad"
        ) == 1

    converse(conversation)
    converse(of_what_is_none)


def test_trailers_are_no_headers_and_have_a_bound(converse: Converse) -> None:
    async def conversation(connection: Connection) -> None:
        body = b"4\r\nnull\r\n0\r\n"
        assert b"422" in await connection.send(CHUNKED + body + b"X-Api-Key: wrong\r\n\r\n")
        assert b"401" in await connection.send(CHUNKED.replace(b"right", b"wrong") + body)
        for _ in range(MAX_HEAD_BYTES >> 14):
            await connection.send(b"X-Api-Key: right\r\n" * (1 << 10))
        assert connection.transport.close.called

    converse(conversation)


def test_a_long_body_is_no_head(converse: Converse) -> None:
    async def conversation(connection: Connection) -> None:
        text = b"a" * MAX_HEAD_BYTES
        connection.protocol.data_received(CHUNKED + b'5\r\n{"a":\r\n')
        for _ in range(3):
            connection.protocol.data_received(b"%x\r\n%b" % (len(text), text))
            connection.protocol.data_received(b"\r\n")
        assert b"422" in await connection.send(b"0\r\n\r\n")
        assert not connection.transport.close.called
        assert b"200 OK" in await connection.send(REQUEST)

    converse(conversation)


def test_a_body_that_is_too_long_is_refused_before_it_comes(converse: Converse) -> None:
    async def conversation(connection: Connection) -> None:
        head = b"POST /v1/embeddings HTTP/1.1\r\n" + HEAD + b"Content-Length: 99999999\r\n\r\n"
        assert b" 413 " in await connection.send(head)

    converse(conversation)


def test_a_length_in_characters_is_told(converse: Converse) -> None:
    """The rest of the body would be another request."""
    body = '{"input": "ééé"}'
    head = b"POST /v1/embeddings HTTP/1.1\r\n" + HEAD + b"Content-Length: %d\r\n\r\n"
    hint = b"must count bytes"

    async def conversation(connection: Connection) -> None:
        assert hint in await connection.send(head % len(body) + body.encode())

    async def without_a_body(connection: Connection) -> None:
        assert b"200 OK" in await connection.send(REQUEST)
        answer = await connection.send(b"nonsense\r\n\r\n")
        assert b"400 Bad Request" in answer
        assert hint not in answer

    async def in_a_body(connection: Connection) -> None:
        connection.protocol.data_received(CHUNKED + b"nonsense\r\n\r\n")
        [[[answer], _]] = connection.transport.write.call_args_list
        assert b"400 Bad Request" in answer
        assert hint not in answer

    for each in (conversation, without_a_body, in_a_body):
        converse(each)


def test_a_length_of_any_number_of_digits_is_one(converse: Converse) -> None:
    async def conversation(connection: Connection) -> None:
        head = b"POST /v1/embeddings HTTP/1.1\r\n" + HEAD
        request = head + b"Content-Length: %b%b" % (b"0" * 5000, LENGTH.split(b": ", 1)[1])
        assert b"200 OK" in await connection.send(request)

    converse(conversation)


OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n"
BODY = b'{"input": "a"}'
LENGTH = b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


@pytest.mark.parametrize("size", [1, 40, 1000])
@pytest.mark.parametrize("framed", [LENGTH, CHUNKS])
def test_an_offer_of_another_protocol_is_ignored(
    converse: Converse, framed: bytes, size: int
) -> None:
    """As Java's client sends it; in pieces of any size, and between other requests."""
    post = b"POST /v1/embeddings HTTP/1.1\r\n" + HEAD
    get = REQUEST.replace(HEAD, HEAD + OFFER)

    async def conversation(connection: Connection) -> None:
        for head in (OFFER, b"", OFFER):
            request = post + head + framed
            pieces = [request[start : start + size] for start in range(0, len(request), size)]
            for piece in pieces[:-1]:
                connection.protocol.data_received(piece)
            answer = await connection.send(pieces[-1])
            assert answer.count(b"HTTP/1.1") == 1
            assert b"200 OK" in answer
            assert b'"embedding"' in answer
            assert b"200 OK" in await connection.send(get)
        assert not connection.transport.close.called

    converse(conversation)


@pytest.mark.parametrize("framed", [LENGTH, CHUNKS])
def test_many_offers_at_once_are_ignored(converse: Converse, framed: bytes) -> None:
    request = b"POST /v1/embeddings HTTP/1.1\r\n" + HEAD + OFFER + framed

    async def conversation(connection: Connection) -> None:
        many = await connection.send(request * 1000)
        assert many.count(b"200 OK") == 1000
        assert not connection.transport.close.called

    converse(conversation)


@pytest.mark.parametrize(
    ("version", "more", "framed"),
    [
        *((b"1.1", b", close", framed) for framed in (b"\r\n", LENGTH, CHUNKS)),
        *((b"1.0", b"", framed) for framed in (b"\r\n", LENGTH)),  # which has no chunks
    ],
)
def test_an_offer_in_the_last_request_is_ignored(
    converse: Converse, framed: bytes, version: bytes, more: bytes
) -> None:
    method = b"GET /v1/models" if framed == b"\r\n" else b"POST /v1/embeddings"
    offer = OFFER.replace(b"Settings\r\nUpgrade", b"Settings%b\r\nUpgrade" % more)
    request = b"%b HTTP/%b\r\n%b%b%b" % (method, version, HEAD, offer, framed)

    async def conversation(connection: Connection) -> None:
        answer = await connection.send(request)
        assert answer.count(b"HTTP/1.1") == 1
        assert b"200 OK" in answer
        assert connection.transport.close.called

    converse(conversation)


def test_what_follows_the_last_request_keeps_it_from_no_answer(converse: Converse) -> None:
    async def conversation(connection: Connection) -> None:
        last = REQUEST.replace(HEAD, HEAD + b"Connection: close\r\n")
        answer = await connection.send(last + REQUEST)
        assert answer.count(b"HTTP/1.1") == 1
        assert b"200 OK" in answer
        assert connection.transport.close.called

    converse(conversation)


def test_a_server_that_drains_answers_once_more(converse: Converse) -> None:
    """The next request of its client takes another connection, and is not lost with this one."""

    async def conversation(connection: Connection) -> None:
        post = b"POST /v1/embeddings HTTP/1.1\r\n" + HEAD + LENGTH
        for _ in range(2):  # the second head is understood without a parser
            assert b"connection: close" not in await connection.send(post)
        connection.protocol.application.drain()
        answer = await connection.send(post)
        assert b"200 OK" in answer
        assert b"connection: close" in answer
        assert connection.transport.close.called

    converse(conversation)


def test_a_server_that_drains_answers_all_that_came_at_once(converse: Converse) -> None:
    async def conversation(connection: Connection) -> None:
        connection.protocol.application.drain()
        answers = await connection.send(REQUEST * 3)
        assert answers.count(b"200 OK") == 3
        assert answers.count(b"connection: close") == 1
        assert connection.transport.close.called

    converse(conversation)


def test_no_more_is_read_while_requests_wait(converse: Converse) -> None:
    """A client that sends them without an end would fill the memory."""

    async def conversation(connection: Connection) -> None:
        paused: list[bool] = []
        connection.transport.pause_reading.side_effect = lambda: paused.append(True)
        connection.transport.resume_reading.side_effect = lambda: paused.append(False)
        when_answered: list[bool] = []
        connection.transport.write.side_effect = lambda _: when_answered.append(paused[-1])
        post = b"POST /v1/embeddings HTTP/1.1\r\n" + HEAD + LENGTH
        connection.protocol.data_received(REQUEST + post + REQUEST + post[:-1])
        while len(when_answered) < 3:
            await asyncio.sleep(0)
        assert when_answered == [True, True, True]
        assert not paused[-1]  # the last one's body is not whole
        assert b"200 OK" in await connection.send(post[-1:])

    converse(conversation)


def test_requests_that_come_at_once_have_a_bound(converse: Converse) -> None:
    """A piece of a connection may have thousands, which are all parsed before one is answered."""

    async def conversation(connection: Connection) -> None:
        assert (await connection.send(REQUEST * (MAX_WAITING + 1))).count(b"200 OK") > MAX_WAITING
        assert b"400" in await connection.send(REQUEST * (MAX_WAITING + 9))
        assert len(connection.protocol.pipeline) == MAX_WAITING
        assert connection.transport.close.called

    converse(conversation)


def test_nothing_is_answered_while_the_client_does_not_read(converse: Converse) -> None:
    async def conversation(connection: Connection) -> None:
        connection.protocol.pause_writing()
        connection.protocol.data_received(REQUEST)
        for _ in range(99):
            await asyncio.sleep(0)
        assert not connection.transport.write.called
        connection.protocol.resume_writing()
        await asyncio.wait(connection.protocol.tasks)
        assert connection.transport.write.called

    converse(conversation)


def test_a_head_that_is_not_read_is_not_late(converse: Converse) -> None:
    async def conversation(connection: Connection) -> None:
        connection.engine.hold()
        post = b"POST /v1/embeddings HTTP/1.1\r\n" + HEAD + LENGTH
        connection.protocol.data_received(post * 2 + REQUEST[:9])
        while not connection.engine.batches:
            await asyncio.sleep(0)
        connection.protocol._head_limit._run()
        assert not connection.transport.close.called
        connection.engine.release()
        assert b"200 OK" in await connection.send(REQUEST[9:])
        assert connection.protocol._head_limit is None
        connection.protocol.data_received(REQUEST[:9])
        connection.protocol._head_limit._run()
        assert connection.transport.close.called

    converse(conversation)


def test_the_bound_of_a_head_ends_with_one_that_comes_again(converse: Converse) -> None:
    async def conversation(connection: Connection) -> None:
        post = b"POST /v1/embeddings HTTP/1.1\r\n" + HEAD + LENGTH
        for stray in (b"", b"\r\n", b"\r\n"):
            await connection.send(stray)
            assert b"200 OK" in await connection.send(post)
            assert connection.protocol._head_limit is None

    converse(conversation)


def test_nothing_is_left_of_a_connection_that_is_lost(converse: Converse) -> None:
    """Else the limit of a head behind others would begin again and again."""

    async def conversation(connection: Connection) -> None:
        connection.engine.hold()
        post = b"POST /v1/embeddings HTTP/1.1\r\n" + HEAD + LENGTH
        connection.protocol.data_received(post * 2 + REQUEST[:9])
        limit = connection.protocol._head_limit
        assert limit is not None
        connection.transport.is_closing.return_value = True
        connection.protocol.connection_lost(ConnectionResetError())
        assert limit.cancelled()
        connection.protocol._gone = asyncio.get_running_loop().create_future()  # it ends again

    converse(conversation)


def test_a_proxy_that_connects_is_refused(converse: Converse) -> None:
    async def conversation(connection: Connection) -> None:
        assert b"400" in await connection.send(b"CONNECT x:443 HTTP/1.1\r\n" + HEAD + b"\r\n")

    converse(conversation)


def test_a_client_that_leaves_several_requests_is_no_fault(
    converse: Converse, caplog: pytest.LogCaptureFixture
) -> None:
    """The one that is answered is not the last one that came."""

    async def conversation(connection: Connection) -> None:
        connection.engine.hold()
        connection.protocol.data_received((b"POST /v1/embeddings HTTP/1.1\r\n" + HEAD + LENGTH) * 3)
        while not connection.engine.batches:
            await asyncio.sleep(0)

    converse(conversation)
    assert caplog.messages == []


def test_the_rest_of_a_body_that_is_refused_is_read(converse: Converse) -> None:
    """Its connection is used again."""

    async def conversation(connection: Connection) -> None:
        head = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n"
        assert b"401" in await connection.send(head + b"a" * 100_000)
        assert connection.transport.pause_reading.called
        assert connection.transport.resume_reading.called

    converse(conversation)


def test_only_an_idle_connection_is_closed_after_a_time(converse: Converse) -> None:
    async def conversation(connection: Connection) -> None:
        protocol, engine = connection.protocol, connection.engine
        await connection.send(REQUEST)
        protocol._idle_since -= 1000
        await connection.send(REQUEST[:9])
        protocol.timeout_keep_alive_handler()
        engine.hold()
        post = b"POST /v1/embeddings HTTP/1.1\r\n" + HEAD + LENGTH
        protocol.data_received(REQUEST[9:] + post)
        while not engine.batches:
            await asyncio.sleep(0)
        protocol.timeout_keep_alive_handler()
        assert not connection.transport.close.called
        assert not connection.has_limit  # the answer sets another one
        engine.release()
        await asyncio.wait(protocol.tasks)
        assert connection.has_limit
        protocol._idle_since -= 1000
        protocol.timeout_keep_alive_handler()
        assert connection.transport.close.called

    converse(conversation)
