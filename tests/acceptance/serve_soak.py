"""Loads a server for long, and says whether it kept what docs/serve.md promises.

    python -m tests.acceptance.serve_soak overload MODEL --minutes 10
    python -m tests.acceptance.serve_soak many --requests 200000

`overload` measures what `embedlib serve MODEL` computes for four connections, and how long queries
beside them take; then it sends twice as many texts, with deadlines and clients that leave among
them. `many` sends requests of every kind to a server whose engine answers at once. Both end with a
verdict for each promise, and with exit code 1 if one was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from embedlib.bench.servers import Server
from embedlib.measuring.texts import QUERIES, docstrings

MIB = 1 << 20
BULK_TEXTS = 32
"""Of a bulk request."""
DOOR = ("--max-bulk-texts", "512", "--max-waiting-requests", "64")
"""A small door, which is full within seconds: what is behind it stays the same from then on."""
BASE_SECONDS = 30.0
CAPACITY_SECONDS = 30.0
DEADLINE_MS = 5000
QUERY_SECONDS = 0.1
"""Between two queries."""
LATE_SECONDS = 660.0
"""A request without an answer after this is lost; the server's own limit at the door is 600."""
QUERY_RATIO = 1.3
"""Of the slowest hundredth of queries, to that beside four connections that send all they can."""
MAX_GROWTH = 50 * MIB

FAKE = """
import sys
from dataclasses import replace
from embedlib.bench.fake_server import DIM, InstantEngine
from embedlib.config import Config
from embedlib.embedder import Embedder
from embedlib.serve import ServeOptions, create_app
from embedlib.serve.access_log import AccessLog
from embedlib.serve.server import Listen, serve
from embedlib.testing import byte_tokenizer, fake_spec

spec = replace(fake_spec(512), embedding_dim=DIM)
config = Config(on_truncate="ignore")
embedder = Embedder.from_engine(InstantEngine(), spec, byte_tokenizer(), config)
options = ServeOptions(data_dir=sys.argv[1], grace_seconds=0.0)
application = create_app({"fake": embedder}, options=options, log=AccessLog())
serve(application, Listen(port=int(sys.argv[2])))
"""


@dataclass(frozen=True)
class Answer:
    """What came back for a request."""

    status: int
    head: bytes
    body: bytes
    seconds: float


class Client:
    """Sends requests, each on a connection that carries no other one meanwhile."""

    def __init__(self, url: str) -> None:
        """Open nothing yet."""
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    def request(self, path: str, content: object, *headers: str) -> bytes:
        """Return the bytes of a request; without content it is a GET."""
        body = b"" if content is None else json.dumps(content).encode()
        method = "GET" if content is None else "POST"
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
        return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body

    async def ask(self, request: bytes) -> Answer:
        """Send a request and return its answer.

        Raises:
            OSError: the connection was lost before the whole answer was there.
        """
        started = time.perf_counter()
        reader, writer = self._free.pop() if self._free else await self._open()
        writer.write(request)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            found = re.search(rb"content-length: (\d+)", head)
            body = await reader.readexactly(int(found.group(1)) if found else 0)
        except asyncio.IncompleteReadError as error:
            writer.close()
            raise OSError("the server closed the connection") from error
        self._free.append((reader, writer))
        return Answer(int(head[9:12]), head, body, time.perf_counter() - started)

    async def leave(self, request: bytes, seconds: float) -> None:
        """Send a request and close the connection before it is answered."""
        _, writer = await self._open()
        writer.write(request)
        await asyncio.sleep(seconds)
        writer.transport.abort()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port, limit=8 * MIB)

    def close(self) -> None:
        """Close the connections."""
        for _, writer in self._free:
            writer.transport.abort()


