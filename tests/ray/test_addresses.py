"""A command that finds no cluster, or is not let in, says so in one line and writes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from embedlib.errors import ConfigError
from embedlib_ray.cluster import connected

TOLD = {
    "127.0.0.1:1": "no Ray cluster answers there",
    "ray://127.0.0.1:1": "run the command on a machine of the cluster",
    "auto": "does not take this program's token",
}


@pytest.fixture(scope="session", autouse=True)
def running(
    cluster: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[Path, subprocess.Popen[str]]]]:
    """Commands with a wrong address, or a wrong token: all at the same time, since Ray waits."""
    started = {}
    for address in TOLD:
        folder = tmp_path_factory.mktemp("command")
        (folder / "source.txt").write_text("a text")
        command = ["index", "source.txt", "--model", "m", "--to", "jsonl:out", "--ray", address]
        started[address] = (
            folder,
            subprocess.Popen(
                [sys.executable, "-m", "embedlib", *command],
                stderr=subprocess.PIPE,
                text=True,
                cwd=folder,
                env={**os.environ, "RAY_AUTH_TOKEN": "0" * 64},
            ),
        )
    yield started
    for _, process in started.values():
        process.kill()


@pytest.mark.parametrize("address", TOLD)
def test_a_wrong_cluster(
    address: str, running: dict[str, tuple[Path, subprocess.Popen[str]]]
) -> None:
    folder, process = running[address]
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 1
    [line] = [line for line in errors.splitlines() if line.startswith("Error")]
    assert TOLD[address] in line
    assert [path.name for path in folder.iterdir()] == ["source.txt"]


def test_what_is_no_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with (
        pytest.raises(ConfigError, match="it must be auto, local or HOST:PORT, such as"),
        connected("nonsense"),
    ):
        pass


def test_other_versions_of_ray_or_python_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    # As `ray._private.utils.check_version_info` says it.
    said = (
        "Version mismatch: The cluster was started with:\n    Ray: 2.55.0\n    Python: 3.11.7\n"
        "This process on node 10.0.0.2 was started with:\n    Ray: 2.60.0\n    Python: 3.11.7\n"
    )

    def init(**_: object) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    told = (
        r"cluster was started with: Ray: 2\.55\.0 .*; install the same versions of Ray and Python"
    )
    with pytest.raises(ConfigError, match=told), connected("auto"):
        pass


def test_a_node_that_does_not_start_in_time_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def init(**_: object) -> None:
        raise Exception("The current node timed out during startup. This could happen")  # Ray's own

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with (
        pytest.raises(ConfigError, match="ray = 'auto': The current node timed"),
        connected("auto"),
    ):
        pass


def test_a_cluster_for_one_command_has_a_token_of_its_own() -> None:
    program = (
        "import ray\n"
        "from embedlib_ray.cluster import connected\n"
        "with connected('local'):\n"
        "    print(len(ray.nodes()))\n"
    )
    # What a user's shell has, and not that of `.ci/ray`.
    environment = {name: text for name, text in os.environ.items() if "RAY_AUTH" not in name}
    found = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (found.returncode, found.stdout) == (0, "1\n"), found.stderr
