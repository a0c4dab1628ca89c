"""Whether the order of batches costs learning: validation losses against a plain shuffle.

python bench/order.py [--blocks] [--seeds 6] [--only NAME ...] [--results FILE]
                      [--page docs/order.md]

Each data set is trained with each order and the same seeds, in micro-batches of 8 rows and in steps
of 8 × 4. Reported are the validation loss after one epoch and at the end, as means over the seeds,
and the mean difference from a plain shuffle of padded rows with its standard error. An order is
worse if the difference is more than twice its standard error. Exits with 1 if a default is. Losses
are kept run by run in FILE, so that an interrupted call goes on.

With --blocks, the order of data that exceeds memory is compared: blocks of consecutive rows, scaled
down to these data sets. Their rows are sorted by class or length first, the worst case for blocks.
The page keeps its other parts.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from real_runs import machine  # noqa: E402

DATA = Path(os.environ.get("SUREFIT_SHARED", ROOT.parent / "shared")) / "data"
SHAPES = ((8, 1), (8, 4))
EPOCHS = 3
PLAIN = {"order": "shuffle", "padding_free": "off"}
ORDERS: dict[str, dict[str, Any]] = {
    "default": {},
    "grouped": {"order": "grouped", "padding_free": "off"},
}
BLOCK_ORDERS = ("blocks",)
DEFAULTS = ("default", "blocks")
BLOCK_ROWS = 16
"""Rows of a block here; the order makes it fewer, so that a window has 4 blocks a row of a step."""
WINDOW_BLOCKS = 16


@dataclass(frozen=True)
class Set:
    """A data set with what trains on it."""

    name: str
    rows: Callable[[], list[dict[str, Any]]]
    model: str
    task: str
    lr: float


def some_rows(file: str, count: int) -> Callable[[], list[dict[str, Any]]]:
    """The first rows of a file of the shared data."""

    def read() -> list[dict[str, Any]]:
        from surefit.data.open_data import open_table

        return list(islice(open_table(str(DATA / file)).rows(), count))

    return read


def sentence_pairs(count: int) -> Callable[[], list[dict[str, Any]]]:
    """The first sentence pairs of multi30k."""

    def read() -> list[dict[str, Any]]:
        english, german = (DATA / "multi30k" / f"train.{e}.gz" for e in ("en", "de"))
        with gzip.open(english, "rt") as a, gzip.open(german, "rt") as b:
            pairs = islice(zip(a, b, strict=True), count)
            return [{"source": one.strip(), "target": two.strip()} for one, two in pairs]

    return read


def questions(count: int) -> Callable[[], list[dict[str, Any]]]:
    """The first questions of TREC with their coarse classes."""

    def read() -> list[dict[str, Any]]:
        with (DATA / "trec" / "TREC.train").open(encoding="latin-1") as lines:
            pairs = (line.strip().split(" ", 1) for line in islice(lines, count))
            return [{"text": text, "label": label.split(":")[0]} for label, text in pairs]

    return read


SETS = (
    Set("sms-spam", some_rows("sms-spam/sms.tsv", 1200), "tiny:bert", "text-classification", 1e-3),
    Set(
        "japanese-vowels",
        some_rows("japanese-vowels/JapaneseVowels_TRAIN.ts", 270),
        "tiny:bert",
        "feature-classification",
        1e-3,
    ),
    Set("multi30k", sentence_pairs(600), "tiny:t5", "seq2seq", 3e-3),
)


def sorted_rows(
    read: Callable[[], list[dict[str, Any]]], key: Callable[[dict[str, Any]], Any]
) -> Callable[[], list[dict[str, Any]]]:
    """Rows in the order of a key."""
    return lambda: sorted(read(), key=key)


BLOCK_SETS = (
    Set(
        "sms-spam by class",
        sorted_rows(some_rows("sms-spam/sms.tsv", 1600), lambda row: row["label"]),
        "tiny:bert",
        "text-classification",
        1e-3,
    ),
    Set(
        "trec by class",
        sorted_rows(questions(1600), lambda row: row["label"]),
        "tiny:bert",
        "text-classification",
        1e-3,
    ),
    Set(
        "multi30k by length",
        sorted_rows(sentence_pairs(1000), lambda row: len(row["source"])),
        "tiny:t5",
        "seq2seq",
        3e-3,
    ),
)


@contextmanager
def small_blocks() -> Iterator[None]:
    """Every run in blocks, and windows of few rows."""
    from surefit.batches import cut_steps
    from surefit.plan import layout

    own = cut_steps.WINDOW_BLOCKS, layout.block_rows
    cut_steps.WINDOW_BLOCKS = WINDOW_BLOCKS
    layout.block_rows = lambda *_: BLOCK_ROWS
    try:
        yield
    finally:
        cut_steps.WINDOW_BLOCKS, layout.block_rows = own


@contextmanager
def plain_shuffle() -> Iterator[None]:
    """Rows in the order of torch's `randperm`, cut as they come, instead of surefit's order."""
    import torch

    from surefit.batches.cut_steps import RowOrder

    def rows(order: RowOrder, first: int, end: int) -> Any:
        chance = torch.Generator().manual_seed(1_000 * order.seed + order.epoch)
        return torch.randperm(order.num_rows, generator=chance).numpy()[first:end]

    own, RowOrder.rows = RowOrder.rows, rows  # type: ignore[method-assign]
    try:
        yield
    finally:
        RowOrder.rows = own  # type: ignore[method-assign]


def losses(data: Set, shape: tuple[int, int], seed: int, name: str) -> list[float]:
    """The validation loss after each epoch."""
    import surefit

    orders = {"plain": plain_shuffle, "blocks": small_blocks}
    order = orders[name]() if name in orders else nullcontext()
    with tempfile.TemporaryDirectory() as folder, order:
        run = surefit.train(
            data=data.rows(),
            model=data.model,
            task=data.task,
            lr=data.lr,
            epochs=EPOCHS,
            batch_size=shape[0],
            grad_accum=shape[1],
            eval_share=0.25,
            generate={"rows": 0},
            seed=seed,
            output=f"{folder}/run",
            **(PLAIN if name == "plain" else ORDERS.get(name, {})),
        )
        return [event["metrics"]["loss"] for event in run.history if event["event"] == "eval"]


@dataclass(frozen=True)
class Compared:
    """Losses of one order and of a plain shuffle, by seed, after one epoch or at the end."""

    plain: list[float]
    own: list[float]

    @property
    def difference(self) -> float:
        """The mean of what the order adds to the loss."""
        return statistics.fmean(self._differences)

    @property
    def error(self) -> float:
        """The standard error of the difference."""
        if len(self.own) < 2:
            return float("inf")
        return statistics.stdev(self._differences) / len(self.own) ** 0.5

    @property
    def worse(self) -> bool:
        """Whether the loss is higher by more than chance explains."""
        return self.difference > 2 * self.error and self.difference > 1e-3

    @property
    def _differences(self) -> list[float]:
        return [own - plain for own, plain in zip(self.own, self.plain, strict=True)]

    def __str__(self) -> str:
        verdict = " **worse**" if self.worse else ""
        mean = statistics.fmean(self.own)
        return f"{mean:.3f} ({self.difference:+.3f} ± {self.error:.3f}{verdict})"


def compare(
    sets: tuple[Set, ...], orders: tuple[str, ...], seeds: int, results: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each data set and shape with the losses of every seed, by order."""
    lines = results.read_text("utf-8").splitlines() if results.is_file() else []
    known = {tuple(key): values for key, values in map(json.loads, lines)}
    for data, shape in product(sets, SHAPES):
        found: dict[str, list[list[float]]] = {name: [] for name in ("plain", *orders)}
        for seed, name in product(range(seeds), found):
            key = (data.name, *shape, seed, name)
            if key not in known:
                known[key] = losses(data, shape, seed, name)
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([key, known[key]]) + "\n")
            found[name].append(known[key])
        size = f"{shape[0]} × {shape[1]}" if shape[1] > 1 else str(shape[0])
        yield f"{data.name}, {data.model}, {size}", found


