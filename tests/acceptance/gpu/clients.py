"""Many independent clients of one Embedder, each asking for one short text now and then.

An open loop: when a request comes does not depend on when the last one was answered, as it is with
independent clients. A request's time begins when it was due.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import numpy as np

from embedlib.errors import EmbedlibError
from tests.acceptance.gpu.texts import percentiles

REQUESTS_PER_CLIENT_PER_S: Final = 1.0


async def ask_all(
    ask: Callable[[str], Awaitable[object]],
    texts: Sequence[str],
    num_clients: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Send the requests of all clients, wait for the answers, and return how long they took.

    Args:
        ask: returns the vector of a text.
        texts: what is asked for, in turn.
        num_clients: each sends one request per second in the mean, at random.
        seconds: for how long requests come.
        clock: returns the time in seconds.
    """
    random = np.random.default_rng(0)
    rate = num_clients * REQUESTS_PER_CLIENT_PER_S
    # The arrivals of many independent clients are those of one random process.
    due = np.cumsum(random.exponential(1 / rate, max(1, round(rate * seconds))))
    taken_s: list[float] = []
    refused: list[EmbedlibError] = []
    begin = clock()

    async def one(text: str, since: float) -> None:
        try:
            await ask(text)
        except EmbedlibError as error:
            refused.append(error)
        else:
            taken_s.append(clock() - since)

    tasks = []
    for number, when in enumerate(due.tolist()):
        wait = begin + when - clock()
        await asyncio.sleep(max(0.0, wait))
        tasks.append(asyncio.create_task(one(texts[number % len(texts)], begin + when)))
    await asyncio.gather(*tasks)
    return {
        "num_clients": num_clients,
        **percentiles(taken_s),
        "answers_per_s": len(taken_s) / (clock() - begin),
        "num_refused": len(refused),
        **({"refusal": str(refused[0])} if refused else {}),
    }
