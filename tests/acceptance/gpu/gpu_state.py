"""Clock, power and temperature of the GPU while it is measured: what explains a drift."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Sequence
from typing import IO, Final

QUERY: Final = ("clocks.sm", "power.draw", "temperature.gpu")
NAMES: Final = ("sm_mhz", "watts", "celsius")
INTERVAL_MS: Final = 200


class GpuState:
    """Reads samples from nvidia-smi until closed; without nvidia-smi there are none."""

    def __init__(self, uuid: str) -> None:
        """Begin.

        Args:
            uuid: of the GPU; empty: it has none of its own, and there are no samples.
        """
        self._samples: list[tuple[float, ...]] = []
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        tool = shutil.which("nvidia-smi")
        if tool is None or not uuid:
            return
        command = [tool, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits", "-i"]
        self._process = subprocess.Popen(
            [*command, uuid, "-lms", str(INTERVAL_MS)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self._thread = threading.Thread(
            target=self.listen, args=(self._process.stdout,), daemon=True
        )
        self._thread.start()

    def listen(self, lines: IO[str] | Sequence[str]) -> None:
        """Take samples until the lines end."""
        for line in lines:
            try:
                sample = tuple(float(part) for part in line.split(","))
            except ValueError:  # "[N/A]": not measured by this GPU
                continue
            with self._lock:
                self._samples.append(sample)

    def means(self) -> dict[str, float]:
        """Return the means since the last call; empty: there are no samples."""
        with self._lock:
            samples, self._samples = self._samples, []
        columns = zip(*samples, strict=True)
        return {
            name: sum(column) / len(column) for name, column in zip(NAMES, columns, strict=False)
        }

    def close(self) -> None:
        """End nvidia-smi, and the thread that reads from it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._thread.join()
            assert self._process.stdout is not None
            self._process.stdout.close()
