"""Whether assert statements are run, which the checks of this folder consist of."""

from __future__ import annotations


def need_asserts(check: str) -> None:
    """Raise if a check would find nothing.

    Raises:
        AssertionError: Python runs no assert statements.
    """
    if not __debug__:
        raise AssertionError(
            f"{check} checks with assert, which python -O leaves out; run it without -O and "
            "PYTHONOPTIMIZE"
        )
