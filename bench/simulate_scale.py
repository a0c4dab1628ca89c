"""Plans for up to a billion rows and 8,192 processes: time, memory, balance and cost of a resume.

python bench/simulate_scale.py [--rows N ...] [--processes N ...] [--folder DIR]
                               [--layout NAME] [--page docs/scale-simulation.md]

The planning code is that of `surefit check`; only the lengths of the rows are made up, in a
memory-mapped file in DIR that is removed afterwards (4 bytes a row). Memory is what Python and
NumPy allocate; pages of the mapped file are not counted, because the system drops them when memory
is short. Time is processor time of one core, with the tracing of memory.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from real_runs import machine  # noqa: E402

ROWS = (10**6, 10**7, 10**8, 10**9)
PROCESSES = (8, 64, 512, 8192)
BATCH_SIZE = 8
LAYOUTS: dict[str, dict[str, Any]] = {
    "padding-free, max_tokens=4096": {"max_tokens": 4096, "padding_free": True},
    "padded, 8 × 4 rows per process": {"grad_accum": 4},
}
DRAWN_ROWS = 1 << 20
ROW_BYTES, MEMORY_BYTES = 1_200, 16 * 10**9
"""Size of a row in the Store, and the memory that decides whether rows are read in blocks."""


@dataclass(frozen=True)
class Case:
    """What is planned."""

    rows: int
    processes: int
    layout: str


@dataclass(frozen=True)
class Cost:
    """What planning and resuming took, and how well processes share the steps."""

    num_steps: int
    block_rows: int
    plan_seconds: float
    plan_bytes: int
    imbalance: float
    seek_seconds: float
    seek_bytes: int


def write_lengths(path: Path, num_rows: int) -> None:
    """Lengths of text: log-normal, from 8 to 2,048 tokens, half below 100; longer towards the end.

    The drift stands for data whose files differ. A million lengths are drawn and repeated.
    """
    drawn = np.random.default_rng(0).lognormal(4.5, 0.8, DRAWN_ROWS).astype(np.float32)
    with path.open("wb") as file:
        for start in range(0, num_rows, DRAWN_ROWS):
            drift = np.float32(1 + 0.2 * start / num_rows)
            block = (drawn[: num_rows - start] * drift).clip(8, 2048).astype(np.int32)
            block.tofile(file)


def make_batches(lengths: Any, case: Case) -> Any:
    """The order as planning makes it."""
    from surefit.batches.order import Batches
    from surefit.batches.permutation import block_rows

    settings = {"grad_accum": 1, "max_tokens": None, "padding_free": False, **LAYOUTS[case.layout]}
    sizes = (BATCH_SIZE, settings["grad_accum"], case.processes, settings["max_tokens"])
    batches = Batches(lengths, 0, *sizes)
    blocks = block_rows(case.rows, case.rows * ROW_BYTES, MEMORY_BYTES)
    return replace(batches, block_rows=blocks, padding_free=settings["padding_free"])


def plan(lengths: Any, case: Case) -> tuple[int, float]:
    """All that a plan computes from the lengths: steps in an epoch, and the imbalance."""
    from surefit.plan.plan import batches_dict

    batches = make_batches(lengths, case)
    batches_dict(batches)
    batches.padding_share()
    batches.worst_rows(1)
    batches.median_rows()
    batches.total_positions()
    return batches.steps_per_epoch, batches.imbalance()


def seek(lengths: Any, case: Case) -> None:
    """The rows of one process in the step in the middle, as the first step of a resumed run."""
    from surefit.training.schedule import places

    batches = make_batches(lengths, case)
    num_steps = batches.steps_per_epoch
    place = next(places(batches, num_steps // 2, num_steps))
    batches.share(place.epoch, place.index, case.processes // 2)
    batches.step_rows(place.epoch, place.index)


def measure(work: Callable[[], Any]) -> tuple[Any, float, int]:
    """Result, processor seconds and the most memory; tracing it makes Python code slower."""
    forget_orders()
    tracemalloc.start()
    began = time.process_time()
    result = work()
    seconds = time.process_time() - began
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return result, seconds, peak


def forget_orders() -> None:
    """Empty the caches, as in a new process."""
    from surefit.batches import cut_steps, order

    for module in (cut_steps, order):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def run_case(case: Case, file: Path) -> Cost:
    """Plan and resume one case."""
    from surefit.batches.cut_steps import row_order
    from surefit.inputs.store import map_array

    lengths = map_array(file, np.dtype(np.int32))
    batches = make_batches(lengths, case)
    (num_steps, imbalance), plan_seconds, plan_bytes = measure(lambda: plan(lengths, case))
    _, seek_seconds, seek_bytes = measure(lambda: seek(lengths, case))
    blocks = row_order(batches, 0).block_rows
    return Cost(num_steps, blocks, plan_seconds, plan_bytes, imbalance, seek_seconds, seek_bytes)


def simulate(
    rows: Sequence[int], processes: Sequence[int], layouts: Sequence[str], folder: Path
) -> Iterator[tuple[Case, Cost]]:
    """Each case with its cost; the file of lengths is removed when its cases are done."""
    for num_rows in rows:
        file = folder / f"lengths-{num_rows}"
        try:
            write_lengths(file, num_rows)
            for count, layout in product(processes, layouts):
                case = Case(num_rows, count, layout)
                yield case, run_case(case, file)
        finally:
            file.unlink(missing_ok=True)


def tables(results: list[tuple[Case, Cost]]) -> str:
    """A table per layout."""
    lines = [
        f"Machine: {machine()}, shared with other work. numpy {np.__version__}.",
        "",
    ]
    for layout in dict.fromkeys(case.layout for case, _ in results):
        lines += [
            f"### {layout[0].upper()}{layout[1:]}",
            "",
            "| rows | processes | steps per epoch | rows in a block | time to plan "
            "| memory to plan | per row | waiting | time to seek | memory to seek |",
            "| ---: " * 10 + "|",
        ]
        for case, cost in results:
            if case.layout == layout:
                lines.append(f"| {' | '.join(_cells(case, cost))} |")
        lines.append("")
    return "\n".join(lines)


def _cells(case: Case, cost: Cost) -> list[str]:
    return [
        f"{case.rows:,}",
        f"{case.processes:,}",
        f"{cost.num_steps:,}",
        f"{cost.block_rows}",
        f"{cost.plan_seconds:.1f} s",
        f"{cost.plan_bytes / 1e6:.0f} MB",
        f"{cost.plan_bytes / case.rows:.2f} B",
        f"{cost.imbalance:.1%}",
        f"{cost.seek_seconds:.2f} s",
        f"{cost.seek_bytes / 1e6:.0f} MB",
    ]


def main() -> int:
    """Simulate, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--processes", type=int, nargs="*", default=PROCESSES)
    parser.add_argument("--folder", type=Path, help="where the file of lengths is, for a while")
    parser.add_argument("--page", type=Path, help="write the tables here instead of to stdout")
    parser.add_argument("--layout", default="", help="only layouts whose name contains this")
    args = parser.parse_args()
    layouts = [name for name in LAYOUTS if args.layout in name]
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        found = []
        for case, cost in simulate(args.rows, args.processes, layouts, Path(folder)):
            print(case, cost, file=sys.stderr, flush=True)
            found.append((case, cost))
    if args.page is None:
        print(tables(found))
    else:
        write_page(args.page, tables(found))
    return 0


MARK = "<!-- tables: made by bench/simulate_scale.py -->\n"


def write_page(page: Path, text: str) -> None:
    """Replace what follows the mark in the page."""
    before, mark, _ = page.read_text("utf-8").partition(MARK)
    if not mark:
        raise SystemExit(f"{page} has no line {MARK.strip()}")
    page.write_text(f"{before}{MARK}{text}", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
