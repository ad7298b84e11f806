"""The part `overload`: twice the texts that a server computes, and queries all the time."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter

import numpy as np

from embedlib.measuring.texts import QUERIES, docstrings
from tests.acceptance.serve_soak.client import MIB, Client
from tests.acceptance.serve_soak.judging import Memory, Verdicts, say

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
    say(f"resident memory each minute: {[size // MIB for size in sizes[::60]]} MiB")
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
