"""How long a test waits for what is sure to come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embedlib.batching.outcome import Outcome

WAIT_SECONDS = 300
"""Of every wait that fails when it is over: even on the busiest machine only a hang is as long."""


def error_of(outcome: Outcome[Any]) -> BaseException | None:
    """Return what a job has ended with; None: it has a result."""
    try:
        outcome.result(WAIT_SECONDS)
    except BaseException as error:
        if not outcome.done():  # of the wait itself
            raise
        return error
    return None
