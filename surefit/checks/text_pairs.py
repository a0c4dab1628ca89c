"""Two texts that belong together: does each fit its partner, and is each on its own side?

What two texts share (rare words, numbers, names, length) is compared with what a text shares with
its neighbour's partner. A predictor of the side, on pieces of words, reads each cell.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.checks.shapes import SHOWN, report
from surefit.data.column_types import is_text
from surefit.data.split import sample_rows
from surefit.data.table import Table
from surefit.findings import Finding, rule

PARTNERS = rule(
    "SF227",
    "warning",
    "texts that do not fit their partners",
    why="The model learns to write the second text after the first. Rows that were shifted, sides "
    "that were exchanged, and answers that repeat their prompt teach it something else.",
    fix="Compare the named rows with their source, and correct how the two were joined.",
    accept="The rows are trained on as they are.",
)

Array = npt.NDArray[Any]
MOST_ROWS, FEWEST_ROWS = 4_000, 60
LONGEST = 600
"""Characters of a text that are read."""
PLACES = 1 << 14
SURE_SHIFT = 5.0
"""Standard errors by which the neighbour's partner must fit better than the own one."""
SOME, MANY = 0.015, 0.3
"""Shares of the rows from which equal or repeated texts are reported, and up to which."""
LONG = 24
"""Characters from which a repeated text is no short answer such as yes."""
SURE_SIDE = 2.0
FAR_LENGTH, STEADY, FEW_FAR = 4.0, 0.35, 0.03
"""Deviations from the median of the logarithm of a ratio of lengths, its usual deviation at most,
and the share of rows from which they are reported."""
PARTS = (1.0, 0.5, 0.3, 0.1)
"""Shares of the file, from its end, in which shifted rows are looked for."""


@dataclass(frozen=True)
class Pairs:
    """The texts of two columns in some rows, in the order of the file."""

    table: Table
    columns: tuple[str, str]
    rows: Array
    firsts: Sequence[str]
    seconds: Sequence[str]

    @classmethod
    def of(cls, table: Table, columns: tuple[str, str], rows: Array) -> Pairs:
        """Read the rows in which neither text is blank."""
        one, two = columns
        read = [(str(r[one] or ""), str(r[two] or "")) for r in table.rows(rows.tolist())]
        kept = [n for n, pair in enumerate(read) if all(text.strip() for text in pair)]
        return cls(table, columns, rows[kept], *([read[n][s] for n in kept] for s in (0, 1)))

    def found(self, what: str, hits: Sequence[int], fix: str) -> Finding:
        """Return a finding about some of the pairs."""
        named = f"columns {self.columns[0]!r} and {self.columns[1]!r}"
        what = f"{named}: # of {len(self.rows):,} rows looked at {what}"
        quotes = [self.seconds[n][:40] for n in hits[:SHOWN]]
        where = self.table.where
        return report(PARTNERS, what, self.rows[[*hits]], where, quotes, fix, self.columns[1])


def check_pairs(
    table: Table, rows: Array, one: str, two: str, translated: bool
) -> Iterator[Finding]:
    """Yield rows of two columns that do not belong together.

    `translated` is whether both sides may be expected to be of a language of their own.
    """
    if not all(c in table.columns and is_text(table.column_type(c)) for c in (one, two)):
        return
    ordered = np.sort(np.asarray(rows))
    pairs = Pairs.of(table, (one, two), ordered[sample_rows(len(rows), MOST_ROWS, 0)])
    if len(pairs.rows) < FEWEST_ROWS:
        return
    yield from _equal(pairs)
    yield from _repeated(pairs)
    yield from _contained(pairs)
    exchanged = [*_sides(pairs, translated)]
    yield from exchanged
    if translated and not exchanged:
        yield from _lengths(pairs)
    neighbours = np.arange(max(0, table.num_rows - MOST_ROWS), table.num_rows)
    yield from _shifted(Pairs.of(table, (one, two), neighbours))


