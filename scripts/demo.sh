#!/usr/bin/env bash
# Set up, then run the main job on data it makes itself.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
exec .venv/bin/surefit demo
