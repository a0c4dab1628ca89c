"""Which rows differ from those that a run was begun with, as far as the cache still has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import xxhash

from surefit.data.cache_entry import entry_folder, is_sound
from surefit.encode.store import Store
from surefit.pipeline.job import Job

SHOWN_ROWS = 3

Numbered = tuple[int, int]
"""The number of a row in the data, and the hash of what it is encoded to."""


def describe_changed_rows(
    stored: Mapping[str, Any], job: Job, sides: Sequence[str] = ("train", "validation")
) -> str:
    """What differs between the rows of a run's plan and those of a new Job.

    A row that changed may also have moved from training to validation; so with both `sides`, they
    are compared together.
    """
    names = stored.get("stores") or {}
    folders = [entry_folder("encoded", names[side]) for side in sides if side in names]
    if not folders or not all(is_sound(folder) for folder in folders):
        return "The cache no longer has the rows it was begun with, so they cannot be compared."
    now = {"train": job.train, "validation": job.validation}
    old = sorted(chain(*(_numbered(Store(folder)) for folder in folders)))
    new = sorted(chain(*(_numbered(now[side]) for side in sides)))
    return describe_difference(old, new) or (
        "No row of the data differs: the rows are encoded otherwise than then, or split otherwise "
        "(another tokenizer, template, or code of the task)."
    )


def describe_difference(old: Sequence[Numbered], new: Sequence[Numbered]) -> str:
    """The rows that differ between two versions of the data; empty if none does.

    >>> describe_difference([(0, 7), (1, 8), (2, 9)], [(0, 7), (1, 5), (2, 9)])
    '1 row changed: row 1.'
    """
    shortest = min(len(old), len(new))
    same = 0
    while same < shortest and old[same][1] == new[same][1]:
        same += 1
    at_end = 0
    while at_end < shortest - same and old[-1 - at_end][1] == new[-1 - at_end][1]:
        at_end += 1
    before, after = old[same : len(old) - at_end], new[same : len(new) - at_end]
    if len(before) == len(after):
        pairs = zip(before, after, strict=True)
        return _listed("changed", [row for (_, a), (row, b) in pairs if a != b])
    if not before:
        return _listed("added", [row for row, _ in after])
    if not after:
        return _listed("removed", [row for row, _ in before])
    return (
        f"Rows {after[0][0]} to {after[-1][0]} differ: there were {len(before):,} rows there, and "
        f"now there are {len(after):,}."
    )


def _listed(what: str, rows: Sequence[int]) -> str:
    if not rows:
        return ""
    shown = ", ".join(map(str, rows[:SHOWN_ROWS])) + (", …" if len(rows) > SHOWN_ROWS else "")
    return f"{len(rows):,} row{'s' * (len(rows) > 1)} {what}: row{'s' * (len(rows) > 1)} {shown}."


def _numbered(store: Store) -> list[Numbered]:
    """Each row of the data with the hash of its encoded columns, in the order of the data."""
    digests: dict[int, Any] = {}
    for place in range(len(store)):
        if store.copy[place] == 0:
            digest = digests.setdefault(int(store.source_row[place]), xxhash.xxh3_64())
            for value in store.row(place).values():
                digest.update(f"{value.shape}".encode() + value.tobytes())
    return sorted((row, digest.intdigest()) for row, digest in digests.items())