def _equal(pairs: Pairs) -> Iterator[Finding]:
    """Yield rows whose two texts are equal, or of which one begins or ends with the other."""
    texts = [(a.strip(), b.strip()) for a, b in zip(pairs.firsts, pairs.seconds, strict=True)]
    tests: tuple[tuple[str, Callable[[str, str], bool]], ...] = (
        ("have the same text in both", lambda a, b: a == b),
        ("have a second text that begins with the first", lambda a, b: a != b and b.startswith(a)),
        ("have a first text that ends with the second", lambda a, b: a != b and a.endswith(b)),
    )
    for what, is_hit in tests:
        hits = [
            n for n, (a, b) in enumerate(texts) if min(len(a), len(b)) >= LONG // 2 and is_hit(a, b)
        ]
        if len(hits) >= max(3, SOME * len(texts)):
            yield pairs.found(what, hits, "Remove the repeated text from these rows, or drop them.")


def _lengths(pairs: Pairs) -> Iterator[Finding]:
    """Yield rows whose second text is far shorter or longer beside its first than all others."""
    sizes = [[len(text) for text in texts] for texts in (pairs.firsts, pairs.seconds)]
    ratio = np.log(sizes[1]) - np.log(sizes[0])
    typical = float(np.median(ratio))
    spread = 1.4826 * float(np.median(np.abs(ratio - typical))) + 1e-9
    for what, away in (("shorter", typical - ratio), ("longer", ratio - typical)):
        hits = np.flatnonzero(away > FAR_LENGTH * spread).tolist()
        if spread < STEADY and max(4, FEW_FAR * len(ratio)) <= len(hits) <= MANY * len(ratio):
            what = f"have a second text that is far {what} beside the first than in other rows"
            yield pairs.found(what, hits, "Get the whole texts of these rows, or drop them.")


def _contained(pairs: Pairs) -> Iterator[Finding]:
    """Yield second texts that are not in their first ones, where nearly all others are."""
    inside = [b.strip() in a for a, b in zip(pairs.firsts, pairs.seconds, strict=True)]
    hits = [n for n, is_in in enumerate(inside) if not is_in]
    if max(4, FEW_FAR * len(inside)) <= len(hits) <= MANY * len(inside):
        what = "have a second text that is no part of the first, as it is in the others"
        yield pairs.found(what, hits, "Compare these rows with their source.")


def _repeated(pairs: Pairs) -> Iterator[Finding]:
    """Yield one long second text that many different first texts have."""
    firsts, seconds = pairs.firsts, pairs.seconds
    (text, count), *_ = Counter(seconds).most_common(1)
    others = len(set(seconds)) / len(seconds)
    if len(text) < LONG or count < max(4, SOME * len(seconds)) or others < 0.4:
        return
    hits = [n for n, each in enumerate(seconds) if each == text]
    if len({firsts[n] for n in hits}) >= 0.8 * len(hits):
        fix = "Drop these rows, or get their own texts."
        yield pairs.found("have one text for different first ones", hits, fix)


def _words(text: str) -> list[str]:
    found = re.findall(r"\w+", text[:LONGEST].casefold())
    return found if len(found) > 3 or text.isascii() else [*text[:LONGEST]]


def _signs(texts: Sequence[str]) -> list[set[str]]:
    """Return the words, numbers and beginnings of words of each text."""
    return [{w[:5] if len(w) > 5 else w for w in _words(text)} for text in texts]


def _shifted(pairs: Pairs) -> Iterator[Finding]:
    """Yield a part of the rows whose second texts fit the first ones of a neighbour better."""
    left, right = _signs(pairs.firsts), _signs(pairs.seconds)
    common = Counter(sign for each in (*left, *right) for sign in each)
    weight = {sign: 1 / count**0.5 for sign, count in common.items() if count <= len(left) * 0.2}

    def fits(a: set[str], b: set[str]) -> float:
        return float(sum(weight.get(sign, 0.0) for sign in a & b))

    own = np.array([fits(a, b) for a, b in zip(left, right, strict=True)])
    for share in PARTS:
        start = len(left) - int(share * len(left))
        at = np.arange(max(start, 2), len(left) - 2)
        for step in (1, -1, 2, -2) if len(at) >= FEWEST_ROWS // 2 else ():
            moved = np.array([fits(left[n + step], right[n]) for n in at])
            gain = moved - own[at]
            error = gain.std() / len(gain) ** 0.5 + 1e-12
            if gain.mean() > SURE_SHIFT * error and moved.mean() > 1.5 * own[at].mean():
                yield _describe(pairs, share, step, (int(at[np.argmax(gain)]), start))
                return


