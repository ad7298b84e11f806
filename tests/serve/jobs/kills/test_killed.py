"""A server that is killed while it runs jobs, again and again: its outputs are those of none."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from embedlib.testing import fake_vector
from tests.ports import free_port
from tests.serve.jobs.conftest import input_of
from tests.waiting import WAIT_SECONDS

NUM_LINES = 600
NUM_REQUESTS = 20
KILLS = 3
SERVE = '''
import sys
from embedlib.serve import ServeOptions, create_app
from embedlib.serve.jobs import batch_run
from embedlib.serve.http.server import Listen, serve
from embedlib.testing import FakeEngine, fake_embedder

class Bounded(FakeEngine):
    """Answers so many texts and no more: it is killed half-way, however late."""
    num_left = int(sys.argv[2])
    def submit(self, batch, on_done):
        self.num_left -= batch.num_seqs
        if self.num_left < 0:
            self.hold()
        return super().submit(batch, on_done)

batch_run.MAX_LINES = 8  # so that there are many instants between two saved states
options = ServeOptions(data_dir=sys.argv[1], webhook_hosts=("127.0.0.1",), grace_seconds=0.0)
models = {"fake": fake_embedder(Bounded())}
serve(create_app(models, options=options), Listen(port=int(sys.argv[3])))
'''


@contextmanager
def serving(folder: Path, num_texts: int) -> Iterator[tuple[httpx.Client, subprocess.Popen[str]]]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(folder), str(num_texts), str(port)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_SECONDS) as http:
            until = time.monotonic() + WAIT_SECONDS
            while True:
                try:
                    http.get("/health")
                    break
                except httpx.TransportError:
                    assert process.poll() is None
                    assert time.monotonic() < until
                    time.sleep(0.02)  # a process in its start; there is nothing to wait on
            yield http, process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def receiving() -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the URL of a webhook, and how often it was told of each request."""
    told: dict[str, int] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            request_id = json.loads(body)["request_id"]
            told[request_id] = told.get(request_id, 0) + 1
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", told
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def submit(http: httpx.Client, webhook: str) -> tuple[str, list[str]]:
    sent = http.post(
        "/v1/files", data={"purpose": "batch"}, files={"file": ("in", input_of(NUM_LINES))}
    )
    body = {
        "input_file_id": sent.json()["id"],
        "endpoint": "/v1/embeddings",
        "completion_window": "24h",
    }
    batch_id = http.post("/v1/batches", json=body).json()["id"]
    ids = []
    for place in range(NUM_REQUESTS):
        request = {"model_input": {"input": f"t{place}"}, "webhook_endpoint": webhook}
        ids.append(http.post("/async_predict", json=request).json()["request_id"])
    return batch_id, ids


def run_until(http: httpx.Client, batch_id: str, wanted: int) -> int:
    """Return how many lines are answered, when they are so many or the batch has ended."""
    until = time.monotonic() + WAIT_SECONDS
    while True:
        batch = http.get(f"/v1/batches/{batch_id}").json()
        completed: int = batch["request_counts"]["completed"]
        if completed >= wanted or batch["status"] == "completed":
            return completed
        assert time.monotonic() < until, batch


def finished(http: httpx.Client, batch_id: str, ids: list[str]) -> tuple[Any, Any, Any]:
    until = time.monotonic() + WAIT_SECONDS
    while (batch := http.get(f"/v1/batches/{batch_id}").json())["status"] != "completed":
        assert time.monotonic() < until, batch
    while not all(
        http.get(f"/async_request/{each}").json()["webhook_status"] == "SUCCEEDED" for each in ids
    ):
        assert time.monotonic() < until
    content = http.get(f"/v1/files/{batch['output_file_id']}/content").content
    lines = [json.loads(line) for line in content.splitlines()]
    rows = [(line["custom_id"], line["response"]["body"]["data"][0]["embedding"]) for line in lines]
    results = [http.get(f"/async_request/{each}/result").json()["data"] for each in ids]
    return rows, results, batch["request_counts"]


def vector(text: str) -> list[float]:
    found: list[float] = fake_vector(list(text.encode())).tolist()
    return found


def test_killed_at_any_instant_it_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    drawn = random.Random(20)
    with receiving() as (webhook, told):
        folder = tmp_path / "killed"
        progress: list[int] = []
        for _ in range(KILLS):
            wanted = drawn.randrange(1, NUM_LINES // KILLS // 2)
            # Some lines may come again, and the other requests take their turns.
            with serving(folder, wanted + 3 * NUM_REQUESTS) as (http, process):
                if not progress:
                    batch_id, ids = submit(http, webhook)
                progress.append(run_until(http, batch_id, wanted + max(progress, default=0)))
                process.send_signal(signal.SIGKILL)
        with serving(folder, 10 * NUM_LINES) as (http, _):
            rows, results, counts = finished(http, batch_id, ids)
        assert rows == [(f"r{place}", vector(f"r{place}")) for place in range(NUM_LINES)]
        assert [result[0]["embedding"] for result in results] == [
            vector(f"t{place}") for place in range(NUM_REQUESTS)
        ]
        assert counts == {"total": NUM_LINES, "completed": NUM_LINES, "failed": 0}
        assert set(ids) <= set(told)
        assert 0 < progress[0] < NUM_LINES, progress  # it was killed half-way
