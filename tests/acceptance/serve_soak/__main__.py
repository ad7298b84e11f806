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
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress

from embedlib.bench.servers import Server
from embedlib.measuring.process import module_command
from tests.acceptance.serve_soak.judging import Memory
from tests.acceptance.serve_soak.many import FAKE, many
from tests.acceptance.serve_soak.overload import DOOR, overload


def run(command: list[str], work: Callable[[str, Memory], Awaitable[int]]) -> int:
    """Start a server, run a part against it, and return how many promises were broken."""
    with closing(Server("the server", command)) as server:
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
        arguments = ("serve", options.model, "--precision", "float32", *DOOR)
        broken = run(
            module_command("embedlib", *arguments),
            lambda url, memory: overload(url, options.model, memory, options.minutes * 60),
        )
    else:
        with tempfile.TemporaryDirectory() as folder:
            broken = run(
                [sys.executable, "-c", FAKE, folder],
                lambda url, memory: many(url, memory, options.requests),
            )
    return 1 if broken else 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        raise SystemExit(main())
