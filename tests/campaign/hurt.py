"""A part whose cases crash, hang and take all memory, to test the process that runs them."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.campaign.verdict import Judge, Verdict


def _wait_forever() -> None:
    threading.Event().wait()


_HARMS: dict[int, Callable[[], object]] = {
    1: lambda: os.kill(os.getpid(), signal.SIGSEGV),
    2: _wait_forever,
    3: lambda: bytearray(4 << 30),
}


@contextmanager
def open_judge(_folder: Path) -> Iterator[Judge]:
    def judge(rng: random.Random) -> Verdict:
        for seed, harm in _HARMS.items():
            if rng.getstate() == random.Random(seed).getstate():
                harm()
        return Verdict("right", "")

    yield judge