@dataclass
class Memory:
    """The resident memory of a process over time."""

    process: int
    samples: list[tuple[float, int]] = field(default_factory=list)

    def note(self) -> int:
        """Return the bytes that are resident now. Source: proc_pid_statm(5)."""
        pages = int(Path(f"/proc/{self.process}/statm").read_text().split()[1])
        self.samples.append((time.monotonic(), pages * 4096))
        return pages * 4096

    async def watch(self) -> None:
        """Note it each second, for ever."""
        while True:
            self.note()
            await asyncio.sleep(1)


class Verdicts:
    """Promises and whether they were kept, printed as they come."""

    def __init__(self) -> None:
        """Start with all kept."""
        self.num_broken = 0

    def check(self, is_kept: bool, what: str) -> None:
        """Print a promise."""
        self.num_broken += not is_kept
        say(f"{'kept' if is_kept else 'BROKEN'}: {what}")


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def p_ms(seconds: list[float], percent: float) -> float:
    """Return a percentile in milliseconds."""
    return float(np.percentile(seconds, percent)) * 1e3


class Overload:
    """A server that gets twice the texts that it can compute."""

    def __init__(self, client: Client, model: str, memory: Memory) -> None:
        """Make the bodies."""
        texts = docstrings(BULK_TEXTS * 40)
        self._bodies = [
            {"model": model, "input": texts[start : start + BULK_TEXTS]}
            | {"encoding_format": "base64"}
            for start in range(0, len(texts), BULK_TEXTS)
        ]
        self._model = model
        self._client = client
        self._memory = memory
        self._draw = random.Random(1)
        self.outcomes: Counter[str] = Counter()
        self.num_computed = 0
        """Texts that were answered with vectors."""
        self.wrong: list[str] = []

    async def capacity(self) -> tuple[float, list[float]]:
        """Return the texts/s of four connections, and what queries beside them take."""
        num_answered = 0
        until = time.monotonic() + BASE_SECONDS

        async def fill(number: int) -> None:
            nonlocal num_answered
            while time.monotonic() < until:
                body = self._bodies[(number + num_answered) % len(self._bodies)]
                answer = await self._client.ask(self._client.request("/v1/embeddings", body))
                assert answer.status == 200, answer.body
                num_answered += 1

        latencies, *_ = await asyncio.gather(self.query(until), *map(fill, range(4)))
        return num_answered * BULK_TEXTS / BASE_SECONDS, latencies

    async def query(self, until: float) -> list[float]:
        """Ask queries until then; return the seconds of each."""
        latencies: list[float] = []
        while time.monotonic() < until:
            query = QUERIES[len(latencies) % len(QUERIES)]
            body = {"model": self._model, "input": query, "encoding_format": "base64"}
            answer = await self._client.ask(self._client.request("/v1/embeddings", body))
            if answer.status != 200:
                self.wrong.append(f"a query: {answer.status} {answer.body[:200]!r}")
            latencies.append(answer.seconds)
            await asyncio.sleep(max(0.0, QUERY_SECONDS - answer.seconds))
        return latencies

    async def load(self, capacity: float, seconds: float) -> list[float]:
        """Send twice the texts/s that are computed; return the seconds of queries beside them.

        What is computed is looked at again and again: others may use the machine, too.
        """
        until = time.monotonic() + seconds
        querying = asyncio.ensure_future(self.query(until))
        sent: set[asyncio.Task[None]] = set()
        due = looked = time.monotonic()
        num_before = 0
        while due < until:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if due - looked >= CAPACITY_SECONDS:
                capacity = (self.num_computed - num_before) / (due - looked) or capacity
                looked, num_before = due, self.num_computed
            sent.add(asyncio.create_task(self._send()))
            due += BULK_TEXTS / capacity / 2
        await asyncio.wait(sent, timeout=LATE_SECONDS)
        for task in sent:
            if not task.done():
                self.outcomes["lost"] += 1
                task.cancel()
        return await querying

    async def _send(self) -> None:
        body = self._draw.choice(self._bodies)
        kind = self._draw.random()
        headers = [f"Request-Timeout-Ms: {DEADLINE_MS}"] if kind < 0.1 else []
        request = self._client.request("/v1/embeddings", body, *headers)
        if kind > 0.95:
            await self._client.leave(request, seconds=self._draw.random())
            self.outcomes["client left"] += 1
            return
        try:
            answer = await self._client.ask(request)
        except OSError as error:
            self.wrong.append(f"a bulk request: {error}")
            return
        self.outcomes[f"{answer.status}{' of those with a deadline' if headers else ''}"] += 1
        self.num_computed += BULK_TEXTS * (answer.status == 200)
        is_right = (
            (answer.status == 200 and answer.body.count(b'"object":"embedding"') == BULK_TEXTS)
            or (answer.status == 429 and b"\r\nretry-after: " in answer.head)
            or (answer.status == 504 and bool(headers) and answer.seconds < DEADLINE_MS / 1e3 + 2)
        )
        if not is_right:
            self.wrong.append(f"a bulk request: {answer.status} {answer.body[:200]!r}")

    async def check_empty(self) -> str:
        """Return what is still counted as queued when all is answered."""
        until = time.monotonic() + 60
        while True:
            page = (await self._client.ask(self._client.request("/metrics", None))).body.decode()
            queued = re.findall(r"^embedlib_queued_texts\{.*\} [^0].*$", page, re.MULTILINE)
            if not queued or time.monotonic() > until:
                return ", ".join(queued)
            await asyncio.sleep(0.1)


