"""`embedlib serve` as a process: its start, its end by signals, and clients that stall."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import msgspec
import pytest

from embedlib.errors import ConfigError, EmbedlibError
from embedlib.serve import ServeOptions, create_app
from embedlib.serve.http.server import Listen, serve
from embedlib.serve.http.slow_readers import ReadLimitedProtocol
from embedlib.serve.http.tls import Renewable, new_context
from embedlib.serve.models.admission import Unread
from embedlib.testing import FakeEngine, fake_embedder, write_tiny_model
from tests.ports import free_port
from tests.serve.conftest import MakeCertificate, ended_in_time
from tests.tiny_models.static import write_static_model
from tests.waiting import WAIT_SECONDS

SERVE = """
import gc, sys
from embedlib.serve import ServeOptions, create_app
from embedlib.serve.http import server
from embedlib.serve.logs.access_log import AccessLog
from embedlib.serve.models.catalog import ServedModel
from embedlib.serve.http.server import Listen, serve
from embedlib.testing import FakeEngine, fake_embedder

server.SAME_SIGNAL_SECONDS = 60.0  # of a busy machine

engine = FakeEngine()
if "held" in sys.argv:
    engine.hold()
if "buggy" in sys.argv:
    ServedModel.open = None
seconds = {"head_seconds": 2.0, "body_seconds": 2.0, "answer_seconds": 2.0, "grace_seconds": 0.0}
options = ServeOptions(data_dir=dict(enumerate(sys.argv)).get(3), **seconds)
models, log = {"fake": fake_embedder(engine)}, AccessLog()
serve(create_app(models, options=options, log=log), Listen(port=int(sys.argv[1])))
print("kept objects:", gc.get_freeze_count(), flush=True)
print("ended in order", flush=True)
"""
LOADING = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from embedlib.cli import main
from embedlib.serve.models.catalog import ServedModel

ServedModel.make = lambda model: ThreadPoolExecutor(1).submit(threading.Event().wait).result()
main(["serve", "model", "--port", sys.argv[1]])
"""
CLIENT = """
import socket, sys
client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
body = b'{"input": [' + b", ".join([b'"a"'] * 400) + b"]}"
head = b"POST /v1/embeddings HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: %d\\r\\n\\r\\n"
client.sendall(head % len(body) + body)
print("sent", flush=True)
client.recv(1)
"""


def can_connect(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


class Server:
    """A process that serves a fake engine."""

    def __init__(self, *arguments: str, stderr: int = subprocess.STDOUT) -> None:
        self.port = free_port()
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(self.port), *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        self.url = f"http://127.0.0.1:{self.port}"
        # One for all requests, each with a connection of its own: a client takes long to make.
        self.http = httpx.Client(
            base_url=self.url, headers={"Connection": "close"}, timeout=WAIT_SECONDS
        )
        wait_ready(self.http, self.process)

    def get(self, path: str) -> bytes:
        return self.http.get(path).content

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), WAIT_SECONDS)

    def stop(self) -> None:
        self.http.close()
        self.process.kill()
        self.process.communicate()

    def end(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=WAIT_SECONDS)
        return self.process.returncode, output


def wait_ready(http: httpx.Client, process: subprocess.Popen[str] | None) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until and (process is None or process.poll() is None):
        try:
            if http.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)  # a process in its start; there is nothing to wait on
    has_ended = process is not None and process.poll() is not None
    raise AssertionError(process.communicate()[0] if process and has_ended else "too late")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that tests share, with nothing of them left in it."""
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(*arguments: str, stderr: int = subprocess.STDOUT) -> Server:
        server = Server(*arguments, stderr=stderr)
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_end_by_a_signal_answers_what_runs(
    start: Callable[..., Server], number: signal.Signals
) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("this signal is ignored here, as below nohup, and the server keeps to that")
    server = start()
    for proxied in ({}, {"X-Forwarded-For": "203.0.113.9"}):
        assert server.http.post("/embed", json={"inputs": "a"}, headers=proxied).is_success
    server.process.send_signal(number)
    code, output = server.end()
    assert code == 0, output
    lines = output.splitlines()
    assert "ended in order" in lines
    clients = [json.loads(line)["client"] for line in lines if '"/embed"' in line]
    assert clients == ["127.0.0.1", "203.0.113.9"]
    [kept] = re.findall(r"kept objects: (\d+)", output)
    assert int(kept) > 10_000, "the garbage collector looks at no object of the start again"


def test_the_second_signal_ends_at_once(start: Callable[..., Server]) -> None:
    server = start("held")
    with server.connect() as client:
        body = b'{"inputs": "a"}'
        client.sendall(
            b"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        while b'queued_texts{model="fake",lane="query"} 1' not in server.get("/metrics"):
            pass
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGINT)
        code, output = server.end()
    assert code == 1, output
    assert "ended in order" not in output


def test_the_end_waits_for_no_load() -> None:
    """It may be a download: huggingface-hub runs it on threads that Python's end waits for."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", LOADING, str(port)], stderr=subprocess.PIPE, text=True
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_SECONDS) as http:
            wait_ready(http, process)
            assert http.get("/ready").json()["models"] == {"model": "loading"}
        process.terminate()
        _, output = process.communicate(timeout=WAIT_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, output
    assert "Traceback" not in output


def test_an_end_may_wait_for_no_request() -> None:
    engine, port = FakeEngine(), free_port()
    engine.hold()
    options = ServeOptions(drain_seconds=0, grace_seconds=0)
    application = create_app({"fake": fake_embedder(engine)}, options=options)
    answers: list[httpx.Response] = []

    def ask() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_SECONDS) as http:
            try:
                wait_ready(http, None)
                answers.append(http.post("/embed", json={"inputs": "a"}))
            finally:
                engine.release()

    def end() -> None:
        while not engine.batches:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threads = [threading.Thread(target=each, daemon=True) for each in (ask, end)]
    for thread in threads:
        thread.start()
    with ended_in_time(application):
        serve(application, Listen(port=port))
    threads[0].join(WAIT_SECONDS)
    assert [answer.status_code for answer in answers] == [503]


