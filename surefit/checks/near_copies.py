"""Near-copies of texts: validation rows that training rows repeat but for a few words.

Candidates share parts of their sketches (`data/text_sketches.py`); each is then compared word by
word before it is reported. Texts that differ in numbers only, or have another target, are rows of
one template rather than copies.
"""

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
from surefit.data.row_parts import RowParts
from surefit.data.split import Rows, fold_text, sample_rows
from surefit.data.table import Table
from surefit.data.text_sketches import (
    NUM_HASHES,
    Sketches,
    common_pairs,
    sketch,
    text_columns,
)
from surefit.findings import Finding, rule

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

FEW_NEAR_COPIES = rule(
    "SF181",
    "info",
    "near-copies among the rows",
    why="They differ in a few words and have the same target.",
    fix="Remove them if they were not collected on purpose.",
)

MAX_VALIDATION = 50_000
MAX_TRAINING = 2_000_000
"""Training rows of which sketches are made, 64 bytes each; of more, a sample is searched."""
TRAINING_SAMPLE = 20_000
MAX_COMPARED = 4_000
"""Candidates that are compared word by word."""
NOTABLE_ROWS, NOTABLE_SHARE = 5, 0.02
"""A warning is due from so many rows, and this share of the validation rows, on."""
SHARED_WORDS = 0.8
NEARLY_ALL = 0.9
"""Where words were replaced by others, as the slots of a template are, more words must agree."""
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
    """Validation rows against all training rows, and a sample of the training rows likewise."""
    inputs = {n: c for n, c in train.parts.columns.items() if n not in train.parts.targets}
    columns = text_columns(train.table, inputs)
    if not columns:
        return []
    chosen = validation.rows[sample_rows(len(validation.rows), MAX_VALIDATION, seed)]
    side = Side(validation.table, chosen, validation.parts)
    every, some = len(train.rows), sample_rows(len(train.rows), MAX_TRAINING, seed)
    train = replace(train, rows=train.rows[some]) if len(some) < every else train
    key = _key(train, side, seed)

    def search() -> list[dict[str, Any]]:
        return [asdict(copies) for copies in _search(train, side, columns, seed)]

    made = search() if key is None else open_json("near-copies", key, search)
    leaked, within = (Copies(**copies) for copies in made)
    found = [*_report_leak(train, side, leaked), *_report_within(train, within)]
    sampled = f" A sample of {len(some):,} of {every:,} training rows was searched."
    return [replace(f, message=f.message + sampled) if len(some) < every else f for f in found]


def _key(train: Side, validation: Side, seed: int) -> str | None:
    """A key of all that the search depends on; None if a task's own function divides the rows."""
    parts = train.parts.key
    if parts is None:
        return None
    sides = [
        (side.table.place_key, hash_bytes(np.ascontiguousarray(side.rows)))
        for side in (train, validation)
    ]
    code = module_fingerprint(__name__), module_fingerprint(text_columns.__module__)
    return fingerprint(parts, sides, seed, code)


def _search(train: Side, side: Side, columns: Sequence[str], seed: int) -> tuple[Copies, Copies]:
    """Validation rows that training rows nearly repeat, and training rows likewise."""
    common = common_pairs(train.table, columns, train.rows)
    trained = sketch(train.table, columns, train.rows, common)
    leaked = NO_COPIES
    if len(side.rows) and all(column in side.table.columns for column in columns):
        leaked = _compared(train, side, trained, sketch(side.table, columns, side.rows, common))
    some = sample_rows(len(trained.places), TRAINING_SAMPLE, seed)
    searched = Sketches(trained.values[some], trained.places[some])
    return leaked, _compared(train, train, trained, searched)


@dataclass(frozen=True)
class Copies:
    """Places of near-copies and their originals, with the share of words they have in common."""

    pairs: Sequence[tuple[int, int, float]]
    searched: int
    compared: int
    candidates: int

    @property
    def count(self) -> int:
        """How many rows are copies: those that were found, scaled up if not all were compared."""
        return round(len(self.pairs) * self.candidates / max(1, self.compared))


NO_COPIES = Copies((), 0, 0, 0)


def _compared(train: Side, side: Side, trained: Sketches, searched: Sketches) -> Copies:
    """The searched rows of `side` that nearly equal a training row, compared word by word."""
    pairs = _candidates(trained, searched, is_same=train is side)
    chosen = pairs[sample_rows(len(pairs), MAX_COMPARED, 0)]
    originals = _texts(train, chosen[:, 1])
    copies = []
    for (place, other), one, two in zip(chosen, _texts(side, chosen[:, 0]), originals, strict=True):
        share = shared_words(one, two)
        if share is not None:
            copies.append((int(place), int(other), share))
    return Copies(copies, len(searched.places), len(chosen), len(pairs))


def _candidates(trained: Sketches, searched: Sketches, is_same: bool) -> Pairs:
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
    if is_same:
        pairs = pairs[searched.places[pairs[:, 0]] != trained.places[pairs[:, 1]]]
    alike = (searched.values[pairs[:, 0]] == trained.values[pairs[:, 1]]).sum(1)
    pairs, alike = pairs[alike >= NUM_HASHES // 4], alike[alike >= NUM_HASHES // 4]
    best = np.lexsort((pairs[:, 1], -alike, pairs[:, 0]))
    _, firsts = np.unique(pairs[best, 0], return_index=True)
    chosen = pairs[best][firsts]
    return np.stack([searched.places[chosen[:, 0]], trained.places[chosen[:, 1]]], 1)


def _keys(values: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    return np.asarray(values[:, 0].astype(np.uint64) << np.uint64(32) | values[:, 1])


def _texts(side: Side, places: Rows) -> Iterator[tuple[list[str], list[str]]]:
    """The words of the input and of the target of each row."""
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
    """The share of words that two rows have in common, if one nearly repeats the other.

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
    """Whether words were only added, only left out, or only spelled otherwise."""
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
    return [(NEAR_COPIES if notable else FEW_NEAR_COPIES).finding(message, where)]


def _report_within(train: Side, copies: Copies) -> list[Finding]:
    if not copies.pairs:
        return []
    is_sample = copies.searched < len(train.rows)
    sample = f" in a sample of {copies.searched} rows" if is_sample else ""
    once = {frozenset(pair[:2]): pair for pair in reversed(copies.pairs)}  # not (1, 0) and (0, 1)
    message = (
        f"{copies.count} training rows{sample} are near-copies of other training rows: "
        f"{_shown(train, train, [*reversed(once.values())])}"
    )
    where = train.table.where(int(train.rows[copies.pairs[0][0]]))
    return [FEW_NEAR_COPIES.finding(message, where)]


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
