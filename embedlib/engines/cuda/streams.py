"""The streams of the engines on a GPU, which no two of them may share."""

from __future__ import annotations

import threading
from typing import Final, NamedTuple

import torch


class Streams(NamedTuple):
    """The streams of an engine."""

    compute: torch.cuda.Stream
    copies: torch.cuda.Stream
    results: torch.cuda.Stream


_FREE: Final[dict[torch.device, list[Streams]]] = {}
"""Streams of closed engines, for the next ones. Kept by the process, as torch's own are.

Torch hands out the streams of each priority from a pool of 32, in turn, and begins again. Without
this, a new engine would record on a stream of a live one, and take its copies into the recording.
Source: c10/cuda/CUDAStream.cpp."""
_LOCK: Final = threading.Lock()


def take_streams(device: torch.device) -> Streams:
    """Return streams that no other engine on the device uses, while there are up to 16 engines.

    Copies are never recorded, so theirs come from the pool of another priority: of more than 16
    engines some share them and wait for each other; more than 32 would share compute streams.
    """
    with _LOCK:
        free = _FREE.get(device)
        if free:
            return free.pop()
        return Streams(
            compute=torch.cuda.Stream(device),
            copies=torch.cuda.Stream(device, priority=-1),
            results=torch.cuda.Stream(device, priority=-1),
        )


def give_back_streams(device: torch.device, streams: Streams) -> None:
    """Let another engine have streams on which nothing runs any more."""
    with _LOCK:
        _FREE.setdefault(device, []).append(streams)
