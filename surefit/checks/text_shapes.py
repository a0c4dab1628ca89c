"""The shape of texts: cut at one length, without a letter, one word over and over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.checks.shapes import ODD_SHAPE, SHOWN, report
from surefit.data.column_types import is_text
from surefit.data.split import sample_rows
from surefit.data.table import Table
from surefit.findings import Finding

Array = npt.NDArray[Any]
MOST_ROWS, FEWEST_ROWS, MOST_CLASSES = 4_000, 60, 20
FEWEST_HITS, LEAST_SHARE, MOST_SHARE = 3, 0.01, 0.7
PILE = 8
"""How many times more texts have the greatest length than each length just below it."""
UNKNOWN, BROKEN = 2.0, 0.2
"""How much more often the last word is unknown, and how often at least, if texts were cut."""
REPEATED, VARIETY = 8, 0.25
"""Words that a text must have, and its share of different ones, if it repeats itself."""


TESTS: tuple[tuple[str, Callable[[str, Sequence[str]], bool]], ...] = (
    (
        "have neither a letter nor a digit",
        lambda text, words: bool(text) and not any(map(str.isalnum, text)),
    ),
    (
        "repeat a few words over and over",
        lambda text, words: len(words) >= REPEATED and len({*words}) <= VARIETY * len(words),
    ),
    (
        "hold the same text twice",
        lambda text, words: (
            len(words) >= REPEATED and words[: len(words) // 2] == words[len(words) // 2 :]
        ),
    ),
)
OF_INPUTS = ("are a number alone", lambda text, words: len(words) == 1 and text.isdigit())
"""What only an input of many words should not be."""


def check_text_shape(
    table: Table, rows: Array, column: str, is_input: bool, label: str | None
) -> Iterator[Finding]:
    """Yield what is odd about the texts of a column, on a keyed sample; of each class too."""
    if column not in table.columns or not is_text(table.column_type(column)):
        return
    chosen = np.sort(np.asarray(rows)[sample_rows(len(rows), MOST_ROWS, 0)])
    read = [*table.rows(chosen.tolist())]
    texts = [str(row[column] or "").rstrip() for row in read]
    if len(texts) < FEWEST_ROWS or column in table.files:
        return
    words = [text.split() for text in texts]
    is_prose = is_input and np.median([len(each) for each in words]) >= REPEATED
    found = [
        (what, [n for n, pair in enumerate(zip(texts, words, strict=True)) if test(*pair)])
        for what, test in (*TESTS, *((OF_INPUTS,) if is_prose else ()))
    ]
    classes = [str(row.get(label or "", "")) for row in read]
    for name in [None, *(n for n, count in Counter(classes).items() if count < len(read))]:
        of = [n for n, each in enumerate(classes) if name in (None, each)]
        cut = [of[n] for n in _cut([texts[n] for n in of], [words[n] for n in of])]
        beside = f", all of them in the class {name!r}" if name is not None else ""
        found.append((f"end at one length, most of them within a word{beside}", cut))
        if cut or len({*classes}) > MOST_CLASSES:
            break
    for what, hits in found:
        if not max(FEWEST_HITS, LEAST_SHARE * len(texts)) <= len(hits) <= MOST_SHARE * len(texts):
            continue
        yield report(
            ODD_SHAPE,
            f"column {column!r}: # of {len(texts):,} texts looked at {what}",
            chosen[hits],
            table.where,
            [texts[n][-30:] for n in hits[:SHOWN]],
            "Get the whole texts, or drop these rows.",
            column,
        )


def _cut(texts: Sequence[str], words: Sequence[Sequence[str]]) -> list[int]:
    """Return texts of the greatest length, if many have it and end in words that nobody uses.

    The texts of one class may be cut off alone.
    """
    if len(texts) < FEWEST_ROWS:
        return []
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
    open_ended = ends[at_top].mean() >= 0.8 and ends[~at_top].sum() <= 0.4 * (~at_top).sum()
    return np.flatnonzero(at_top).tolist() if broken or open_ended else []
