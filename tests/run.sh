#!/usr/bin/env bash
# Runs the tests in their own virtual environment, .venv-tests. Arguments go to pytest:
#   bash tests/run.sh tests/cli -k encode
# Tests with a real Qdrant server run if there is a `qdrant` on the PATH, or the variable
# EMBEDLIB_TEST_QDRANT_BINARY or EMBEDLIB_TEST_QDRANT_URL names one (docs/qdrant.md); else they say
# why they are skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source .ci/venv.sh

make_venv .venv-tests index,parquet,documents,storage,watch,compile,qdrant,pgvector,pg-local,langchain,serve,otel test kernels
# Or each worker would rewrite the asserts of all tests in every run, which takes it ten seconds.
unset PYTHONDONTWRITEBYTECODE
# Now, on all cores: each worker would compile the same modules.
.venv-tests/bin/python -m compileall -q -j 0 embedlib integrations
.venv-tests/bin/python tests/rewrite_asserts.py || echo "Left to the workers, which take longer."
# One worker more than cores, since many tests wait for processes; in each numpy and torch would
# take all cores. nproc reads OMP_NUM_THREADS, too.
workers=$(($(env -u OMP_NUM_THREADS nproc) + 1))
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# worksteal: the tests that kill processes take half a minute each and must not come last together.
# What tests compile is theirs: it fills no user's cache, and every run starts like the first.
XDG_CACHE_HOME=$(mktemp -d)
export XDG_CACHE_HOME
trap 'rm -rf "$XDG_CACHE_HOME"' EXIT
.venv-tests/bin/python -m pytest -n "$workers" --maxprocesses 4 --dist worksteal "$@"
