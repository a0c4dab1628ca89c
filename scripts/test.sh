#!/usr/bin/env bash
# Set up, then run the default tests, one process per core; arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh dev
# Test processes share the cores, so each computes with one thread; idle threads do not spin.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
# The processes that tests start would compile the package again and again.
unset PYTHONDONTWRITEBYTECODE
exec .venv/bin/python -m pytest --numprocesses auto "$@"
