"""Damages one file of the cache at a time, and requires the next check to be as the first."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import surefit
from builders import MeanPool, echo_rows, feature_rows, save_ragged, write_jsonl
from surefit.data import cache_entry
from surefit.data.cache import DAMAGED_ENTRY, cache_folder, release_entries

KINDS = ("flip a bit", "truncate", "delete", "fill with zeros", "append")


def damage(path: Path, kind: str, seed: int) -> None:
    """Damage a file in one way, at a place that the seed chooses."""
    choose = random.Random(seed)
    content = bytearray(path.read_bytes())
    if kind == "delete":
        path.unlink()
        return
    if kind == "append" or not content:
        content += b"\0garbage"
    elif kind == "flip a bit":
        content[choose.randrange(len(content))] ^= 1 << choose.randrange(8)
    elif kind == "truncate":
        del content[choose.randrange(len(content)) :]
    else:
        start = choose.randrange(len(content))
        content[start : start + 4096] = b"\0" * len(content[start : start + 4096])
    with path.open("r+b") as file:  # in place: the file keeps its inode
        file.write(content)
        file.truncate()


def prepare(folder: Path) -> None:
    """Data of two formats, which fill the cache with entries of every kind."""
    write_jsonl(folder / "rows.jsonl", echo_rows(60))
    save_ragged(folder / "features.npz", feature_rows(40))


def outcome(folder: Path) -> tuple[Any, ...]:
    """What a check of both sets finds and would train on; the peak has what this process holds."""
    found: list[Any] = []
    for data, model in (("rows.jsonl", "tiny:llama"), ("features.npz", MeanPool())):
        plan = surefit.check(data=str(folder / data), model=model)
        told = [f for f in plan.findings if f.code != DAMAGED_ENTRY.code]
        assert plan.job is not None, [f.message for f in plan.findings]
        for store in (plan.job.train, plan.job.validation):
            columns = [store.values(name).tobytes() for name in store.fields]
            found.append((store.key, columns, np.asarray(store.lengths).tolist()))
        found.append((told, plan.ledger))
    return tuple(found)


def as_new_process() -> None:
    """Forget what this process knows of the cache."""
    release_entries()
    cache_entry._known.clear()


def run_sample(folder: Path, seeds: Iterable[int]) -> list[str]:
    """Damage a file for each seed; what went wrong, as text."""
    expected, wrong = outcome(folder), []
    for seed in seeds:
        as_new_process()
        files = sorted(path for path in cache_folder().rglob("*") if path.is_file())
        choose = random.Random(seed)
        path, kind = choose.choice(files), KINDS[seed % len(KINDS)]
        damage(path, kind, seed)
        shown = f"{kind} in {path.relative_to(cache_folder())}"
        try:
            same = outcome(folder) == expected
        except Exception as error:
            wrong.append(f"seed {seed}: {shown}: {type(error).__name__}: {error}")
            continue
        if not same:
            wrong.append(f"seed {seed}: {shown}: the plan differs")
    return wrong
