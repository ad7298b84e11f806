"""Run sentence-transformers' own tests twice, with its inference and with embedlib's, and compare.

    python -m tests.frameworks.peer_suite CHECKOUT

CHECKOUT is a clone of github.com/huggingface/sentence-transformers. Only its tests are used, with
the installed package. A test counts if it passes with the peer's own inference and computes
something. It then has to pass with embedlib's, or to stand in `differences.py` with the reason.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.frameworks.peer_suite.differences import DIFFERENCES, INTERNALS, reason_for
from tests.frameworks.peer_suite.hub import write_hub

FILES = (
    *("base/modules/test_dense.py", "base/modules/test_router.py", "base/test_model.py"),
    *("cross_encoder/test_model.py", "cross_encoder/evaluation"),
    *("sentence_transformer/test_model.py", "sentence_transformer/evaluation"),
    *("sentence_transformer/modules", "sentence_transformer/test_compute_embeddings.py"),
)
"""Of the checkout's folder of tests: those that compute vectors or scores of the two classes.

Left out: training, other kinds of models, process pools, and functions that no model is passed to.
"""

Results = dict[str, dict[str, Any]]


def run_tests(folder: Path, inference_by: str, only: Sequence[str]) -> Results:
    """Return outcome, message and number of computing calls of every test, by its name."""
    results, chosen = folder / f"{inference_by}.json", folder / f"{inference_by}.txt"
    chosen.write_text("\n".join(only))
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=line", "-W", "ignore"]
    command += ["-p", "embedlib_inference", "--inference-by", inference_by]
    command += ["--results", str(results), f"@{chosen}"]
    environment = os.environ | {
        "HF_HUB_CACHE": str(folder / "hub"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        # Not the root of this checkout: both have a package called `tests`.
        "PYTHONPATH": str(Path(__file__).parent),
    }
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    if not results.is_file():
        raise SystemExit(f"pytest wrote no results:\n{done.stdout}")
    return dict(json.loads(results.read_text()))


def select(by_peer: Results) -> list[str]:
    """Return the tests that apply: they pass with the peer's inference and need it."""
    return [
        name
        for name, result in by_peer.items()
        if result["outcome"] == "passed"
        and result["num_calls"]
        and reason_for(name, INTERNALS) is None
    ]


def compare(by_peer: Results, by_embedlib: Results) -> list[str]:
    """Print a table and return what is unexpected, one line each."""
    counts: dict[str, Counter[str]] = {}
    unexpected = []
    for name, result in by_embedlib.items():
        reason = reason_for(name, DIFFERENCES)
        has_passed = result["outcome"] == "passed"
        file = counts.setdefault(name.partition("::")[0], Counter())
        file["apply"] += 1
        file["pass" if has_passed else "differ on purpose" if reason else "fail"] += 1
        if has_passed == (reason is not None):
            expected = f"documented as different ({reason})" if reason else "expected to pass"
            unexpected.append(f"{name}: {result['outcome']}, {expected}: {result['message']}")
    columns = ("apply", "pass", "differ on purpose", "fail")
    lines = [("file", "tests", *columns)]
    for file, counter in sorted(counts.items()):
        num_tests = sum(name.partition("::")[0] == file for name in by_peer)
        lines.append((file, str(num_tests), *(str(counter[column]) for column in columns)))
    sys.stdout.writelines(f"| {' | '.join(line)} |\n" for line in lines)
    return unexpected


def main(checkout: Path) -> int:
    """Return the exit code."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        shutil.copytree(checkout / "tests", folder / "tests")
        write_hub(folder / "hub")
        by_peer = run_tests(folder, "peer", [f"tests/{file}" for file in FILES])
        unexpected = compare(by_peer, run_tests(folder, "embedlib", select(by_peer)))
    sys.stdout.writelines(f"{line}\n" for line in unexpected)
    return 1 if unexpected else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
