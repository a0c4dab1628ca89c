"""One contender of one part, in a process of its own; prints its figures as one JSON object.

python bench/contend.py PART CONTENDER [--quick] [--rows N] [--cpu-time]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))


def train(part: str, contender: str, quick: bool, num_rows: int | None = None) -> dict[str, Any]:
    """Train the part's job; speed, peak memory of this process, and what was learned."""
    from dataclasses import replace

    from trainers import JOBS, TRAINERS, held_out_loss

    job = JOBS[part](quick)
    job = replace(job, rows=job.rows[:num_rows])
    at_start = peak_bytes()
    seconds, model = TRAINERS[contender](job)
    peak = peak_bytes()
    return {
        "tokens_per_second": job.num_tokens / seconds,
        "rows_per_second": len(job.rows) / seconds,
        "seconds": seconds,
        "tokens": job.num_tokens,
        "targets": job.num_targets,
        "peak_bytes": peak,
        "peak_bytes_at_start": at_start,
        "held_out_loss": held_out_loss(job, model),
    }


def peak_bytes() -> int:
    """The most memory this process has had resident."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("needs /proc/self/status")


def main() -> None:
    """Run it, with everything else that is said sent to stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part")
    parser.add_argument("contender")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", type=int, help="train on the first N rows of the job only")
    parser.add_argument("--cpu-time", action="store_true", help="CPU seconds, not wall-clock time")
    args = parser.parse_args()
    if args.cpu_time:
        import trainers

        trainers.now = time.process_time
    if args.part != "tokenising":  # which is measured as a user has it
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from small import SMALL

    with contextlib.redirect_stdout(sys.stderr):
        measure = SMALL.get(args.part, {}).get(args.contender)
        if measure:
            found = measure(args.quick)
        else:
            found = train(args.part, args.contender, args.quick, args.rows)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
