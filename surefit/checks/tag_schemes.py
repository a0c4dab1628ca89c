"""Tags of words: the scheme that they follow, rows that break it, tags that are not at their words.

The scheme is what nearly all rows follow: B and I, or with L and U (or E and S) for ends and single
words. What the words of other rows are tagged as says whether tags were moved against their words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.checks.shapes import SHOWN, report
from surefit.data.split import sample_rows
from surefit.data.table import Table
from surefit.findings import Finding, rule

TAGS_UNLIKE = rule(
    "SF228",
    "warning",
    "tags that break the scheme of the others",
    why="The model learns two ways to tag one thing, and the entities of such rows count as other "
    "ones in entity_f1.",
    fix="Write the tags of all rows in one scheme, and at their own words.",
    accept="The tags are trained on as they are.",
)

Array = npt.NDArray[Any]
MOST_ROWS, FEWEST_ENTITIES = 20_000, 40
SOME, USUAL = 0.01, 0.6
"""Shares of the entities from which a difference is reported, and up to which."""
ENDS = frozenset("LUES")
SURE, OWN = 4.0, 0.0
"""Logarithm of how much better tags must fit the words beside theirs."""


def check_tags(table: Table, rows: Array, words: str, tags: str) -> Iterator[Finding]:
    """Yield rows whose tags break the scheme, or fit the words beside theirs."""
    chosen = np.sort(np.asarray(rows)[sample_rows(len(rows), MOST_ROWS, 0)])
    read = [(row.get(words), row.get(tags)) for row in table.rows(chosen.tolist())]
    texts = [
        (int(number), [str(w) for w in said], [str(t) for t in known])
        for number, (said, known) in zip(chosen, read, strict=True)
        if said is not None and known is not None and len(said) == len(known)
    ]
    outside = Counter(tag for _, _, known in texts for tag in known).most_common(1)
    if not outside:
        return
    none = outside[0][0]
    starts = {n: _starts(known, none) for n, _, known in texts}
    num_entities = sum(map(len, starts.values()))
    if num_entities < FEWEST_ENTITIES:
        return
    kinds = {tag for _, _, known in texts for tag in known if tag != none}
    if sum(_prefix(tag) != "" for tag in kinds) >= 0.5 * len(kinds):
        yield from _check_scheme(table, texts, none, tags)
    yield from _check_places(table, texts, none, tags)


def _prefix(tag: str) -> str:
    return tag[0] if tag[1:2] in ("-", "_") and tag[0] in "BILUES" else ""


def _starts(known: Sequence[str], none: str) -> list[int]:
    return [n for n, tag in enumerate(known) if tag != none and (n == 0 or known[n - 1] == none)]


def _check_scheme(
    table: Table, texts: Sequence[tuple[int, list[str], list[str]]], none: str, column: str
) -> Iterator[Finding]:
    """Yield rows with entities that begin, end or are named in another way than the others."""
    tests: tuple[tuple[str, Callable[[Sequence[str], int, int], bool]], ...] = (
        ("begin with I", lambda known, a, b: _prefix(known[a]) == "I"),
        (
            "begin anew at each word, with no I",
            lambda known, a, b: b - a > 1 and len({*known[a:b]}) == 1 and _prefix(known[a]) == "B",
        ),
        ("have no prefix", lambda known, a, b: not _prefix(known[a])),
        (
            "have prefixes for ends or single words",
            lambda known, a, b: any(_prefix(tag) in ENDS for tag in known[a:b]),
        ),
    )
    spans = [
        (number, known, a, _end(known, a, none))
        for number, _, known in texts
        for a in _starts(known, none)
    ]
    for what, is_hit in tests:
        several = [each for each in spans if each[3] - each[2] > 1] if "anew" in what else spans
        hits = [(number, known[a:b]) for number, known, a, b in several if is_hit(known, a, b)]
        share = len(hits) / max(len(several), 1)
        if len(hits) < 4 or not SOME <= share <= USUAL:
            continue
        yield _found(table, f"of {len(several):,} entities {what}", hits, column)


def _end(known: Sequence[str], start: int, none: str) -> int:
    return next((n for n in range(start, len(known)) if known[n] == none), len(known))


def _found(
    table: Table, what: str, hits: Sequence[tuple[int, Sequence[str]]], column: str
) -> Finding:
    rows = np.array([number for number, _ in hits])
    quotes = [" ".join(known[:4]) for _, known in hits[:SHOWN]]
    what = f"column {column!r}: # {what}"
    return report(TAGS_UNLIKE, what, rows, table.where, quotes, TAGS_UNLIKE.fix, column)


def _check_places(
    table: Table, texts: Sequence[tuple[int, list[str], list[str]]], none: str, column: str
) -> Iterator[Finding]:
    """Yield rows whose tags fit the words one place before or after theirs."""
    tagged: Counter[str] = Counter()
    every: Counter[str] = Counter()
    for _, words, known in texts:
        every.update(words)
        tagged.update(w for w, tag in zip(words, known, strict=True) if tag != none)
    share = sum(tagged.values()) / max(sum(every.values()), 1)

    def odds(word: str, is_tagged: bool) -> float:
        hits, rest = tagged[word] - is_tagged, every[word] - tagged[word] - (not is_tagged)
        return float(np.log((hits + share) / (rest + 1 - share)) - np.log(share / (1 - share)))

    hits = []
    for number, words, known in texts:
        marked = np.array([tag != none for tag in known])
        if not marked.any() or marked.all():
            continue
        scores = np.array([odds(w, bool(m)) for w, m in zip(words, marked, strict=True)])
        own = float(scores[marked].sum())
        for step in (1, -1):
            moved = np.roll(marked, step)
            if own < OWN and float(scores[moved].sum()) - own > SURE:
                hits.append((number, known))
                break
    if len(hits) >= max(4, SOME * len(texts)):
        what = f"of {len(texts):,} rows have tags that fit the words beside theirs"
        yield _found(table, what, hits, column)
