"""A real Ray cluster of two nodes, in a network of its own.

Ray listens on all addresses, so these tests run only where the process has no network but loopback:
`.ci/ray` starts them with `unshare -n`.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from embedlib.testing import write_tiny_model
from tests.integrations.conftest import start_server, stop_server

IS_ALONE = [name for _, name in socket.if_nameindex()] == ["lo"]
STORE_BYTES = 200 << 20


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Kills come late: Ray sends work to a node that it has not yet found dead. The commands with a
    # wrong cluster start with the first test and end last: Ray tries a wrong token for 20 seconds.
    items.sort(
        key=lambda item: (
            item.name.startswith("test_a_wrong_cluster"),
            item.path.name == "test_kill.py",
        )
    )
    if not IS_ALONE:
        reason = "Ray listens on all addresses, and this process has a network; run .ci/ray"
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def cluster() -> Iterator[object]:
    """Two nodes with two CPUs each; its address is in RAY_ADDRESS meanwhile."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    started = Cluster(initialize_head=True, head_node_args=node)
    started.add_node(num_cpus=2, object_store_memory=STORE_BYTES)
    before = os.environ.get("RAY_ADDRESS")
    os.environ["RAY_ADDRESS"] = started.address
    yield started
    if before is None:
        del os.environ["RAY_ADDRESS"]
    started.shutdown()


@pytest.fixture(scope="session")
def driver(cluster: object) -> Iterator[str]:
    """This process as a driver, for tests that need no other; returns the address."""
    import ray

    address: str = cluster.address  # type: ignore[attr-defined]
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    yield address
    ray.shutdown()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where the workers note what they embed."""
    return tmp_path / "embedded.log"


@dataclass
class Postgres:
    """A server in a folder."""

    folder: Path
    url: str

    def restart(self) -> None:
        stop_server(self.folder)
        start_server(self.folder)


@pytest.fixture(scope="session")
def restarting_postgres() -> Iterator[Postgres]:
    # Not pytest's folder: the server's own user may not enter that.
    folder = Path(tempfile.mkdtemp(prefix="embedlib-pg-", dir="/tmp"))
    folder.chmod(0o755)
    yield Postgres(folder, start_server(folder))
    stop_server(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres(restarting_postgres: Postgres) -> str:
    """The URL of a database, without a table."""
    return restarting_postgres.url


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), "bert")
