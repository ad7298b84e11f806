"""Measures what a model takes on the CPU, beside what was planned; or draws limits and loads.

    python -m tests.acceptance.cpu_memory FOLDER...
    python -m tests.acceptance.cpu_memory FOLDER... --limits 200 --cgroup /sys/fs/cgroup/memory/mine

Every load is a process of its own: it loads, answers a query, embeds short texts and then long
ones. With `--limits` each draws a model, a precision and a limit of its memory cgroup (the folder
is made, and removed at the end; version 1 or 2), and must end in vectors or in one line of ours.
What draws "auto" has an empty cache, so it measures first.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from embedlib.config import Config
from embedlib.engines.kind import ChosenPrecision
from embedlib.engines.machine import Machine
from embedlib.engines.openvino.plans.memory import MemoryNeeds, memory_needs
from embedlib.models.reading.files import read_model_files

PRECISIONS = ("float32", "int8", *(["bf16"] if Machine().bf16_instructions() else []))
MIB = 1 << 20
LOAD = """
import os, resource, sys, warnings
model, cache, precision, cgroup = sys.argv[1:]
if cgroup:
    with open(cgroup + "/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
warnings.simplefilter("ignore")
from embedlib import Embedder
from embedlib.errors import EmbedlibError
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
try:
    with Embedder(model, threads=2, precision=precision, engine_cache_dir=cache) as embedder:
        found = [peak()]
        embedder.encode_query("a b c d")
        embedder.encode(["a b c d " * length for length in (1, 3, 5, 9)] * 8)
        found.append(peak())
        embedder.encode(["a b c d " * 60] * 2)
        found.append(peak())
        embedder.encode(["a b c d " * 120] * 2)
        print(*found, peak())
except EmbedlibError as error:
    print(f"{type(error).__name__}: {error}")
"""


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def load(folder: Path, cache: str, precision: str, cgroup: str = "") -> tuple[int, str]:
    """Return the exit status of a load and what it printed."""
    command = [sys.executable, "-c", LOAD, str(folder), cache, precision, cgroup]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.strip() or done.stderr.strip()[-300:]


def plan(folder: Path, precision: str) -> tuple[MemoryNeeds, int]:
    """Return what is planned, and the bytes of the layout that is used where memory is plenty."""
    files = read_model_files(folder)
    needs = memory_needs(files, ChosenPrecision(name=precision), Config(threads=2))
    return needs, needs.separate if needs.may_be_separate else needs.shared


def measure(folders: list[Path], cache: str) -> None:
    """Print a row for each model, precision and start, in MiB."""
    say("model precision start: weights, planned; peak loaded, short texts, 240 words, 480 words")
    for folder in folders:
        for precision in PRECISIONS:
            needs, planned = plan(folder, precision)
            if precision == "int8":
                load(folder, cache, precision)  # compiles it to int8
            for start in ("first", "second"):
                _, told = load(folder, cache, precision)
                sizes = f"{needs.weights // MIB}, {planned // MIB}"
                say(f"{folder.name} {precision} {start}: {sizes}; {told}")


def draw_limits(folders: list[Path], cache: str, cgroup: Path, count: int, seed: int) -> int:
    """Print each load under a limit, and return how many ended otherwise than they should."""
    draws, num_bad = random.Random(seed), 0
    cgroup.mkdir()
    names = ("memory.max", "memory.limit_in_bytes")
    limit_file = next(cgroup / name for name in names if (cgroup / name).exists())
    try:
        for number in range(count):
            folder, precision = draws.choice(folders), draws.choice(("auto", *PRECISIONS))
            _, planned = plan(folder, "float32" if precision == "auto" else precision)
            limit = int(planned * draws.uniform(0.3, 1.6))
            limit_file.write_text(str(limit))
            own = f"{cache}/{number}" if precision == "auto" else cache
            status, told = load(folder, own, precision, str(cgroup))
            is_good = status == 0 and "\n" not in told
            num_bad += not is_good
            verdict = "good" if is_good else f"BAD, exit status {status}"
            say(f"{number} {folder.name} {precision} {limit // MIB} MiB: {verdict}: {told}")
    finally:
        cgroup.rmdir()
    return num_bad


def main() -> int:
    """Measure, or draw limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--limits", type=int, default=0, help="number of loads under drawn limits")
    parser.add_argument("--cgroup", type=Path, help="a new memory cgroup")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        if not options.limits:
            measure(options.folders, cache)
            return 0
        if options.cgroup is None:
            parser.error("--limits needs --cgroup")
        for folder in options.folders:
            load(folder, cache, "int8")
        return draw_limits(options.folders, cache, options.cgroup, options.limits, options.seed)


if __name__ == "__main__":
    sys.exit(main())
