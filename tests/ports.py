"""Ports for servers that tests start."""

from __future__ import annotations

import random
import socket

FIRST_OF_CLIENTS = 32_768
"""From here on Linux gives ports to the clients' ends of connections."""


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on, and that no client gets."""
    while True:
        port = random.SystemRandom().randrange(10_000, FIRST_OF_CLIENTS)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:  # somebody has it
            continue
        return port
