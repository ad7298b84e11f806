"""A load that doubles each minute, on a fleet whose engine has a known speed.

`python -m tests.ray.doubling`, in the environment of `.ci/ray`, prints a row a minute: what was
asked, what failed, how long queries took, and how many replicas there were in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from dataclasses import dataclass, field
from time import perf_counter

import httpx
import numpy as np
import ray
from ray import serve

from embedlib_ray import Fleet, build_app
from embedlib_ray.run import APP, start
from tests.ray.fakes import paced_embedder

TEXTS_PER_SECOND = 5.0
"""Of a replica: so few that two cores carry Ray's own work for sixteen times the first load."""
QUERIES_PER_SECOND = 1.25
"""In the first minute: a quarter of what one replica computes."""
BULK_TEXTS = 17
"""Of a bulk request; one comes with every tenth query."""
PORT = 8155
STORE_BYTES = 200 << 20


@dataclass
class Minute:
    """What came of the requests that were sent in one step."""

    rate: float
    query_ms: list[float] = field(default_factory=list)
    bulk_ms: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    num_replicas: dict[str, int] = field(default_factory=dict)

    def line(self) -> str:
        """Return a row of the table."""
        times = [
            np.percentile(each, at) for each in (self.query_ms, self.bulk_ms) for at in (50, 99)
        ]
        cells = [f"{self.rate:g}", len(self.query_ms), len(self.bulk_ms), len(self.failures)]
        cells += [f"{time:,.0f}" for time in times]
        cells += [self.num_replicas["query"], self.num_replicas["bulk"]]
        return "| " + " | ".join(map(str, cells)) + " |"


async def ask(client: httpx.AsyncClient, texts: list[str], times: list[float], to: Minute) -> None:
    """Send one request and note what came of it."""
    started = perf_counter()
    try:
        answer = await client.post("/v1/embeddings", json={"input": texts})
        if answer.status_code != 200:
            to.failures.append(f"{answer.status_code}: {answer.text[:200]}")
    except httpx.HTTPError as error:
        to.failures.append(repr(error))
    times.append((perf_counter() - started) * 1000)


async def run_minute(client: httpx.AsyncClient, rate: float, seconds: float) -> Minute:
    """Send requests at a rate, whether those before were answered or not; wait for all of them."""
    minute = Minute(rate)
    asked = []
    started = perf_counter()
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, started + number / rate - perf_counter()))
        asked.append(asyncio.create_task(ask(client, ["a query"], minute.query_ms, minute)))
        if number % 10 == 0:
            texts = [f"text {number} {each}" for each in range(BULK_TEXTS)]
            asked.append(asyncio.create_task(ask(client, texts, minute.bulk_ms, minute)))
    deployments = serve.status().applications[APP].deployments
    for lane in ("query", "bulk"):
        states = deployments[f"one-{lane}"].replica_states
        minute.num_replicas[lane] = int(states.get("RUNNING", 0))
    await asyncio.gather(*asked)
    return minute


async def run(num_minutes: int, seconds: float) -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{PORT}", timeout=300, limits=limits
    ) as client:
        for number in range(num_minutes):
            minute = await run_minute(client, QUERIES_PER_SECOND * 2**number, seconds)
            print(minute.line(), flush=True)
            for failure in minute.failures[:3]:
                print(failure, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0, help="of a minute")
    given = parser.parse_args()
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 16, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    os.environ["RAY_ADDRESS"] = cluster.address
    fleet = Fleet(max_replicas=12, replica_cpus=0.2, bulk_wait_seconds=5.0)
    start(build_app({"one": paced_embedder(TEXTS_PER_SECOND)}, fleet=fleet), "127.0.0.1", PORT)
    print(
        "| queries/s | queries | bulk | failed | query p50, ms | p99 | bulk p50, ms | p99 "
        "| replicas for queries | for bulk |"
    )
    print("|" + " ---: |" * 10)
    try:
        asyncio.run(run(given.minutes, given.seconds))
    finally:
        serve.shutdown()
        ray.shutdown()  # a cluster does not remove the node of a program that is connected
        cluster.shutdown()


if __name__ == "__main__":
    main()
