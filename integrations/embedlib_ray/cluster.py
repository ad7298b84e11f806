"""The connection to a Ray cluster, and what can be said of it before any work."""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import ray

from embedlib.errors import ConfigError, first_line
from embedlib.indexing.workers import check_ray
from embedlib_ray.sizing import Machine

LOCAL_STORE_BYTES = 256 << 20
"""Object store of a cluster that a load starts for itself: a few hundred shards."""
_CONNECT_SECONDS = 5.0
_HEADS = "RAY_ADDRESS names another one; ray start --head starts one, and --ray local uses this \
machine alone"

_OTHER_TOKEN = "does not take this program's token; set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or \
RAY_AUTH_TOKEN_PATH to the cluster's"


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to a cluster, unless the program has; disconnect at the end if this connected.

    Args:
        address: "auto" finds the cluster of RAY_ADDRESS or of this machine, "local" starts one
            here that ends with the program, "HOST:PORT" is the head's port of `ray start`.

    Raises:
        ConfigError: there is none, or it does not let this program in.
    """
    check_ray(address, None)
    if ray.is_initialized():
        yield
        return
    _connect(address)
    try:
        yield
    finally:
        ray.shutdown()


def _connect(address: str) -> None:
    options: dict[str, Any] = {"address": address}
    if address == "local":
        # Ray listens on all addresses; nobody without this token may give it work.
        if not os.environ.get("RAY_AUTH_MODE"):
            os.environ["RAY_AUTH_MODE"] = "token"
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
            _read_environment()
        options |= {"include_dashboard": False, "object_store_memory": LOCAL_STORE_BYTES}
    elif address != "auto":
        _check_listens(address)
    try:
        ray.init(**options, log_to_driver=False, logging_level="ERROR", configure_logging=True)
    except ConnectionError as error:
        if "Failed to connect" in str(error):  # also what Ray says of a wrong token
            raise ConfigError(
                f"ray = {address!r}: {first_line(error)}: it has ended, or it {_OTHER_TOKEN}"
            ) from error
        raise ConfigError(f"ray = {address!r}: there is no Ray cluster; {_HEADS}") from error
    # Of any class: a node that does not start in time has none of its own.
    except Exception as error:
        raise ConfigError(f"ray = {address!r}: {_reason(error)}") from error


def _read_environment() -> None:
    """Let Ray see how it authenticates: it has read these variables when it was imported.

    Of another release than 2.60 these names may be missing; then the variables must be set before
    the program starts, as the error of `ray.init` says.
    """
    with suppress(ImportError, AttributeError):
        from ray._raylet import AuthenticationTokenLoader, Config

        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()


def _check_listens(address: str) -> None:
    """Refuse an address at which nothing listens, at once: Ray would try for a minute."""
    found = re.fullmatch(r"(?:ray://)?\[?([^\[\]/]+?)\]?:(\d{1,5})", address)
    if found is None or not 0 < int(found[2]) < 1 << 16:
        raise ConfigError(
            f"ray = {address!r}; it must be auto, local or HOST:PORT, such as 10.0.0.1:6379"
        )
    if address.startswith("ray://"):
        raise ConfigError(
            f"ray = {address!r}: a Ray client has no part in the cluster's data; run the command "
            "on a machine of the cluster, or as ray job submit, with --ray auto"
        )
    try:
        socket.create_connection((found[1], int(found[2])), _CONNECT_SECONDS).close()
    except OSError as error:
        raise ConfigError(
            f"ray = {address!r}: no Ray cluster answers there: {error.strerror or error}; {_HEADS}"
        ) from error


def _reason(error: BaseException) -> str:
    """Return what Ray says, with what to do, in one line."""
    text = str(error)
    if "uthentication" in text or "token" in text.lower():
        return f"the cluster {_OTHER_TOKEN}"
    if "ersion mismatch" in text:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f"{' '.join(lines)}; install the same versions of Ray and Python on all machines"
    return first_line(error)


def machines() -> list[Machine]:
    """Return the nodes that are alive.

    Raises:
        ConfigError: this program is not connected to a cluster.
    """
    if not ray.is_initialized():
        raise ConfigError("this program is not connected to a Ray cluster; call ray.init first")
    return [
        Machine(
            node=str(node["NodeID"]),
            address=str(node["NodeManagerAddress"]),
            num_cpus=float(node["Resources"].get("CPU", 0)),
            num_gpus=float(node["Resources"].get("GPU", 0)),
            memory_bytes=float(node["Resources"].get("memory", 0)),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
