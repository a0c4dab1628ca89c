"""Rows that repeat others: in both sets, within one, and with another target."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.data.cache import fingerprint, hash_bytes, module_fingerprint
from surefit.data.cache_entry import open_json
from surefit.data.column_values import texts_in
from surefit.data.row_arrays import count_distinct, distinct, is_among, take
from surefit.data.row_parts import RowParts
from surefit.data.split import (
    NO_CONTENT,
    Hashes,
    Rows,
    count_repeats,
    find_contradictions,
    fold_text,
    sample_rows,
)
from surefit.data.table import Table
from surefit.data.text_sketches import (
    NUM_HASHES,
    Sketches,
    common_pairs,
    sketch,
    text_columns,
)
from surefit.findings import NOTE, Finding, note, rule

VALIDATION_ROWS_IN_TRAINING = rule(
    "SF210",
    "warning",
    "validation inputs that are also in training",
    why="The evaluation then measures memory, not learning.",
    fix="Remove the shared rows from one of the two sets.",
    accept="The validation rows are kept, and the metrics count them.",
)

CONTRADICTING_ROWS = rule(
    "SF223",
    "warning",
    "rows that contradict each other",
    why="They have the same input, but different targets. At most one of them can be right.",
    fix="Correct the targets of the named rows, or delete one of them.",
    accept="All of these rows are trained on.",
)

NOTHING_FOLLOWS_FROM_INPUTS = rule(
    "SF225",
    "error",
    "targets that contradict each other everywhere",
    why=(
        "Nearly every input occurs with several targets, none of them more often than the others: "
        "there is nothing to learn. The targets belong to other rows, or an input is missing."
    ),
    fix="Check how targets were joined to inputs, and whether a column of inputs is not read.",
    accept="The rows are trained on.",
    covered_by=("SF205",),
)

SHOWN = 3
QUOTED = 60
NEARLY_ALL = 0.9
FEW_INPUTS = 0.1
"""Fewer different inputs than this share of their rows are categories rather than examples."""
BY_CHANCE = 0.5
"""Of rows that contradict each other, the share that can be right where two targets are equal."""
COMMON_SHARE = 0.25
"""An input that a larger share of the training rows has does not tell validation rows apart."""


def note_repeats(whole: Hashes, what: str, has_texts: bool) -> list[Finding]:
    """Return how many rows repeat another one."""
    repeats = count_repeats(whole)
    if not repeats:
        return []
    message = f"{repeats:,} of {len(whole):,} {what} equal another row"
    apart = ", apart from case, spaces and punctuation" if has_texts else ""
    return [note(f"{message}{apart}.")]


def check_shared_inputs(
    trained: tuple[Hashes, Hashes], shown: tuple[Hashes, Hashes], eval_table: Table, rows: Rows
) -> list[Finding]:
    """Validation rows whose input a training row has; of common inputs, equal rows only."""
    names, sizes = distinct(trained[0])
    common = names[sizes > COMMON_SHARE * len(trained[0])]
    by_input = is_among(shown[0], names) & ~is_among(shown[0], common)
    equal = is_among(shown[1], distinct(trained[1])[0]) & (shown[1] != NO_CONTENT)
    shared = (by_input & (shown[0] != NO_CONTENT)) | equal
    if not shared.any():
        return []
    where = eval_table.where(int(rows[np.argmax(shared)]))
    message = (
        f"{int(shared.sum())} of {len(rows)} validation rows have the input of a training row, "
        f"{int(equal.sum())} of them also its target; row {where['row']} is the first."
    )
    return [VALIDATION_ROWS_IN_TRAINING.finding(message, where)]


def check_contradictions(
    table: Table,
    rows: Rows,
    parts: RowParts,
    hashes: tuple[Hashes, Hashes],
    exact: bool,
    of_table: bool,
) -> list[Finding]:
    """Return rows with one input and several targets, compared exactly, with the first two of them.

    `exact` is whether an input has one right target. Rows `of_table`s share inputs by chance.
    """
    places = find_contradictions(*hashes)
    if len(places) == 0:
        return []
    inputs, whole = parts.hash_some(table, take(rows, places), fold=False)
    found = find_contradictions(inputs, whole)
    if len(found) == 0:
        return []
    num_inputs = count_distinct(take(inputs, found))
    firsts: dict[int, int] = {}
    for place in map(int, found):
        firsts.setdefault(int(inputs[place]), place)
        if len(firsts) == min(SHOWN, num_inputs):
            break
    shown = []
    for first in firsts.values():
        pair = first, int(np.argmax((inputs == inputs[first]) & (whole != whole[first])))
        shown.append(_name_pair(table, parts, take(rows, places[[*pair]])))
    message = (
        f"{len(found):,} of {len(rows):,} rows have the input of another row, but another target: "
        f"{'; '.join(shown)}. Different inputs among them: {num_inputs:,}."
    )
    one = table.where(int(rows[places[next(iter(firsts.values()))]]))
    by_chance = of_table or num_inputs == 1  # equal inputs in all rows are reported as such
    suspicious = exact and (2 * len(found) <= len(rows) or not by_chance)
    if not suspicious:
        return [note(message, one)]
    share = _best_share(inputs[found], whole[found])
    message += f" No model can be right on more than {share:.0%} of them."
    nearly_all = len(found) >= NEARLY_ALL * len(rows) and num_inputs > FEW_INPUTS * len(found)
    hopeless = not by_chance and nearly_all and share <= BY_CHANCE
    rule = NOTHING_FOLLOWS_FROM_INPUTS if hopeless else CONTRADICTING_ROWS
    return [rule.finding(message, one)]


def _best_share(inputs: Hashes, whole: Hashes) -> float:
    """Return the share of rows that have the commonest target of their input.

    >>> _best_share(np.array([7, 7, 7, 8, 8], np.uint64), np.array([1, 1, 2, 3, 4], np.uint64))
    0.6
    """
    _, firsts, counts = np.unique(whole, return_index=True, return_counts=True)
    _, groups = np.unique(inputs[firsts], return_inverse=True)
    best = np.zeros(groups.max() + 1, np.int64)
    np.maximum.at(best, groups, counts)
    return float(best.sum() / len(inputs))


def _name_pair(table: Table, parts: RowParts, pair: Rows) -> str:
    """Two rows, and the texts of the input that they share."""
    one, two = (table.where(int(row)) for row in pair)
    file = f" of {two['file']}" if two["file"] != one["file"] else ""
    ((given, _),) = parts.divided(table, pair[:1])
    text = " ".join(" ".join(texts_in(given)).split())
    has_files = not {*parts.columns.values()}.isdisjoint(table.files)
    shown = f" ({text[:QUOTED]!r}{' …' * (len(text) > QUOTED)})" * (bool(text) and not has_files)
    return f"rows {one['row']} and {two['row']}{file}{shown}"


NEAR_COPIES = rule(
    "SF180",
    "warning",
    "validation rows that are near-copies of training rows",
    why=(
        "They differ in a few words and have the same target, so the evaluation measures memory. "
        "Rows augmented before the split, and texts collected twice, are the usual causes."
    ),
    fix=(
        "Augment after the split (augmentation_factor), remove the copies, or keep related rows "
        "together with split.by=COLUMN."
    ),
    accept="The rows stay in the validation set.",
)

MAX_VALIDATION = 50_000
MAX_TRAINING = 2_000_000
"""Training rows of which sketches are made, 64 bytes each; of more, a sample is searched."""
MAX_COMPARED = 4_000
"""Candidates that are compared word by word."""
NOTABLE_ROWS, NOTABLE_SHARE = 5, 0.02
"""A warning is due from so many rows, and this share of the validation rows, on."""
SHARED_WORDS = 0.8
FEWEST_WORDS = 8
_LONGEST_WORDS = 2000
_BANDS = 8
_PER_KEY = 4
_SHOWN = 3

Pairs = npt.NDArray[np.int64]  # (N, 2): places of a searched row and of a row it may copy


@dataclass(frozen=True)
class Side:
    """Rows of a Table, and which of their values are input and target."""

    table: Table
    rows: Rows
    parts: RowParts


def check_near_copies(train: Side, validation: Side, seed: int) -> list[Finding]:
    """Compare validation rows with all training rows."""
    inputs = {n: c for n, c in train.parts.columns.items() if n not in train.parts.targets}
    columns = text_columns(train.table, inputs)
    if not columns:
        return []
    chosen = validation.rows[sample_rows(len(validation.rows), MAX_VALIDATION, seed)]
    side = Side(validation.table, chosen, validation.parts)
    every, some = len(train.rows), sample_rows(len(train.rows), MAX_TRAINING, seed)
    train = replace(train, rows=train.rows[some]) if len(some) < every else train
    if not len(side.rows) or not all(column in side.table.columns for column in columns):
        return []
    key = _key(train, side)

    def search() -> dict[str, Any]:
        common = common_pairs(train.table, columns, train.rows)
        trained, shown = (sketch(s.table, columns, s.rows, common) for s in (train, side))
        return asdict(_compared(train, side, trained, shown))

    made = search() if key is None else open_json("near-copies", key, search)
    found = _report_leak(train, side, Copies(**made))
    sampled = f" A sample of {len(some):,} of {every:,} training rows was searched."
    return [replace(f, message=f.message + sampled) if len(some) < every else f for f in found]


def _key(train: Side, validation: Side) -> str | None:
    """A key of all that the search depends on; None if a task's own function divides the rows."""
    parts = train.parts.key
    if parts is None:
        return None
    sides = [
        (side.table.place_key, hash_bytes(np.ascontiguousarray(side.rows)))
        for side in (train, validation)
    ]
    code = module_fingerprint(__name__), module_fingerprint(text_columns.__module__)
    return fingerprint(parts, sides, code)