async def overload(url: str, model: str, memory: Memory, seconds: float) -> int:
    """Run the part `overload`; return how many promises were broken."""
    client = Client(url)
    run = Overload(client, model, memory)
    capacity, base = await run.capacity()
    say(f"capacity: {capacity:.0f} texts/s through four connections")
    watching = asyncio.ensure_future(memory.watch())
    started = time.monotonic()
    latencies = await run.load(capacity, seconds)
    took = time.monotonic() - started
    left = await run.check_empty()
    watching.cancel()
    say(
        f"{sum(run.outcomes.values()):,} bulk requests of {BULK_TEXTS} texts in {took:.0f} s, "
        f"{run.num_computed / took:.0f} texts/s computed: "
        + ", ".join(f"{what}: {count:,}" for what, count in sorted(run.outcomes.items()))
    )
    sizes = [size for at, size in memory.samples if at - started > seconds * 0.1]
    third = len(sizes) // 3
    first, last = max(sizes[:third]) // MIB, max(sizes[-third:]) // MIB
    say(f"resident memory in thirds: {first}, {max(sizes[third:-third]) // MIB}, {last} MiB")
    verdicts = Verdicts()
    num_refused = run.outcomes["429"]
    verdicts.check(
        num_refused > 0, f"more was sent than the door takes ({num_refused:,} times 429)"
    )
    verdicts.check(
        not run.wrong, f"every request got 200, 429 or its deadline's 504 {run.wrong[:5]}"
    )
    verdicts.check(not run.outcomes["lost"], "none was lost")
    verdicts.check(not left, f"nothing is counted as queued when all is answered {left}")
    verdicts.check(last - first <= 20, "memory is flat (the last third within 20 MiB of the first)")
    ratio = p_ms(latencies, 99) / p_ms(base, 99)
    verdicts.check(
        ratio <= QUERY_RATIO,
        f"queries stay inside their bound: p50 / p99 of {len(latencies):,} "
        f"{p_ms(latencies, 50):.1f} / {p_ms(latencies, 99):.1f} ms, beside four connections "
        f"{p_ms(base, 50):.1f} / {p_ms(base, 99):.1f} ms: {ratio:.2f} times, at most {QUERY_RATIO}",
    )
    client.close()
    return verdicts.num_broken


