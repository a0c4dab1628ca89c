"""How long `surefit --help` takes, beside an empty Python process, alternating the two.

python bench/startup.py [ROUNDS]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

CONTENDERS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "surefit --help": [sys.executable, "-m", "surefit", "--help"],
}


def main() -> None:
    """Print the median and the spread of each."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(rounds):
        for name, command in CONTENDERS.items():
            began = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            seconds[name].append(time.perf_counter() - began)
    for name, measured in seconds.items():
        low, high = min(measured), max(measured)
        print(f"{name:<16}{statistics.median(measured):.3f} s ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
