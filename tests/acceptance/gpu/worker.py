"""What runs in a child process: `python -m tests.acceptance.gpu.worker NAME DEVICE`.

It is driven by the lines that `embedlib.bench.worker` describes.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import MappingProxyType
from typing import Final

from embedlib.bench.worker import serve

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
"""Who is who: the module, imported when it is needed, and the class."""


def make_calls(name: str, device: str) -> object:
    """Return what answers for a contestant."""
    module, kind = CALLS[name]
    maker = getattr(importlib.import_module(f"tests.acceptance.gpu.{module}"), kind)
    calls: object = maker(device)
    return calls


def main(name: str, device: str) -> None:
    """Serve one contestant on standard input and output."""
    # Libraries print what they like; only answers may go to the parent.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(make_calls(name, device), sys.stdin, replies)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