def _describe(pairs: Pairs, share: float, step: int, example: tuple[int, int]) -> Finding:
    """Return the finding about shifted rows: one of them, and the first."""
    (n, start), (one, two) = example, pairs.columns
    a, b, c = (pairs.table.where(int(pairs.rows[each])) for each in (n, n + step, start))
    whole = "all rows" if share == 1 else f"the last {share:.0%} of the rows"
    return PARTNERS.finding(
        f"columns {one!r} and {two!r}: in {whole}, from row {c['row']} on, a text of {two!r} "
        f"shares more with {one!r} of the row {abs(step)} {'below' if step > 0 else 'above'} than "
        f"with its own: that of row {a['row']} ({pairs.seconds[n][:40]!r}) belongs to row "
        f"{b['row']} ({pairs.firsts[n + step][:40]!r}).",
        c,
        fix=f"Shift {two!r} by {abs(step)} row{'s' * (abs(step) > 1)}.",
        column=two,
    )


def _pieces(text: str) -> Array:
    """Return the places of words and of pieces of words."""
    short = f" {' '.join(text[:LONGEST].split())} "
    pieces = {short[n : n + 3] for n in range(len(short) - 2)}
    return np.array([zlib.crc32(piece.encode()) % PLACES for piece in pieces], np.int64)


def _side_scores(pairs: Pairs) -> Array:
    """Return how much each text reads like the second side (2, N), from the other half of rows."""
    made = [[_pieces(text) for text in texts] for texts in (pairs.firsts, pairs.seconds)]
    half = np.arange(len(pairs.rows)) % 2
    scores = np.zeros((2, len(pairs.rows)))
    for fold in (0, 1):
        counts = np.full((2, PLACES), 0.5)
        for side in (0, 1):
            for n in np.flatnonzero(half != fold):
                counts[side, made[side][n]] += 1
        weights = np.log(counts[1] / counts[1].sum()) - np.log(counts[0] / counts[0].sum())
        for side in (0, 1):
            for n in np.flatnonzero(half == fold):
                places = made[side][n]
                scores[side, n] = weights[places].mean() if len(places) else 0
    return scores


def _sides(pairs: Pairs, translated: bool) -> Iterator[Finding]:
    """Yield rows whose texts are exchanged, or both of one side, where the sides are unlike."""
    scores = _side_scores(pairs)
    margin = scores[1] - scores[0]  # above 0 where each is on its own side
    typical = float(np.median(margin))
    spread = 1.4826 * float(np.median(np.abs(margin - typical))) + 1e-9
    if typical < SURE_SIDE * spread or (margin < 0).mean() > MANY:
        return
    low, high = np.median(scores[0]), np.median(scores[1])
    middle = (low + high) / 2
    exchanged = (margin < -0.5 * typical) & (scores[0] > middle) & (scores[1] < middle)
    alike = (np.abs(margin) < 0.35 * typical) & ~exchanged
    same = alike & translated & (scores[1] < middle - 0.3 * (middle - low))
    for what, hit, fix in (
        ("have their texts exchanged", exchanged, "Exchange the two in these rows."),
        (
            "have a second text that reads like the first side, as if it were not translated",
            same,
            "Drop these rows, or get their texts.",
        ),
    ):
        hits = np.flatnonzero(hit).tolist()
        if len(hits) >= max(3, SOME * len(pairs.rows)):
            yield pairs.found(what, hits, fix)
