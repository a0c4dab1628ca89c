"""The audit's whole product: worst differences from the plain reference, per architecture.

    PYTHONPATH=. .venv/bin/python bench/audit_steps.py docs/audit.md

With --sample N it runs the sample of seed N instead, and prints.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from audit.steps import (
    GRADIENT_BOUND,
    LOSS_BOUND,
    WEIGHT_BOUND,
    Case,
    Difference,
    all_cases,
    compare,
    faults,
    sample_cases,
)

BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
Measured = list[tuple[Case, Difference]]


def measure(cases: Sequence[Case], processes: int) -> Measured:
    """Run all cases, those of one family in one process."""
    by_family = [list(group) for _, group in groupby(cases, key=lambda case: case.family.name)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        asked = [[all_cases().index(case) for case in group] for group in by_family]
        return [
            pair
            for group in zip(by_family, pool.map(_run, asked), strict=True)
            for pair in zip(*group, strict=True)
        ]


def _run(numbers: Sequence[int]) -> list[Difference]:
    """Run the cases of these numbers, and report each on stderr."""
    every, done = all_cases(), []
    for case in (every[number] for number in numbers):
        began = time.perf_counter()
        with TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            os.environ["SUREFIT_CACHE"] = f"{folder}/cache"
            found = compare(case, Path(folder))
        wrong = "; ".join(faults(found, case)) or "ok"
        line = f"{case!s:64} loss {found.loss:.1e}  weight {found.weight:.1e}  "
        line += f"gradient {found.gradient:.1e}  {time.perf_counter() - began:.1f} s  {wrong}"
        print(line, file=sys.stderr, flush=True)
        done.append(found)
    return done


def table(measured: Measured) -> str:
    """A row per family, with the worst of its cases."""
    lines = [
        "| model | task | cases | layouts | loss | weight | gradient |",
        "| --- | --- | ---: | --- | ---: | ---: | ---: |",
    ]
    for family in dict.fromkeys(case.family for case, _ in measured):
        found = [difference for case, difference in measured if case.family is family]
        layouts = ", ".join(sorted({each.rows for each in found}))
        worst = [max(getattr(d, n) for d in found) for n in ("loss", "weight", "gradient")]
        shown = " | ".join(f"{value:.1e}" if value else "0" for value in worst)
        lines.append(f"| {family.name} | {family.task} | {len(found)} | {layouts} | {shown} |")
    bounds = f"{LOSS_BOUND:.0e} | {WEIGHT_BOUND:.0e} or gradient | {GRADIENT_BOUND:.0e}"
    wrong = sum(bool(list(faults(found, case))) for case, found in measured)
    lines.append(f"| **bound** | | {len(measured)} | {wrong} out of bounds | {bounds} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and put the table between the marks of the page."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("page", nargs="?", type=Path)
    options.add_argument("--sample", type=int)
    options.add_argument("--processes", type=int, default=2)
    asked = options.parse_args()
    cases = all_cases() if asked.sample is None else sample_cases(asked.sample)
    measured = measure(cases, asked.processes)
    made = table(measured)
    print(made)
    if asked.page is not None:
        before, rest = asked.page.read_text(encoding="utf-8").split(BEGIN)
        after = rest.split(END)[1]
        asked.page.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