def tables(results: list[tuple[str, dict[str, Any]]], seeds: int) -> tuple[str, bool]:
    """The tables, and whether no order that is a default is worse than a plain shuffle."""
    lines = [f"{seeds} seeds. Machine: {machine()}.", ""]
    fine = True
    for place, title in ((0, "After one epoch"), (-1, "At the end")):
        orders = [name for name in results[0][1] if name != "plain"]
        lines += [
            f"### {title}",
            "",
            f"| data, model, batch | plain shuffle | {' | '.join(orders)} |",
        ]
        lines.append("| --- " * (len(orders) + 2) + "|")
        for label, found in results:
            plain = [run[place] for run in found["plain"]]
            made = {name: Compared(plain, [run[place] for run in found[name]]) for name in orders}
            fine &= not any(made[name].worse for name in made if name in DEFAULTS)
            cells = [label, f"{statistics.fmean(plain):.3f}", *map(str, made.values())]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines), fine


def write_part(page: Path, name: str, text: str) -> None:
    """Replace what is between the marks of a part of the page."""
    begin, end = f"<!-- {name}: made by bench/order.py -->\n", f"<!-- end of {name} -->\n"
    before, _, rest = page.read_text("utf-8").partition(begin)
    _, _, after = rest.partition(end)
    if not rest or end not in rest:
        raise SystemExit(f"{page} has no part {name!r} between {begin.strip()} and {end.strip()}")
    page.write_text(f"{before}{begin}{text}{end}{after}", "utf-8")


def main() -> int:
    """Compare, and write the page."""
    from surefit.data.cache import cache_folder

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", action="store_true", help="compare the order in blocks")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--only", nargs="*", default=[], help="data sets whose name contains one")
    parser.add_argument("--results", type=Path, default=cache_folder() / "order.jsonl")
    parser.add_argument("--page", type=Path, help="write the page here instead of to stdout")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    sets, orders = (BLOCK_SETS, BLOCK_ORDERS) if args.blocks else (SETS, tuple(ORDERS))
    sets = tuple(
        data for data in sets if not args.only or any(part in data.name for part in args.only)
    )
    text, fine = tables(list(compare(sets, orders, args.seeds, args.results)), args.seeds)
    if args.page is None:
        print(text)
    else:
        write_part(args.page, "blocks" if args.blocks else "orders", text)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
