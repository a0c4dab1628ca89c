"""The shape of texts: cut at one length, without a letter, one word over and over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.checks.shapes import ODD_SHAPE
from surefit.data.column_types import is_text
from surefit.data.split import sample_rows
from surefit.data.table import Table
from surefit.findings import Finding

Array = npt.NDArray[Any]
MOST_ROWS, FEWEST_ROWS = 4_000, 60
FEWEST_HITS, LEAST_SHARE, MOST_SHARE = 3, 0.01, 0.7
PILE = 8
"""How many times more texts have the greatest length than each length just below it."""
UNKNOWN, BROKEN = 2.0, 0.2
"""How much more often the last word is unknown, and how often at least, if texts were cut."""
SHOWN = 3
REPEATED, VARIETY = 8, 0.25
"""Words that a text must have, and its share of different ones, if it repeats itself."""


def check_text_shape(table: Table, rows: Array, column: str) -> Iterator[Finding]:
    """Yield what is odd about the texts of a column, on a keyed sample."""
    if column not in table.columns or not is_text(table.column_type(column)):
        return
    chosen = np.sort(np.asarray(rows)[sample_rows(len(rows), MOST_ROWS, 0)])
    texts = [str(row[column] or "").rstrip() for row in table.rows(chosen.tolist())]
    if len(texts) < FEWEST_ROWS or column in table.files:
        return
    words = [text.split() for text in texts]
    usual = np.median([len(each) for each in words])
    tests = (
        (_cut(texts, words), "end at one length, most of them within a word"),
        (
            [n for n, text in enumerate(texts) if text and not any(map(str.isalnum, text))],
            "have neither a letter nor a digit",
        ),
        (
            [
                n
                for n, each in enumerate(words)
                if len(each) >= REPEATED and len({*each}) <= VARIETY * len(each)
            ],
            "repeat a few words over and over",
        ),
        (
            [
                n
                for n, each in enumerate(words)
                if len(each) >= REPEATED and each[: len(each) // 2] == each[len(each) // 2 :]
            ],
            "hold the same text twice",
        ),
        (
            [
                n
                for n, each in enumerate(words)
                if len(each) == 1 and each[0].isdigit() and usual >= REPEATED
            ],
            "are a number alone",
        ),
    )
    for hits, what in tests:
        if not max(FEWEST_HITS, LEAST_SHARE * len(texts)) <= len(hits) <= MOST_SHARE * len(texts):
            continue
        places = [table.where(int(chosen[n])) for n in hits[:SHOWN]]
        shown = ", ".join(
            f"row {place['row']} ({texts[n][-30:]!r})"
            for place, n in zip(places, hits, strict=False)
        )
        yield ODD_SHAPE.finding(
            f"column {column!r}: {len(hits):,} of {len(texts):,} texts looked at {what}: {shown}.",
            places[0],
            fix="Get the whole texts, or drop these rows.",
            column=column,
        )


def _cut(texts: Sequence[str], words: Sequence[Sequence[str]]) -> list[int]:
    """Return texts of the greatest length, if many have it and end in words that nobody uses."""
    sizes = np.array([len(text) for text in texts])
    top = int(sizes.max())
    at_top = sizes >= top - 1
    near = (sizes >= 0.9 * top) & ~at_top
    usual = near.sum() / max(1.0, 0.1 * top)
    if top < 8 or at_top.sum() < PILE * max(usual, 0.5):
        return []
    known = Counter(word for each in words for word in each[:-1])
    ends = np.array([text[-1:].isalnum() for text in texts])
    unknown = ends & [bool(each) and each[-1] not in known for each in words]
    own, others = unknown[at_top].mean(), unknown[~at_top].mean() if (~at_top).any() else 0.0
    broken = own >= max(BROKEN, UNKNOWN * others)
    open_ended = ends[at_top].mean() >= 0.8 and ends[~at_top].mean() <= 0.4
    return np.flatnonzero(at_top).tolist() if broken or open_ended else []
