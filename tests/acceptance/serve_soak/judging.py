"""The memory of a server over time, and promises with whether they were kept."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Memory:
    """The resident memory of a process over time."""

    process: int
    samples: list[tuple[float, int]] = field(default_factory=list)

    def note(self) -> int:
        """Return the bytes that are resident now. Source: proc_pid_statm(5)."""
        pages = int(Path(f"/proc/{self.process}/statm").read_text().split()[1])
        self.samples.append((time.monotonic(), pages * 4096))
        return pages * 4096

    async def watch(self) -> None:
        """Note it each second, for ever."""
        while True:
            self.note()
            await asyncio.sleep(1)


class Verdicts:
    """Promises and whether they were kept, printed as they come."""

    def __init__(self) -> None:
        """Start with all kept."""
        self.num_broken = 0

    def check(self, is_kept: bool, what: str) -> None:
        """Print a promise."""
        self.num_broken += not is_kept
        say(f"{'kept' if is_kept else 'BROKEN'}: {what}")


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