def kinds(client: Client) -> list[tuple[int, int, bytes]]:
    """Return how often each kind of request is sent, its status, and its bytes."""
    words = [f"word {number}" for number in range(8)]
    model = {"model": "fake"}
    return [
        (60, 200, client.request("/v1/embeddings", model | {"input": "a question"})),
        (12, 200, client.request("/v1/embeddings", model | {"input": words})),
        (
            5,
            200,
            client.request(
                "/v1/embeddings",
                model | {"input": words * 16, "encoding_format": "base64"},
                "Request-Timeout-Ms: 60000",
            ),
        ),
        (10, 200, client.request("/embed", {"inputs": words})),
        (4, 200, client.request("/rerank", {"query": "a", "documents": words})),
        (3, 200, client.request("/tokenize", {"inputs": words})),
        (1, 202, client.request("/async_predict", {"model_input": {"input": words}})),
        (2, 400, client.request("/v1/embeddings", model | {"input": []})),
        (1, 404, client.request("/nowhere", {})),
        (1, 200, client.request("/metrics", None)),
    ]


async def many(url: str, memory: Memory, num_requests: int) -> int:
    """Run the part `many`; return how many promises were broken."""
    client = Client(url)
    table = kinds(client)
    drawn = random.Random(2)
    weights = [each[0] for each in table]
    wrong: list[str] = []
    num_sent = num_left = 0
    started = time.monotonic()

    async def work(limit: int) -> None:
        nonlocal num_sent, num_left
        while num_sent < limit:
            num_sent += 1
            [(_, status, request)] = drawn.choices(table, weights)
            if drawn.random() < 0.01:
                num_left += 1
                await client.leave(request, seconds=0)
                continue
            answer = await client.ask(request)
            if answer.status != status:
                wrong.append(f"{answer.status} and not {status}: {answer.body[:100]!r}")

    async def send_until(limit: int) -> None:
        await asyncio.gather(*(work(limit) for _ in range(32)))

    await send_until(1000)  # threads, pages of libraries and caches are there from then on
    first = memory.note()
    for part in range(1, 11):
        await send_until(1000 + num_requests * part // 10)
        say(
            f"{num_sent:,} requests, {time.monotonic() - started:.0f} s: {memory.note() // MIB} MiB"
        )
    await asyncio.sleep(2)  # the last jobs
    last = memory.note()
    say(f"{num_sent:,} requests, of which {num_left:,} clients left at once")
    verdicts = Verdicts()
    verdicts.check(not wrong, f"every answer had its status {wrong[:5]}")
    verdicts.check(
        last - first <= MAX_GROWTH,
        f"resident memory within {MAX_GROWTH // MIB} MiB of the start: {first // MIB} MiB after "
        f"1,000 requests, {last // MIB} MiB at the end",
    )
    client.close()
    return verdicts.num_broken


def run(arguments: list[str], work: Callable[[str, Memory], Awaitable[int]]) -> int:
    """Start a server, run a part against it, and return how many promises were broken."""
    with closing(Server("the server", arguments, has_port_option="serve" in arguments)) as server:
        url = server.url.removesuffix("/v1/embeddings")

        async def part() -> int:
            return await work(url, Memory(server.process_id))

        return asyncio.run(part())


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parts = parser.add_subparsers(dest="part", required=True)
    long = parts.add_parser("overload")
    long.add_argument("model")
    long.add_argument("--minutes", type=float, default=10.0)
    parts.add_parser("many").add_argument("--requests", type=int, default=200_000)
    options = parser.parse_args()
    if options.part == "overload":
        arguments = ["-m", "embedlib", "serve", options.model, "--precision", "float32", *DOOR]
        broken = run(
            arguments,
            lambda url, memory: overload(url, options.model, memory, options.minutes * 60),
        )
    else:
        with tempfile.TemporaryDirectory() as folder:
            broken = run(
                ["-c", FAKE, folder], lambda url, memory: many(url, memory, options.requests)
            )
    return 1 if broken else 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        raise SystemExit(main())
