"""Imports openvino without its report to Google Analytics."""

from __future__ import annotations

import sys
from typing import Any


class _Silence:
    """Accepts any call and any attribute access, and does nothing."""

    def __getattr__(self, name: str) -> _Silence:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> _Silence:
        return self


def import_without_telemetry() -> None:
    """Import openvino with its telemetry package disabled.

    `import openvino` reports each import: it writes an id into `~/intel` and forks a process that
    posts to www.google-analytics.com, unless an opt-out file in the home folder or an environment
    variable of a CI system prevents it. Only the import is silenced: telemetry of openvino's tools,
    if the program uses them, still follows the user's consent.

    Source: `openvino/tools/ovc/__init__.py` of openvino 2026.4.1, `openvino_telemetry/main.py` of
    openvino-telemetry 2025.2.0.
    """
    if "openvino" in sys.modules:
        return  # the program imported it before
    try:
        import openvino_telemetry
    except ImportError:
        return  # openvino then uses its own stub
    real = openvino_telemetry.Telemetry
    openvino_telemetry.Telemetry = _Silence()
    try:
        import openvino  # noqa: F401 - imported for its side effects
    finally:
        openvino_telemetry.Telemetry = real
