"""What runs in a child process: `python -m tests.acceptance.gpu.worker NAME DEVICE`.

It is called by the lines that `embedlib.measuring.child` describes.
"""

from __future__ import annotations

import importlib
import sys
from types import MappingProxyType
from typing import Final

from embedlib.measuring.child import serve_standard_streams

CALLS: Final = MappingProxyType(
    {
        "chip": ("chip", "ChipCalls"),
        "embedlib": ("contestant", "ContestantCalls"),
        "reference": ("reference", "ReferenceCalls"),
        "sentence-transformers": ("peers", "SentenceTransformersCalls"),
        "vllm": ("peers", "VllmCalls"),
        "start": ("starts", "StartCalls"),
    }
)
"""By the name of a contestant: its module, imported when it is needed, and its class."""


def make_calls(name: str, device: str) -> object:
    """Return what answers for a contestant."""
    module, kind = CALLS[name]
    maker = getattr(importlib.import_module(f"tests.acceptance.gpu.{module}"), kind)
    calls: object = maker(device)
    return calls


def main(name: str, device: str) -> None:
    """Serve one contestant on standard input and output."""
    serve_standard_streams(make_calls(name, device))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
