"""What Ray says of a call that failed, as an error of embedlib."""

from __future__ import annotations

import logging
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from embedlib.errors import EmbedlibError, typed_line


def is_ray_itself(error: BaseException) -> bool:
    """Whether a call failed for what Ray tells of its actor, and not by what it did."""
    return isinstance(error, RayError) and not isinstance(error, RayTaskError)


def result_of(reference: Any) -> Any:
    """Return what a call of Ray returns, once it has ended.

    Raises:
        EmbedlibError: it failed; one line.
    """
    try:
        return ray.get(reference)
    except RayError as error:
        raise cause_of(error) from None


def cause_of(error: BaseException) -> EmbedlibError:
    """Return what failed in a worker, as an error of embedlib with one line."""
    if isinstance(error, RayTaskError):
        cause = error.cause
        if isinstance(cause, EmbedlibError):
            return cause
        logging.getLogger(__name__).debug("in a worker", exc_info=error)
        if cause is not None:
            return EmbedlibError(f"a worker failed: {typed_line(cause)}")
    if isinstance(error, RayActorError):
        return EmbedlibError(f"the worker died: {_why_died(error)}")
    if isinstance(error, EmbedlibError):
        return error
    return EmbedlibError(f"a worker failed: {typed_line(error)}")


def _why_died(error: RayActorError) -> str:
    """Return the line of Ray's report that says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in lines:
        if "OOM" in line or "memory" in line or "ModuleNotFoundError" in line:
            return line
    said = [line for line in lines if ":" in line and "exit" in line.lower()]
    return (said or lines or [type(error).__name__])[0][:300]
