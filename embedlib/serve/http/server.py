"""The HTTP server: uvicorn, with time limits for heads and an end that loses no request.

Source: uvicorn 0.54, `server.py` and `protocols/http/httptools_impl.py`.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import math
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import uvicorn

from embedlib.errors import ConfigError, EmbedlibError
from embedlib.serve.app import Application
from embedlib.serve.http.connection import Connection
from embedlib.serve.http.tls import Renewable, new_context
from embedlib.serve.logs.fault_log import fault_log

MAX_OPEN_FILES = 65_536
"""Connections are bounded by what waits for an answer, not by this."""
SAME_SIGNAL_SECONDS = 0.5
"""A signal that comes again within this time is the same one: some programs send it to a process
and to its group."""
GC_OBJECTS = 20_000
"""New objects before the garbage collector looks for cycles among them. A turn of some requests
makes the usual 700, and all are freed with their answers: a twentieth of a request was that."""


@dataclass(frozen=True, kw_only=True)
class Listen:
    """Where a server listens."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0: any free one."""
    unix_socket: Path | None = None
    """Instead of host and port."""
    certificate: Path | None = None
    """For TLS, with `private_key`."""
    private_key: Path | None = None

    @property
    def tls_files(self) -> tuple[Path, Path] | None:
        """Certificate and private key; None: connections are plain."""
        if self.certificate is None or self.private_key is None:
            return None
        return self.certificate, self.private_key

    def check(self) -> None:
        """Refuse a certificate that cannot be offered.

        Raises:
            ConfigError: says why.
        """
        if self.tls_files is not None:
            new_context(*self.tls_files)

    def __str__(self) -> str:
        """Return the URL."""
        if self.unix_socket is not None:
            return f"unix:{self.unix_socket}"
        scheme = "https" if self.certificate else "http"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}"


def serve(
    application: Application,
    listen: Listen,
    on_listening: Callable[[Listen], object] = lambda _: None,
) -> None:
    """Serve until SIGTERM or SIGINT; returns when every running request is answered.

    On SIGHUP the certificate is read again.

    Args:
        application: answers the requests.
        listen: where, as `Listen.check` has let pass.
        on_listening: called when connections are taken, with the port that they come by.

    Raises:
        ConfigError: the address cannot be listened on.
        EmbedlibError: no model could be loaded, or the application has a bug, which is logged.
        SinkError: a destination has rows of a model that is not served.
    """
    _allow_connections()
    gc.set_threshold(GC_OBJECTS, *gc.get_threshold()[1:])
    options = application.options
    config = uvicorn.Config(
        application,
        host=_host_of(listen),
        port=listen.port,
        ssl_certfile=listen.certificate,
        ssl_keyfile=listen.private_key,
        http=_protocol(application),
        loop="uvloop",
        ws="none",
        lifespan="on",
        interface="asgi3",
        access_log=False,
        log_config=None,
        log_level="error",  # below are lines about its own steps, and what clients send wrongly
        server_header=False,
        # Whole seconds; after none it would tell of an error even where nothing runs.
        timeout_graceful_shutdown=max(1, math.ceil(options.drain_seconds)),
        timeout_keep_alive=75,
        backlog=2048,
    )
    config.load()
    server = _Server(config, application, listen, on_listening)
    with fault_log(), _own_socket(listen.unix_socket) as sockets:
        try:
            server.run(sockets)
        except SystemExit as error:  # uvicorn has logged why
            if server.lifespan.should_exit:
                raise EmbedlibError("the server could not start; its log has the reason") from error
            raise _not_listening(listen) from error
        except KeyboardInterrupt:
            if not server.started:
                raise
    if application.failure is not None:
        raise application.failure


