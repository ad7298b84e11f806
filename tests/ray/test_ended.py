"""A program whose connection has ended: one error line, nothing that waits, and no cluster."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import ray
import embedlib
from embedlib.errors import EmbedlibError
from embedlib.testing import FakeSink, FakeStore, fake_embedder
from embedlib_ray import RayEmbedder
from tests.ray.fakes import documents

def load(source):
    try:
        embedlib.index(source, FakeSink(FakeStore()), embedder=embedder)
    except EmbedlibError as error:
        print(error)

def source():
    yield from documents(900)
    ray.shutdown()
    yield from documents(900, first=900)

def start():
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR",
             num_cpus=2, object_store_memory=100 << 20)

start()
embedder = RayEmbedder(fake_embedder)
load(source())
load(documents(5))
embedder.close()
print(ray.is_initialized())
start()
other = RayEmbedder(fake_embedder)
ray.shutdown()
start()
embedder = other
load(documents(5))
embedder.close()
"""


def test_a_load_without_a_connection() -> None:
    environment = {name: text for name, text in os.environ.items() if name != "RAY_ADDRESS"}
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert found.returncode == 0, found.stderr
    during, behind, is_connected, of_another_one = found.stdout.splitlines()
    told = "the connection to the Ray cluster has ended; open other workers with RayEmbedder(...)"
    assert told in during
    assert (behind, is_connected) == (told, "False")
    assert of_another_one.startswith("the Ray cluster does not work: ")
    assert "Started a local Ray instance" not in found.stderr
