"""The import of openvino, without the message that it sends to Google Analytics."""

from __future__ import annotations

import sys
from typing import Any


class _Silence:
    """Takes any call and any attribute, and does nothing."""

    def __getattr__(self, name: str) -> _Silence:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> _Silence:
        return self


def import_without_telemetry() -> None:
    """Import openvino while its telemetry package does nothing.

    `import openvino` reports itself: it writes an id into `~/intel` and forks a process that posts
    to www.google-analytics.com, unless a file in the home folder or a variable of a CI says no.
    Only the import is silenced; a program's own use of openvino's tools goes by its user's consent.

    Source: `openvino/tools/ovc/__init__.py` of openvino 2026.4.1, `openvino_telemetry/main.py` of
    openvino-telemetry 2025.2.0.
    """
    if "openvino" in sys.modules:
        return  # the program imported it before
    try:
        import openvino_telemetry
    except ImportError:
        return  # openvino then takes a stand-in of its own
    real = openvino_telemetry.Telemetry
    openvino_telemetry.Telemetry = _Silence()
    try:
        import openvino  # noqa: F401 - for what it does
    finally:
        openvino_telemetry.Telemetry = real
