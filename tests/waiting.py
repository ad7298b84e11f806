"""How long a test waits for what is sure to come."""

from __future__ import annotations

WAIT_SECONDS = 300
"""Of every wait that fails when it is over: even on the busiest machine only a hang is as long."""