def test_a_signal_that_comes_twice_at_once_is_one(start: Callable[..., Server]) -> None:
    """GNU timeout sends it to the process and to its group."""
    server = start()
    for _ in range(2):
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.01)  # or the system makes one of the two
    code, output = server.end()
    assert code == 0, output
    assert "ended in order" in output


def test_a_hangup_beside_another_signal_is_no_second_one(start: Callable[..., Server]) -> None:
    """systemd sends both with SendSIGHUP=yes."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        pytest.skip("this signal is ignored here, as below nohup, and the server keeps to that")
    server = start()
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
        server.process.send_signal(number)
    code, output = server.end()
    assert code == 0, output
    assert "ended in order" in output


def test_who_stalls_is_cut_off(server: Server) -> None:
    half_body = b'POST /embed HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"inputs'
    sent = {
        "silent": b"",
        "half a line": b"POST /embed HT",
        "half a head": b"POST /embed HTTP/1.1\r\nHost: x\r\n",
        "half a body": half_body,
    }
    with ExitStack() as stack:
        # All at once: what takes long is the wait.
        clients = {name: stack.enter_context(server.connect()) for name in sent}
        for name, client in clients.items():
            client.sendall(sent[name])
        received = {name: client.recv(12) for name, client in clients.items()}
    assert received == {**dict.fromkeys(sent, b""), "half a body": b"HTTP/1.1 408"}


def test_one_connection_carries_requests_of_every_form(server: Server) -> None:
    """Answers are whole and in order, whether their requests come at once or in pieces."""
    body = b'{"input": "a"}'

    def head(method: str, request_id: int, *more: str) -> bytes:
        path, size = ("/v1/embeddings", len(body)) if method == "POST" else ("/ping", 0)
        lines = (f"{method} {path} HTTP/1.1", "Host: x", f"X-Request-Id: {request_id}", *more)
        return "\r\n".join([*lines, f"Content-Length: {size}", "", ""]).encode()

    with server.connect() as client:
        client.sendall(head("POST", 1) + body + head("GET", 2) + head("HEAD", 3))
        received = b""
        while b"x-request-id: 3" not in received:
            received += client.recv(65536)
        client.sendall(head("POST", 4) + body[:5])
        server.get("/health")
        client.sendall(body[5:] + head("POST", 5, "Expect: 100-continue") + body)
        client.sendall(head("POST", 6, "Connection: close") + body)
        while chunk := client.recv(65536):
            received += chunk
    found = re.findall(rb"(?s)HTTP/1.1 (\d+) .*?\r\n\r\n([^H]*)", received)
    assert [status for status, _ in found] == [b"200"] * 4 + [b"100"] + [b"200"] * 2
    assert [bool(sent) for _, sent in found] == [True, True, False, True, False, True, True]
    assert all("object" in msgspec.json.decode(sent) for _, sent in found[3:] if sent)
    assert received.count(b"connection: close") == 1
    ids = re.findall(rb"x-request-id: (\d+)", received)
    assert ids == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_who_does_not_read_is_cut_off(start: Callable[..., Server], tmp_path: Path) -> None:
    server = start("jobs", str(tmp_path))
    content = bytes(8 << 20)
    sent = server.http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in", content)})
    path = f"/v1/files/{sent.json()['id']}/content"
    assert server.get(path) == content
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(WAIT_SECONDS)
        client.connect(("127.0.0.1", server.port))
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert client.recv(12) == b"HTTP/1.1 200"
        is_counted = False
        while b"embedlib_inflight_requests 1\n" not in (page := server.get("/metrics")):
            is_counted |= b"embedlib_unread_bytes 0\n" not in page
            time.sleep(0.05)  # it is answered, or given up
        received = 0
        with suppress(ConnectionResetError):
            while chunk := client.recv(1 << 20):
                received += len(chunk)
    assert received < len(content)
    assert is_counted
    assert b"embedlib_unread_bytes 0\n" in server.get("/metrics")
    assert server.get(path) == content


def test_who_reads_slowly_gets_the_whole_answer() -> None:
    """The time is over again and again; something was read each time, and then nothing."""
    timers: list[Any] = []
    unread = 90_000
    counted = Unread(7)
    transport = Mock()
    transport.get_write_buffer_size.side_effect = lambda: unread

    class Slow(ReadLimitedProtocol):
        answer_seconds = 30.0
        unread = counted

        def __init__(self) -> None:
            self.loop = Mock()
            self.loop.call_later.side_effect = lambda seconds, call: timers.append(call) or Mock()
            self.transport, self.flow = transport, Mock()

    protocol = Slow()
    protocol.pause_writing()
    assert counted.num_bytes == 90_007
    for left in (80_000, 70_000):
        unread = left
        timers.pop()()
        assert not transport.abort.called
        assert counted.num_bytes == left + 7
    timers.pop()()
    assert transport.abort.called
    assert not timers
    protocol.resume_writing()
    assert counted.num_bytes == 7
    for unread, is_cut_off in ((0, False), (1, True)):  # noqa: B007 (the transport tells it)
        transport.abort.called = False
        protocol.timeout_keep_alive_handler()
        assert transport.abort.called is is_cut_off


def await_gone(server: Server, num_clients: int) -> None:
    """Wait until the server has seen so many clients leave."""
    until = time.monotonic() + WAIT_SECONDS
    while b'reason="gone"} %d' % num_clients not in server.get("/metrics"):
        assert time.monotonic() < until


def test_a_client_that_is_killed_or_leaves_is_noticed_and_costs_nothing_more(
    start: Callable[..., Server],
) -> None:
    server = start("held")
    client = subprocess.Popen(
        [sys.executable, "-S", "-c", CLIENT, str(server.port)], stdout=subprocess.PIPE
    )
    assert client.stdout is not None
    client.stdout.readline()
    while b'queued_texts{model="fake",lane="bulk"} 400' not in server.get("/metrics"):
        pass
    client.kill()
    client.communicate()
    while b'queued_texts{model="fake",lane="bulk"} 0' not in server.get("/metrics"):
        pass
    page = server.get("/metrics")
    assert b'embedlib_failures_total{reason="gone"} 1' in page
    assert b"embedlib_inflight_requests 1" in page  # the one that asks
    body = b'{"input": "a"}'
    with server.connect() as client:
        client.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\n")
        client.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    await_gone(server, 2)
    # Of a body that does not come in one piece, uvicorn reads no further by itself.
    body = b'{"input": ["%b"]}' % (b"a" * 310_000)
    for _ in range(4):
        with server.connect() as client:
            client.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\n")
            client.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            while b"embedlib_inflight_requests 2" not in server.get("/metrics"):
                pass
    await_gone(server, 6)


def test_who_does_not_read_standard_error_stalls_nothing(start: Callable[..., Server]) -> None:
    reader, full = os.pipe()
    os.set_blocking(full, False)
    with suppress(BlockingIOError):
        while os.write(full, bytes(1 << 16)):
            pass
    os.set_blocking(full, True)
    server = start("buggy", stderr=full)
    os.close(full)
    for _ in range(20):
        assert server.http.post("/embed", json={"inputs": "a"}).status_code == 500
        with server.connect() as client:
            client.sendall(b"no request\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 400"
    assert b'failures_total{reason="invalid"} 20' in server.get("/metrics")
    server.process.send_signal(signal.SIGTERM)
    code, output = server.end()
    os.close(reader)
    assert code == 0
    assert "ended in order" in output


def test_a_port_in_use_is_one_line(server: Server) -> None:
    found = subprocess.run(
        [sys.executable, "-c", SERVE, str(server.port)], capture_output=True, text=True
    )
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1].startswith("embedlib.errors.ConfigError: http://127.0.0.1")


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("nosuch.invalid", "; --host takes an address of this machine"),
        ("192.0.2.1", "requested address; --host takes an address of this machine"),
    ],
)
def test_an_address_of_no_machine_here_is_one_line(host: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"http://{host}:0 cannot be listened on: .*{reason}"):
        serve(create_app({"fake": fake_embedder()}), Listen(host=host, port=0))


def test_a_certificate_that_cannot_be_offered_is_one_line(
    make_certificate: MakeCertificate, tmp_path: Path
) -> None:
    (one, key), (_, other) = make_certificate("one"), make_certificate("two")
    _, locked = make_certificate("three", "-passout", "pass:secret")
    junk = tmp_path / "junk.pem"
    junk.write_text("no certificate")
    for certificate, private_key, reason in [
        (one, other, f"the private key {other} is not that of the certificate {one}; give"),
        (junk, key, f"{junk} cannot be read as a PEM certificate: "),
        (one, junk, f"{junk} cannot be read as a PEM private key: "),
        (one, locked, f"the private key {locked} needs a password; write it without"),
    ]:
        with pytest.raises(ConfigError) as caught:
            new_context(certificate, private_key)
        assert str(caught.value).startswith(reason)


@pytest.mark.parametrize("kinds", [("ec", "ec"), ("ec", "rsa"), ("rsa", "ec")])
def test_a_renewed_certificate_is_read_again(
    make_certificate: MakeCertificate, caplog: pytest.LogCaptureFixture, kinds: tuple[str, str]
) -> None:
    files = make_certificate("old", kind=kinds[0])
    renewed, new_key = make_certificate("new", kind=kinds[1])
    context = new_context(*files)
    certificate = Renewable(*files)
    certificate.follow(context)

    def is_offered(trusted: Path) -> bool:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            answering = threading.Thread(target=_shake, args=(context, theirs))
            answering.start()
            client = ssl.create_default_context(cafile=trusted)
            try:
                client.wrap_socket(ours, server_hostname="localhost").close()
            except ssl.SSLCertVerificationError:
                return False
            finally:
                ours.close()
                answering.join(WAIT_SECONDS)
            return True

    old = shutil.copy(files[0], files[0].with_name("kept.pem"))
    assert is_offered(old)
    shutil.copy(renewed, files[0])  # half of a renewal
    certificate.renew()
    assert "stays as it was" in caplog.text
    assert is_offered(old)
    shutil.copy(new_key, files[1])
    certificate.renew()
    assert is_offered(renewed)
    assert not is_offered(old)


def _shake(context: ssl.SSLContext, plain: socket.socket) -> None:
    with suppress(OSError):
        context.wrap_socket(plain, server_side=True).close()


def test_tls(make_certificate: MakeCertificate) -> None:
    certificate, key = make_certificate("cert")
    application, port = create_app({"fake": fake_embedder()}), free_port()
    url, answers = f"https://localhost:{port}", list[object]()

    def ask() -> None:
        trusted = ssl.create_default_context(cafile=certificate)
        try:
            with httpx.Client(base_url=url, verify=trusted, timeout=WAIT_SECONDS) as http:
                wait_ready(http, None)
                os.kill(os.getpid(), signal.SIGHUP)  # it would end the tests if it were not handled
                answers.append(http.post("/embed", json={"inputs": "a"}))
            httpx.get(f"{url}/health")  # nobody vouches for the certificate
        except httpx.ConnectError as error:
            answers.append(error)
        finally:
            assert application.end_server is not None
            application.end_server()  # ends the server

    client = threading.Thread(target=ask)
    client.start()
    serve(application, Listen(port=port, certificate=certificate, private_key=key))
    client.join(WAIT_SECONDS)
    answered, refused = answers
    assert isinstance(answered, httpx.Response)
    assert answered.status_code == 200
    assert "CERTIFICATE_VERIFY_FAILED" in str(refused)


def test_an_idle_client_does_not_delay_the_end_of_tls(make_certificate: MakeCertificate) -> None:
    certificate, key = make_certificate("cert")
    application, port = create_app({"fake": fake_embedder()}), free_port()
    trusted = ssl.create_default_context(cafile=certificate)
    answers: list[bytes] = []

    def ask() -> None:
        with httpx.Client(
            base_url=f"https://localhost:{port}", verify=trusted, timeout=WAIT_SECONDS
        ) as http:
            wait_ready(http, None)
        connected = socket.create_connection(("localhost", port), WAIT_SECONDS)
        client = trusted.wrap_socket(connected, server_hostname="localhost")
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answers.append(client.recv(12))
        assert application.end_server is not None
        application.end_server()
        while client.recv(65536):  # up to the goodbye of TLS, which is not answered
            pass
        with socket.socket(fileno=client.detach()) as plain:
            plain.settimeout(15)  # uvloop would wait for 30
            answers.append(plain.recv(1))

    client = threading.Thread(target=ask)
    client.start()
    serve(application, Listen(port=port, certificate=certificate, private_key=key))
    client.join(WAIT_SECONDS)
    assert answers == [b"HTTP/1.1 200", b""]


def test_the_port_that_was_free_is_told() -> None:
    application = create_app({"fake": fake_embedder()})
    ports: list[int] = []

    def connect(listens: Listen) -> None:
        socket.create_connection((listens.host, listens.port), WAIT_SECONDS).close()
        ports.append(listens.port)
        assert application.end_server is not None
        application.end_server()

    serve(application, Listen(port=0), connect)
    assert len(ports) == 1


def test_a_name_with_several_addresses_gets_one_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    application = create_app({"fake": fake_embedder()})
    addresses = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0))
        for host in ("127.0.0.1", "127.0.0.2")
    ]
    real = socket.getaddrinfo

    def find(host: Any, *arguments: Any, **options: Any) -> Any:
        return addresses if host == "two.test" else real(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", find)
    told: list[Listen] = []

    def connect(listens: Listen) -> None:
        socket.create_connection(("127.0.0.1", listens.port), WAIT_SECONDS).close()
        told.append(listens)
        assert application.end_server is not None
        application.end_server()

    serve(application, Listen(host="two.test", port=0), connect)
    assert [listens.host for listens in told] == ["two.test"]


def test_a_bug_of_the_start_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise KeyError("a bug")

    application = create_app({"fake": fake_embedder()})
    monkeypatch.setattr(application, "start", fail)
    with pytest.raises(EmbedlibError, match="could not start; its log has the reason"):
        serve(application, Listen(port=0))
    assert "KeyError: 'a bug'" in caplog.text


def test_a_server_without_any_model_ends_and_says_why_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    application = create_app({"a": str(tmp_path / "nowhere")})
    lost = pytest.raises(EmbedlibError, match=r"a could not be loaded: no model folder '.*nowhere'")
    with ended_in_time(application), lost:
        serve(application, Listen(port=0))
    assert caplog.messages == []


def test_of_models_that_all_fail_each_reason_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    application = create_app({name: str(tmp_path / name) for name in "abc"})
    lost = pytest.raises(EmbedlibError, match=r"^no model could be loaded; the log has the reason")
    with ended_in_time(application), lost:
        serve(application, Listen(port=0))
    assert [message[:18] for message in caplog.messages] == [
        f"{name}: no model folder"[:18] for name in "abc"
    ]


def test_the_command(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", "bert")
    path = tmp_path / "socket"
    keys = tmp_path / "keys"
    keys.write_text("k1\n")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "embedlib", "serve", str(folder), "--uds", str(path)),
            *("--name", f"tiny={folder}", "--api-keys-file", str(keys)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    try:
        transport = httpx.HTTPTransport(uds=str(path))
        until = time.monotonic() + WAIT_SECONDS
        with httpx.Client(
            transport=transport, base_url="http://localhost", timeout=WAIT_SECONDS
        ) as http:
            while not can_connect(path) or http.get("/ready").status_code != 200:
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < until, "the server is not ready"
                time.sleep(0.05)
            assert path.stat().st_mode & 0o777 == 0o600
            assert http.post("/embed", json={"inputs": "a"}).status_code == 401
            answer = http.post("/embed", json={"inputs": "a"}, headers={"x-api-key": "k1"})
            assert answer.status_code == 200
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=WAIT_SECONDS)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, errors
    assert re.fullmatch(r"Serving tiny on unix:.*; Ctrl-C stops it\n", errors), errors
    lines = [json.loads(line) for line in output.splitlines()]
    assert [line["status"] for line in lines if line["route"] == "/embed"] == [401, 200]
    assert not path.exists()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_the_command_with_closed_streams(tmp_path: Path, closed: str) -> None:
    """libuv aborts when it closes a socket with the number of one of them."""
    folder = write_static_model(tmp_path / "model")  # soon there
    port = free_port()
    serving = [sys.executable, "-m", "embedlib", "serve", str(folder), "--port", str(port)]
    process = subprocess.Popen(
        f"exec {shlex.join(serving)} {closed}",
        shell=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_SECONDS) as http:
            wait_ready(http, process)
            assert http.post("/v1/models").status_code == 405
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=WAIT_SECONDS)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, errors
    assert ("/v1/models" in output) is (closed != ">&-")
    assert "Traceback" not in errors
