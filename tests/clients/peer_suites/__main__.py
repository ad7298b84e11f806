"""Run other servers' own tests against `embedlib serve`, and print what differs.

    python -m tests.clients.peer_suites baseten=TRUSS infinity=INFINITY vllm=VLLM

Each is a checkout of github.com/basetenlabs/truss, github.com/michaelfeil/infinity or
github.com/vllm-project/vllm (or vllm's source package, which has its tests). Only files that speak
HTTP are taken; where they load a model by name they get MiniLM, or a tiny seeded one of its kind.
A test has to pass, or to stand in `differences.py` with the reason.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.clients.peer_suites.differences import DIFFERENCES, NOT_OURS, reason_for
from tests.clients.peer_suites.models import write_models
from tests.clients.peer_suites.suites import SUITES, Suite

Results = dict[str, dict[str, Any]]


def copy_tests(checkout: Path, suite: Suite, models: Path, to: Path) -> None:
    """Copy the tests of a suite, with its edits."""
    for name in suite.files:
        source = checkout / suite.folder / name
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text()
        for pattern, replacement in suite.edits:
            text = re.sub(pattern, replacement.replace("MODELS", str(models)), text, flags=re.M)
        target.write_text(text)


def run_tests(name: str, checkout: Path, scratch: Path) -> Results:
    """Return the outcome and message of every test of a suite, by its name."""
    suite = SUITES[name]
    folder, results = scratch / name, scratch / f"{name}.json"
    copy_tests(checkout, suite, scratch / "models", folder)
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = strict\n")
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=line", "-W", "ignore"]
    command += ["-p", "plugin", "-p", "no:cacheprovider", "--import-mode=importlib"]
    # pytest would take the checkout for the root where that has a configuration of its own,
    # and tests outside of the root lose the names of their files.
    command += ["--rootdir", str(folder), "-c", str(folder / "pytest.ini")]
    command += ["--suite", name, "--checkout", str(checkout), "--models", str(scratch / "models")]
    command += [
        "--results",
        str(results),
        *(each for each in suite.files if "conftest" not in each),
    ]
    own = Path(__file__).parent  # not the root of this checkout: vLLM has a package `tests`, too
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "BASETEN_API_KEY": "k-peers",
        "PYTHONPATH": os.pathsep.join([str(own), *filter(None, inherited)]),
    }
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    if not results.is_file():
        raise SystemExit(f"pytest wrote no results:\n{done.stdout}")
    return dict(json.loads(results.read_text()))


def judge(name: str, results: Results) -> list[str]:
    """Print a row of the table, and return what is unexpected, one line each."""
    counts: Counter[str] = Counter()
    unexpected = []
    for test, result in results.items():
        if reason_for(test, NOT_OURS[name]) is not None or result["outcome"] == "skipped":
            counts["not ours"] += 1
            continue
        reason = reason_for(test, DIFFERENCES[name])
        has_passed = result["outcome"] == "passed"
        counts["pass" if has_passed else "differ on purpose" if reason else "fail"] += 1
        if has_passed == (reason is not None):
            expected = f"documented as different ({reason})" if reason else "expected to pass"
            unexpected.append(f"{test}: {result['outcome']}, {expected}: {result['message']}")
    columns = ("pass", "differ on purpose", "fail", "not ours")
    row = (name, str(len(results)), *(str(counts[column]) for column in columns))
    sys.stdout.write(f"| {' | '.join(row)} |\n")
    return unexpected


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    unexpected: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        write_models(scratch / "models")
        sys.stdout.write("| suite | tests | pass | differ on purpose | fail | not ours |\n")
        for argument in arguments:
            name, _, checkout = argument.partition("=")
            unexpected += judge(name, run_tests(name, Path(checkout).resolve(), scratch))
    sys.stdout.writelines(f"{line}\n" for line in unexpected)
    return 1 if unexpected else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
