"""Kill loads of the same documents in every form of source, and compare what is stored.

    python -m tests.acceptance.source_kills
    python -m tests.acceptance.source_kills csv parquet s3 --documents 200 --kills 2 --seed 1

Of each form a load is killed some times after drawn numbers of texts, and run again to its end: its
rows must be those of a load that lived, with the texts that the form was written with, at most what
was in flight may be embedded twice, and another run embeds nothing. Then one document is changed,
one removed and one added: two are embedded. `s3` starts a server of its own (moto). Forms whose
packages are missing are left out unless they are named. The exit code is 1 if something was broken.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path

from tests.acceptance.source_kills.forms import FORMS
from tests.acceptance.source_kills.run import Trial

# In a process of its own: a load that is killed must not take it along.
_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("http://%s:%s" % server.get_host_and_port(), flush=True)
sys.stdin.read()
server.stop()
"""


@contextmanager
def storage() -> Iterator[None]:
    """Start a server that speaks S3, on loopback, and name it in the environment."""
    command = [sys.executable, "-c", _SERVER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), "without a server, Amazon's would be asked"
        os.environ |= {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "an-id",
            "AWS_SECRET_ACCESS_KEY": "a-secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        yield
        process.stdin.close()


def _is_left_out(form: str) -> bool:
    """Say of a form which of its packages are missing."""
    missing = [package for package in FORMS[form].packages if find_spec(package) is None]
    if missing:
        print(f"{form:12} left out: {', '.join(missing)} not installed", flush=True)
    return bool(missing)


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("forms", nargs="*", metavar="FORM", help=f"of {', '.join(FORMS)}")
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    unknown = [name for name in given.forms if name not in FORMS]
    if unknown:
        parser.error(f"{unknown[0]!r}; a form is one of {', '.join(FORMS)}")
    num_broken = 0
    forms = [name for name in given.forms or FORMS if given.forms or not _is_left_out(name)]
    with storage() if "s3" in forms else nullcontext():  # before the first process is forked
        for name in forms:
            with tempfile.TemporaryDirectory(prefix="embedlib-sources-") as folder:
                trial = Trial(name, Path(folder), given.documents, given.kills, given.seed)
                found = trial.run()
            print(found.line(), flush=True)
            num_broken += len(found.complaints)
    return 1 if num_broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