@dataclass(frozen=True)
class Copies:
    """Places of near-copies and their originals, with the share of words they have in common."""

    pairs: Sequence[tuple[int, int, float]]
    compared: int
    candidates: int

    @property
    def count(self) -> int:
        """How many rows are copies: those that were found, scaled up if not all were compared."""
        return round(len(self.pairs) * self.candidates / max(1, self.compared))


def _compared(train: Side, side: Side, trained: Sketches, searched: Sketches) -> Copies:
    """Return searched rows of `side` that nearly equal a training row, compared word by word."""
    pairs = _candidates(trained, searched)
    chosen = pairs[sample_rows(len(pairs), MAX_COMPARED, 0)]
    originals = _texts(train, chosen[:, 1])
    copies = []
    for (place, other), one, two in zip(chosen, _texts(side, chosen[:, 0]), originals, strict=True):
        share = shared_words(one, two)
        if share is not None:
            copies.append((int(place), int(other), share))
    return Copies(copies, len(chosen), len(pairs))


def _candidates(trained: Sketches, searched: Sketches) -> Pairs:
    """For each searched row, the training row whose sketch is most alike; rows without are left."""
    found = []
    per_band = NUM_HASHES // _BANDS
    for band in range(_BANDS):
        span = slice(band * per_band, (band + 1) * per_band)
        theirs, mine = _keys(trained.values[:, span]), _keys(searched.values[:, span])
        order = np.argsort(mine, kind="stable")
        first = np.searchsorted(mine[order], theirs)
        matched = first < len(mine)
        matched[matched] &= mine[order][first[matched]] == theirs[matched]
        at = np.flatnonzero(matched)
        at = at[np.argsort(theirs[at], kind="stable")]
        rank = np.arange(len(at)) - np.searchsorted(theirs[at], theirs[at])
        at = at[rank <= _PER_KEY]
        last = np.searchsorted(mine[order], theirs[at], side="right")
        counts = np.minimum(last - first[at], _PER_KEY)
        offset = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        found.append(
            np.stack([order[np.repeat(first[at], counts) + offset], np.repeat(at, counts)], 1)
        )
    pairs = np.unique(np.concatenate(found), axis=0)
    alike = (searched.values[pairs[:, 0]] == trained.values[pairs[:, 1]]).sum(1)
    pairs, alike = pairs[alike >= NUM_HASHES // 4], alike[alike >= NUM_HASHES // 4]
    best = np.lexsort((pairs[:, 1], -alike, pairs[:, 0]))
    _, firsts = np.unique(pairs[best, 0], return_index=True)
    chosen = pairs[best][firsts]
    return np.stack([searched.places[chosen[:, 0]], trained.places[chosen[:, 1]]], 1)


def _keys(values: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    return np.asarray(values[:, 0].astype(np.uint64) << np.uint64(32) | values[:, 1])


def _texts(side: Side, places: Rows) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the words of the input and of the target of each row."""
    for given, target in side.parts.divided(side.table, side.rows[places]):
        yield _words(given), _words(target)


def _words(value: Any) -> list[str]:
    words = " ".join(_strings(fold_text(value))).split()
    return words[:_LONGEST_WORDS]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)
    elif value is not None:
        yield str(value)


def shared_words(
    one: tuple[Sequence[str], Sequence[str]], two: tuple[Sequence[str], Sequence[str]]
) -> float | None:
    """Return the share of words that two rows have in common, if one nearly repeats the other.

    >>> words = "the quick brown fox jumps over the lazy dog".split()
    >>> round(shared_words((words, ["yes"]), (["see", *words], ["yes"])), 2)
    0.95
    >>> shared_words((words, ["yes"]), (["see", *words], ["no"])) is None
    True
    """
    (given, target), (other, expected) = one, two
    if min(len(given), len(other)) < FEWEST_WORDS or given == other:
        return None
    if _share(given, other) < SHARED_WORDS:
        return None
    if target != expected and _share(target, expected) < SHARED_WORDS:
        return None
    left, came = Counter(given) - Counter(other), Counter(other) - Counter(given)
    if any(letter.isdigit() for word in (*left, *came) for letter in word):
        return None  # rows that differ in an amount, a date or a code are rows of a template
    share = difflib.SequenceMatcher(None, given, other, autojunk=False).ratio()
    return share if share >= (SHARED_WORDS if _are_spellings(left, came) else NEARLY_ALL) else None


def _are_spellings(left: Iterable[str], came: Iterable[str]) -> bool:
    """Return whether words were only added, only left out, or only spelled otherwise."""
    came = list(came)
    return all(not came or difflib.get_close_matches(word, came, 1) for word in left)


def _share(one: Sequence[str], two: Sequence[str]) -> float:
    both = (Counter(one) & Counter(two)).total()
    return 2 * both / max(1, len(one) + len(two))


def _report_leak(train: Side, side: Side, copies: Copies) -> list[Finding]:
    if not copies.pairs:
        return []
    about = "about " if copies.compared < copies.candidates else ""
    count = f"{about}{copies.count} of {len(side.rows)} validation rows"
    are = "is a near-copy" if copies.count == 1 else "are near-copies"
    message = f"{count} {are} of training rows: {_shown(train, side, copies.pairs)}"
    notable = copies.count >= max(NOTABLE_ROWS, NOTABLE_SHARE * len(side.rows))
    where = side.table.where(int(side.rows[copies.pairs[0][0]]))
    return [(NEAR_COPIES if notable else NOTE).finding(message, where)]


def _shown(train: Side, side: Side, pairs: Sequence[tuple[int, int, float]]) -> str:
    """Up to three pairs, from where their texts begin to differ."""
    lines = []
    for place, other, share in pairs[:_SHOWN]:
        at, by = int(side.rows[place]), int(train.rows[other])
        ((given, _),) = _texts(side, np.array([place]))
        ((taken, _),) = _texts(train, np.array([other]))
        one, two = _excerpts(given, taken)
        rows = f"row {side.table.where(at)['row']} and training row {train.table.where(by)['row']}"
        lines.append(f"{rows} share {share:.0%} of their words: {one!r} and {two!r}")
    return "; ".join(lines) + "."


def _excerpts(one: Sequence[str], two: Sequence[str], around: int = 5) -> tuple[str, str]:
    matched = difflib.SequenceMatcher(None, one, two, autojunk=False).get_matching_blocks()
    start = max(0, (matched[0].size if matched[0].a == matched[0].b == 0 else 0) - around)
    return tuple(" ".join(w[start : start + 2 * around])[:90] for w in (one, two))  # type: ignore[return-value]
