#!/usr/bin/env bash
# Set up, then run the default tests; arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh dev
exec .venv/bin/python -m pytest "$@"
