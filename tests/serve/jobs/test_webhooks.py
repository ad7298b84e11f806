"""Webhooks: where they may go, what they say, and that they arrive."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from embedlib.errors import ConfigError
from embedlib.serve import ServeOptions
from embedlib.serve.errors import HTTPError
from embedlib.serve.http.tls import new_context
from embedlib.serve.jobs import deliveries, webhook, worker
from embedlib.serve.jobs.answers import Answer
from embedlib.serve.jobs.database import open_database
from embedlib.serve.jobs.deliveries import deliver
from embedlib.serve.jobs.jobs import Jobs
from embedlib.serve.jobs.requests import RequestStore
from embedlib.serve.jobs.webhook import DeliveryError, Policy, Sender, is_public
from embedlib.serve.jobs.worker import MAX_HOST_DELIVERIES
from tests.serve.conftest import MakeCertificate
from tests.serve.jobs.conftest import FakeClock, echo, error, request_row, request_that, run, until

MakeJobs = Callable[..., Jobs]


class Receiver:
    """A server on loopback that keeps what it is sent, and answers as it is told."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[bytes | None] = []
        """The next answers; None: none at all. With none left: 200."""
        self.port = 0

    @asynccontextmanager
    async def listen(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?token=t"

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {"": lines[0]}
            for line in lines[1:-2]:
                name, _, value = line.partition(": ")
                headers[name.lower()] = value
            body = await reader.readexactly(int(headers["content-length"]))
            self.requests.append((headers, body))
            answer = self.answers.pop(0) if self.answers else b"HTTP/1.1 200 OK\r\n\r\n"
            if answer is None:
                await reader.read()  # until the other side gives up
            else:
                writer.write(answer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


def policy(*allowed: str) -> Policy:
    return Policy(allowed)


class Silent(Sender):
    """Speaks to nobody who answers."""

    def __init__(self) -> None:
        super().__init__(policy())

    async def send(self, url: str, headers: Any, body: bytes) -> None:
        raise DeliveryError("the connection failed", may_retry=True)


async def delivered(jobs: Jobs, clock: FakeClock, request_id: str, status: str) -> Any:
    async def is_there() -> bool:
        clock.advance(1.0)
        return (await jobs.requests.get(request_id)).webhook_status == status

    await until(is_there)
    return await jobs.requests.get(request_id)


def test_a_result_is_delivered_and_signed(make_jobs: MakeJobs, clock: FakeClock) -> None:
    async def work() -> None:
        async with Receiver().listen() as receiver:
            jobs = make_jobs(webhook_hosts=("127.0.0.1",), webhook_secrets=("new", "old"))
            jobs.start()
            row = request_row("r", webhook=receiver.url, webhook_status="PENDING")
            await jobs.add_request(row, b'{"a":1}')
            await delivered(jobs, clock, "r", "SUCCEEDED")
            [(headers, body)] = receiver.requests
            await jobs.close()
        assert headers[""] == "POST /hook?token=t HTTP/1.1"
        assert headers["host"] == f"127.0.0.1:{receiver.port}"
        assert headers["content-type"] == "application/json"
        assert headers["x-baseten-request-id"] == "r"
        signed = [hmac.new(key, body, hashlib.sha256).hexdigest() for key in (b"new", b"old")]
        assert headers["x-baseten-signature"] == f"v1={signed[0]},v1={signed[1]}"
        content = json.loads(body)
        assert content.pop("time").endswith("Z")
        assert content == {
            "request_id": "r",
            "model_id": "m",
            "deployment_id": "",
            "type": "async_request_completed",
            "data": {"a": 1},
            "errors": [],
        }

    run(work())


def test_failures_and_expiries_are_told_too(make_jobs: MakeJobs, clock: FakeClock) -> None:
    async def answer(path: str, body: bytes, request_id: str) -> Answer:
        if request_id == "late":
            return error(429, "overloaded", retry_seconds=60.0)
        return error(400, "invalid")

    async def work() -> None:
        async with Receiver().listen() as receiver:
            jobs = make_jobs(answer, webhook_hosts=("127.0.0.1",))
            jobs.start()
            for name in ("wrong", "late"):
                row = request_row(name, webhook=receiver.url, webhook_status="PENDING")
                row.queue_until = clock.time + 30
                await jobs.add_request(row, b"{}")
            await delivered(jobs, clock, "wrong", "SUCCEEDED")
            await delivered(jobs, clock, "late", "SUCCEEDED")
            await jobs.close()
        found = {json.loads(body)["request_id"]: json.loads(body) for _, body in receiver.requests}
        assert found["wrong"]["errors"][0]["code"] == "MODEL_INVALID_INPUT"
        assert found["late"]["errors"][0]["code"] == "REQUEST_EXPIRED"
        assert found["wrong"]["data"] is found["late"]["data"] is None
        assert "x-baseten-signature" not in receiver.requests[0][0]

    run(work())


def test_a_receiver_that_fails_is_tried_again_for_some_time(
    make_jobs: MakeJobs, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with Receiver().listen() as receiver:
            receiver.answers = [
                b"HTTP/1.1 503 Busy\r\n\r\n",
                b"nonsense\r\n",
                b"HTTP/1.1\r\n",
                b"",
                b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204\r\n\r\n",
                *[b"HTTP/1.1 500 No\r\n\r\n"] * deliveries.ATTEMPTS,
            ]
            jobs = make_jobs(webhook_hosts=("127.0.0.1",))
            jobs.start()
            row = request_row("r", webhook=receiver.url, webhook_status="PENDING")
            await jobs.add_request(row, b"{}")
            await delivered(jobs, clock, "r", "SUCCEEDED")
            assert len(receiver.requests) == 5
            other = request_row("s", webhook=receiver.url, webhook_status="PENDING")
            other.queue_until = clock.time + 600
            begun = clock.time
            await jobs.add_request(other, b"{}")
            row = await delivered(jobs, clock, "s", "FAILED")
            assert clock.time - begun >= 254
            assert row.status == "WEBHOOK_FAILED"
            assert f"in {deliveries.ATTEMPTS} attempts: it was answered with 500" in (
                row.error_message or ""
            )
            assert (await jobs.result("s"))[1] == b"{}"  # it can still be fetched
            assert caplog.messages == [f"request s: {row.error_message}"]
            assert jobs.metrics.deliveries == {
                "delivered": 1,
                "retried": 4 + deliveries.ATTEMPTS - 1,
                "failed": 1,
            }
            await jobs.close()

    run(work())


@pytest.mark.parametrize(
    ("num_before", "seconds"), [(0, 2), (3, 16), (deliveries.ATTEMPTS - 1, None)]
)
def test_the_time_before_an_attempt_doubles(
    make_jobs: MakeJobs, clock: FakeClock, num_before: int, seconds: int | None
) -> None:
    async def work() -> None:
        jobs = make_jobs()
        row = request_row("r", webhook="https://a/", webhook_status="PENDING", webhook_at=1.0)
        await jobs._tools.write(lambda: jobs._tools.requests.insert(row, body=b"{}"))
        await deliver(replace(row, webhook_attempts=num_before), jobs._tools, Silent())
        row = await jobs.requests.get("r")
        assert row.webhook_at == (None if seconds is None else clock.time + seconds)
        assert row.webhook_attempts == (0 if seconds is None else num_before + 1)
        await jobs.close()

    run(work())


@pytest.mark.parametrize(
    ("name", "limit"),
    [("MAX_DELIVERIES", 3), ("MAX_DELIVERY_BYTES", 5), ("MAX_HOST_DELIVERIES", 3)],
)
def test_deliveries_at_once_have_bounds(
    make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch, name: str, limit: int
) -> None:
    monkeypatch.setattr(worker, "MAX_HOST_DELIVERIES", 9)
    monkeypatch.setattr(worker, name, limit)
    sent: list[str] = []

    class Sending(Sender):
        async def send(self, url: str, headers: Any, body: bytes) -> None:
            sent.append(url)
            await asyncio.get_running_loop().create_future()

    async def work() -> None:
        jobs = make_jobs(sender=Sending(policy()), webhook_hosts=("a",))
        jobs.start()
        for place in range(6):
            row = request_row(f"r{place}", webhook="https://a/", webhook_status="PENDING")
            await jobs.add_request(row, b"{}")
            await request_that(jobs, row.id, "SUCCEEDED")
        await jobs.add_request(request_row("last"), b"{}")  # more looks
        await request_that(jobs, "last", "SUCCEEDED")
        await until(lambda: len(sent) >= 3)
        for _ in range(20):
            await jobs.count()
        assert len(sent) == 3
        await jobs.close()

    run(work())


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", b"HTTP/1.1 404 N\r\n"],
)
def test_redirects_and_refusals_end_it(
    make_jobs: MakeJobs, clock: FakeClock, answer: bytes
) -> None:
    async def work() -> None:
        async with Receiver().listen() as receiver:
            receiver.answers = [answer]
            jobs = make_jobs(webhook_hosts=("127.0.0.1",))
            jobs.start()
            row = request_row("r", webhook=receiver.url, webhook_status="PENDING")
            await jobs.add_request(row, b"{}")
            assert (await delivered(jobs, clock, "r", "FAILED")).status == "WEBHOOK_FAILED"
            assert len(receiver.requests) == 1
            await jobs.close()

    run(work())


def test_a_receiver_that_hangs_keeps_nothing_waiting(make_jobs: MakeJobs, clock: FakeClock) -> None:
    async def work() -> None:
        async with Receiver().listen() as receiver:
            receiver.answers = [None] * 20
            jobs = make_jobs(webhook_hosts=("127.0.0.1",))
            jobs.start()
            for place in range(20):
                row = request_row(f"h{place}", webhook=receiver.url, webhook_status="PENDING")
                await jobs.add_request(row, b"{}")
            await until(lambda: len(receiver.requests) == MAX_HOST_DELIVERIES)
            async with Receiver().listen() as other:
                row = request_row("o", webhook=other.url, webhook_status="PENDING")
                await jobs.add_request(row, b"{}")
                await until(lambda: other.requests)
            assert len(receiver.requests) == MAX_HOST_DELIVERIES
            await jobs.add_request(request_row("r"), b"{}")
            await request_that(jobs, "r", "SUCCEEDED")
            await jobs.count()
            assert jobs.metrics.num_webhooks in (20, 21)  # the other one may have ended
            await jobs.close()  # and the end does not wait for it

    run(work())


def test_deliveries_at_once_are_bounded_in_bytes(tmp_path: Path) -> None:
    with closing(open_database(tmp_path / "jobs")) as connection:
        store = RequestStore(connection)
        for place, num_bytes in enumerate((9, 3, 4, 1)):
            row = request_row(f"r{place}", num_bytes=num_bytes, webhook="http://a/")
            store.insert(replace(row, webhook_at=float(place)), body=b"")

        def due(*but: str) -> list[str]:
            most = {"max_requests": 9, "max_per_host": 9, "max_bytes": 7}
            return [row.id for row in store.due(**most, now=9.0, but=but)]

        assert due() == ["r0"]  # always one
        assert due("r0") == ["r1", "r2"]


def test_a_delivery_has_a_limit_of_time() -> None:
    async def work() -> None:
        async def never(host: str, port: int) -> list[str]:
            return await asyncio.Future()

        sender = Sender(policy("a.example"), seconds=0.01, resolve=never)
        with pytest.raises(DeliveryError, match=r"not taken within 0\.01 seconds") as caught:
            await sender.send("https://a.example/", [], b"{}")
        assert caught.value.may_retry

    run(work())


def test_a_large_result_is_to_be_fetched(
    make_jobs: MakeJobs, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "MAX_RESULT_BYTES", 3)

    async def work() -> None:
        async with Receiver().listen() as receiver:
            jobs = make_jobs(webhook_hosts=("127.0.0.1",))
            jobs.start()
            for body in (b"[1]", b"[12]"):
                row = request_row(str(len(body)), webhook=receiver.url, webhook_status="PENDING")
                await jobs.add_request(row, body)
                await delivered(jobs, clock, row.id, "SUCCEEDED")
            await jobs.close()
        small, large = (json.loads(body) for _, body in receiver.requests)
        assert (small["data"], small["errors"]) == ([1], [])
        assert large["data"] is None
        [error] = large["errors"]
        assert error["code"] == "RESULT_TOO_LARGE"
        assert "has 4 bytes; fetch it from /async_request/4/result" in error["message"]

    run(work())


@pytest.mark.parametrize(
    ("allowed", "url", "words"),
    [
        ((), "https://a.example/", "--webhook-allow a.example"),
        (("b.example",), "https://a.example/", "--webhook-allow a.example"),
        (("example",), "https://a.example/", "--webhook-allow"),
        (("a.example",), "https://a.example@evil.example/", "leave out user"),
        (("a.example",), "https://u:secret@a.example/", "leave out user"),
        (("a.example",), "https://a.example/#f", "fragment"),
        (("a.example",), "http://a.example/", "it must begin with https://"),
        (("a.example",), "ftp://a.example/", "it must begin with https://"),
        (("a.example",), "https:///x", "it must be a URL"),
        (("a.example",), "https://a.example:99999/", "it must be a URL"),
        (("a.example",), "https://[::1/", "it must be a URL"),
        (("a.example",), "https://a.example/a b", "ASCII"),
        (("a.example",), "https://a.example/a\r\nX: y", "ASCII"),
        (("a.example",), "https://a.example/" + "a" * 3000, "2048"),
        (("a.example",), "https://a.example?" + "a" * 2030, "2048"),  # of 2049 with its /
        (("a.example",), "https://8.8.8.8/", "--webhook-allow 8.8.8.8"),
        (("10.0.0.0/8",), "http://11.0.0.1/", "--webhook-allow 11.0.0.1"),
        (("10.0.0.0/8",), "ftp://10.0.0.1/", "it must begin with https://"),
        (("a.example",), "https://[::ffff:127.0.0.1]/", "--webhook-allow"),
        (("a.example",), "", "it must be a URL"),
    ],
)
def test_urls_that_are_refused(allowed: tuple[str, ...], url: str, words: str) -> None:
    with pytest.raises(HTTPError) as caught:
        policy(*allowed).endpoint(url)
    assert words in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.param == "webhook_endpoint"
    assert "secret" not in caught.value.message


def test_a_long_url_is_not_kept_by_who_parses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python keeps the last 128 that it has parsed, and a body may be one of 32 MiB."""
    parsed: list[str] = []
    monkeypatch.setattr(webhook, "urlsplit", lambda url: parsed.append(url) or urlsplit(url))
    for url in ("https://a.example/" + "a" * 3000, "https://a.example/b"):
        with suppress(HTTPError):
            policy("a.example").endpoint(url)
    assert parsed == ["", "https://a.example/b"]


@pytest.mark.parametrize(
    "url",
    [
        *("https://a.example/secret", "https://a.example?token=secret", "a.example/secret"),
        *("https://user:secret@a.example/", "https://a.example#secret"),
    ],
)
def test_a_refusal_tells_no_secret_of_the_url(url: str) -> None:
    with pytest.raises(HTTPError) as caught:
        policy().endpoint(url)
    assert "a.example'" in caught.value.message
    assert "secret" not in caught.value.message


def test_options_of_webhooks_are_checked() -> None:
    for wrong in ("https://a.example/", "a.example:80", "10.0.0.0/99", "*.example", ""):
        with pytest.raises(ConfigError, match="without scheme and port"):
            policy(wrong)
    with pytest.raises(ConfigError, match="give data_dir"):
        ServeOptions(webhook_hosts=("a.example",))


def test_urls_that_are_allowed() -> None:
    endpoint = policy("A.example.").endpoint("https://a.example/x?y=1")
    assert (endpoint.host, endpoint.port, endpoint.target) == ("a.example", 443, "/x?y=1")
    assert endpoint.authority == "a.example"
    assert policy("10.0.0.0/8").endpoint("http://10.1.2.3:81").target == "/"
    assert policy("::1").endpoint("http://[::1]:81/").authority == "[::1]:81"
    assert policy("localhost").endpoint("http://localhost:81/").host == "localhost"


@pytest.mark.parametrize(
    ("url", "one"),
    [
        ("https://a.example?id=1/", "https://a.example/?id=1/"),
        ("HTTPS://A.example.:443/x?y=1", "https://a.example/x?y=1"),
        ("http://[0:0::1]:80", "http://[0:0::1]/"),
        ("http://localhost:81/", "http://localhost:81/"),
    ],
)
def test_a_host_is_one_host_however_it_is_written(make_jobs: MakeJobs, url: str, one: str) -> None:
    """Those that differ each have places of their own."""

    async def work() -> None:
        jobs = make_jobs(webhook_hosts=("a.example", "::1", "localhost"))
        await jobs.add_request(request_row("r", webhook=url, webhook_status="PENDING"), b"{}")
        assert (await jobs.requests.get("r")).webhook == one
        await jobs.close()

    run(work())
    assert policy("a.example", "localhost").endpoint(one).url == one


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fc00::1"),
        *("fec0::1", "ff02::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::1"),
        *("64:ff9b:1::1", "240.0.0.1", "198.18.0.1", "2001::4136:e378:63bf:f7f7"),
    ],
)
def test_a_name_that_leads_to_an_address_inside_is_refused(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))

    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["93.184.215.14", address]

    async def work() -> None:
        sender = Sender(policy("a.example"), resolve=resolve)
        with pytest.raises(DeliveryError, match="an address that is not public") as caught:
            await sender.send("https://a.example/", [], b"{}")
        assert not caught.value.may_retry

    run(work())


def test_the_address_that_was_checked_is_the_one_connected_to() -> None:
    """A second look-up could give another address (DNS rebinding)."""
    asked: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"]

    async def work() -> None:
        async with Receiver().listen() as receiver:
            # No resolver knows this name: who asked one again would fail.
            sender = Sender(policy("hook.invalid", "127.0.0.1"), resolve=resolve)
            await sender.send(f"http://hook.invalid:{receiver.port}/", [], b"{}")
            [(headers, _)] = receiver.requests
            assert headers["host"] == f"hook.invalid:{receiver.port}"
            with pytest.raises(DeliveryError, match="http goes only to addresses"):
                await Sender(policy("hook.invalid", "::1"), resolve=resolve).send(
                    f"http://hook.invalid:{receiver.port}/", [], b"{}"
                )
        assert asked == ["hook.invalid"] * 2
        assert len(receiver.requests) == 1

    run(work())


def test_a_certificate_must_be_that_of_the_name_in_the_url(
    make_certificate: MakeCertificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is made to an address."""
    certificate, key = make_certificate("localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))  # whom OpenSSL trusts

    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    async def work() -> None:
        async with Receiver().listen(new_context(certificate, key)) as receiver:
            sender = Sender(policy("localhost", "hook.invalid"), resolve=resolve)
            await sender.send(f"https://localhost:{receiver.port}/", [], b"{}")
            with pytest.raises(DeliveryError, match="TLS failed: CERTIFICATE_VERIFY_FAILED"):
                await sender.send(f"https://hook.invalid:{receiver.port}/", [], b"{}")
            [(headers, body)] = receiver.requests
            assert (headers["host"], body) == (f"localhost:{receiver.port}", b"{}")

    run(work())


def test_a_host_is_tried_at_each_of_its_addresses() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.2", "127.0.0.1"]  # nobody listens on the first one

    async def work() -> None:
        async with Receiver().listen() as receiver:
            sender = Sender(policy("hook.invalid", "127.0.0.0/8"), resolve=resolve)
            await sender.send(f"http://hook.invalid:{receiver.port}/", [], b"{}")
            assert len(receiver.requests) == 1
            receiver.port += 1  # nobody listens on either
            with pytest.raises(DeliveryError, match="failed: ConnectionRefusedError"):
                await sender.send(f"http://hook.invalid:{receiver.port}/", [], b"{}")

    run(work())


def test_a_refusal_before_the_whole_body_was_read_is_understood() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too large\r\n\r\n")
        writer.close()

    async def work() -> None:
        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            sender = Sender(policy("127.0.0.1"))
            with pytest.raises(DeliveryError, match="answered with 413") as caught:
                await sender.send(f"http://127.0.0.1:{port}/", [], bytes(10 << 20))
            assert not caught.value.may_retry

    run(work())


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_receiver_that_does_not_read_keeps_no_body(
    monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    opened: list[asyncio.StreamWriter] = []
    connect = asyncio.open_connection

    async def open_connection(*args: Any, **options: Any) -> Any:
        reader, writer = await connect(*args, **options)
        opened.append(writer)
        return reader, writer

    async def work() -> None:
        left, closed = asyncio.Event(), asyncio.Event()

        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(answer)
            await left.wait()
            writer.transport.abort()
            closed.set()

        server = await asyncio.start_server(hang, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        sender = Sender(policy("127.0.0.1"), seconds=0.1)
        with nullcontext() if answer else pytest.raises(DeliveryError, match="not taken within"):
            await sender.send(f"http://127.0.0.1:{port}/", [], bytes(16 << 20))
        with suppress(OSError):
            await opened[0].wait_closed()
        left.set()
        await closed.wait()
        server.close()

    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    run(work())


def test_public_addresses_are_public() -> None:
    for address in ("8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"):
        assert is_public(ipaddress.ip_address(address))


def test_a_delivery_with_a_bug_waits_for_the_next_look(
    make_jobs: MakeJobs, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It is due at once: it would keep a core busy, and fill the log."""

    class Buggy(Sender):
        num_sent = 0

        async def send(self, url: str, headers: Any, body: bytes) -> None:
            self.num_sent += 1
            raise KeyError("a bug")

    async def work() -> None:
        sender = Buggy(policy())
        jobs = make_jobs(sender=sender, webhook_hosts=("hooks.example.com",))
        url = "https://hooks.example.com/done"
        await jobs.add_request(request_row("r", webhook=url, webhook_status="PENDING"), b"{}")
        jobs.start()
        await until(lambda: sender.num_sent)
        for _ in range(50):
            await jobs.count()  # time for another look
        assert sender.num_sent == 1
        clock.advance(1.0)
        await until(lambda: sender.num_sent == 2)
        await jobs.close()

    run(work())
    assert set(caplog.messages) == {"request r"}


def test_a_request_without_a_webhook_sends_none(make_jobs: MakeJobs) -> None:
    async def work() -> None:
        jobs = make_jobs(echo)
        jobs.start()
        await jobs.add_request(request_row("r"), b"{}")
        row = await request_that(jobs, "r", "SUCCEEDED")
        assert row.webhook_at is None
        await jobs.close()

    run(work())
