"""The part `many`: requests of every kind to a server whose engine answers at once."""

from __future__ import annotations

import asyncio
import random
import time

from tests.acceptance.serve_soak.client import MIB, Client
from tests.acceptance.serve_soak.judging import Memory, Verdicts, say

MAX_GROWTH = 50 * MIB

FAKE = """
import sys
from dataclasses import replace
from embedlib.bench.fake_server import DIM, InstantEngine
from embedlib.config import Config
from embedlib.embedder import Embedder
from embedlib.serve import ServeOptions, create_app
from embedlib.serve.logs.access_log import AccessLog
from embedlib.serve.http.server import Listen, serve
from embedlib.testing import byte_tokenizer, fake_spec

spec = replace(fake_spec(512), embedding_dim=DIM)
config = Config(on_truncate="ignore")
embedder = Embedder.from_engine(InstantEngine(), spec, byte_tokenizer(), config)
options = ServeOptions(data_dir=sys.argv[1], grace_seconds=0.0)
application = create_app({"fake": embedder}, options=options, log=AccessLog())
serve(application, Listen(port=int(sys.argv[-1])))
"""


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