class _Server(uvicorn.Server):
    """Ends in order: not ready, a grace period, the running requests, then the models."""

    def __init__(
        self,
        config: uvicorn.Config,
        application: Application,
        listen: Listen,
        on_listening: Callable[[Listen], object],
    ) -> None:
        super().__init__(config)
        self._application = application
        self._listen = listen
        self._on_listening = on_listening
        self._renewable: Renewable | None = None
        if listen.tls_files is not None and config.ssl is not None:
            self._renewable = Renewable(*listen.tls_files)
            self._renewable.follow(config.ssl)
        self._first_signal: tuple[int, float] | None = None
        self._freezing: asyncio.Task[None] | None = None
        application.end_server = self._exit

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and keep the models' objects once they are loaded."""
        logger = logging.getLogger("uvicorn.error")
        logger.addFilter(_is_no_address)
        try:
            await super().startup(sockets)
        finally:
            logger.removeFilter(_is_no_address)
        if self._listen.unix_socket is None:
            port = self.servers[0].sockets[0].getsockname()[1]
            self._listen = replace(self._listen, port=port)
        self._on_listening(self._listen)
        self._freezing = asyncio.create_task(self._freeze())

    async def _freeze(self) -> None:
        """Tell the garbage collector to look at no object of now again.

        They stay as long as the server does, and looking at all of them stops every request: for 80
        ms where torch is loaded.
        """
        with suppress(Exception):  # told where they are loaded
            await self._application.loaded()
        gc.collect()
        gc.freeze()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals on the event loop; uvicorn would raise them again at the end."""
        loop = asyncio.get_running_loop()
        handlers: dict[signal.Signals, Callable[[], object]] = {
            number: partial(self._end, number)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        }
        if self._renewable is not None:
            handlers[signal.SIGHUP] = self._renewable.renew
        elif signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # nohup
            del handlers[signal.SIGHUP]
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def _end(self, number: int) -> None:
        """Begin to end; a second SIGTERM or SIGINT ends at once.

        SIGHUP counts as none of the two: systemd may send it with SIGTERM, in any order.
        """
        if number != signal.SIGHUP:
            now = asyncio.get_running_loop().time()
            if self._first_signal is None:
                self._first_signal = number, now
            first, at = self._first_signal
            if number != first or now - at > SAME_SIGNAL_SECONDS:
                os._exit(1)
        if self._application.is_draining:
            return
        self._application.drain()
        grace = self._application.options.grace_seconds
        asyncio.get_running_loop().call_later(grace, self._exit)

    def _exit(self) -> None:
        self.should_exit = True


def _host_of(listen: Listen) -> str:
    """Return the host to listen on: of a name that is given any free port its first address.

    Each address would get a port of its own. A client that asks for the name tries them in the same
    order.
    """
    if listen.port:
        return listen.host
    with suppress(OSError):  # told when it is listened on
        places = socket.getaddrinfo(listen.host, 0, type=socket.SOCK_STREAM)
        first, *others = dict.fromkeys(str(place[4][0]) for place in places)
        return first if others else listen.host
    return listen.host


def _is_no_address(record: logging.LogRecord) -> bool:
    """Return False for the line of an address that cannot be listened on: `serve` says why."""
    return not isinstance(record.msg, OSError)


def _not_listening(listen: Listen) -> ConfigError:
    """Say why an address cannot be listened on, which uvicorn only logs."""
    why = "another program may; take another --port"
    try:
        [(family, kind, _, _, address), *_] = socket.getaddrinfo(
            listen.host, listen.port, type=socket.SOCK_STREAM
        )
        with socket.socket(family, kind) as asking:
            asking.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            why = "another program listens there; take another --port"
        elif error.errno in (errno.EACCES, errno.EPERM):
            why = "this user may not; ports below 1024 need a privilege, take a higher --port"
        else:
            why = f"{error.strerror}; --host takes an address of this machine"
    return ConfigError(f"{listen} cannot be listened on: {why}")


def _allow_connections() -> None:
    """Raise the soft limit of open files: each connection is one, and shells give 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _protocol(served: Application) -> type[Connection]:
    """Return the protocol of an application's connections; uvicorn makes one for each."""

    class Protocol(Connection):
        application = served
        head_seconds = served.options.head_seconds
        answer_seconds = served.options.answer_seconds
        unread = served.unread

    return Protocol


@contextmanager
def _own_socket(path: Path | None) -> Iterator[list[socket.socket] | None]:
    """Yield a unix socket for this user alone, and remove its file at the end; None: no path.

    uvicorn would make one for everybody, and leave the file behind.

    Raises:
        ConfigError: the socket cannot be made.
    """
    if path is None:
        yield None
        return
    before = os.umask(0o177)
    try:
        if path.is_socket():
            _check_dead(path)
            path.unlink()  # of a server that was killed
        found = socket.socket(socket.AF_UNIX)
        found.bind(str(path))
        found.listen()  # or another server that starts now would take it for a dead one's
        ours = path.lstat()
    except OSError as error:
        raise ConfigError(f"{path} cannot be listened on: {error.strerror or error}") from error
    finally:
        os.umask(before)
    try:
        with found:
            yield [found]
    finally:
        with suppress(FileNotFoundError):
            if os.path.samestat(path.lstat(), ours):  # else another server's by now
                path.unlink()


def _check_dead(path: Path) -> None:
    """Check that no program listens on a unix socket.

    Raises:
        ConfigError: one does.
    """
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(1)
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            return
    raise ConfigError(f"{path} is listened on by another program; take another --uds")
