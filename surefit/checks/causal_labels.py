"""Labels of a causal model against its tokens: shifted, on padding, without the end of an answer.

A causal model shifts labels itself, so a label is −100 or the token at its own position. All
functions read flat arrays: rows of ids, labels and attention mask, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.batches.field import IGNORE_INDEX
from surefit.findings import Finding, Place, Rule, rule

LABELS_SHIFTED = rule(
    "SF150",
    "error",
    "labels are shifted already",
    why=(
        "A causal model compares its output at position t with the label at t + 1. If the data is "
        "shifted as well, the model learns to predict the token after the next one."
    ),
    fix="Store labels that equal input_ids, with -100 where there is no label.",
    accept="The labels are used as they are, shifted twice.",
)

LABELS_ON_PADDING = rule(
    "SF151",
    "error",
    "labels on padding",
    why="The model learns to write padding, and the loss is mostly that of padding tokens.",
    fix="Set the labels of padding to -100, or store rows without padding.",
    accept="The labels on padding are trained on.",
)

LABELS_WHERE_MASKED = rule(
    "SF152",
    "error",
    "labels where attention_mask is 0",
    why="No other token attends to these positions, so they are left out, with their labels.",
    fix="Set attention_mask to 1 at every token that is not padding, or the labels there to -100.",
    accept="The positions are left out, and their labels are not trained on.",
)

PADDING_LABELS_LEFT_OUT = rule(
    "SF153",
    "fixed",
    "labels on padding left out",
    why="attention_mask is 0 there, so the positions are left out before training.",
    fix="Nothing to do; other trainers need -100 there.",
)

END_NEVER_LABELLED = rule(
    "SF154",
    "error",
    "the end of an answer is never labelled",
    why="The rows contain the token that ends an answer, but the model never learns to write it.",
    fix="Give the last eos of each row its own id as the label: mask by length, not by token id.",
    accept="The rows are trained on as they are; the model does not learn to stop.",
)

EOS_NEVER_LABELLED = rule(
    "SF155",
    "warning",
    "no row contains eos",
    why="The model does not learn where a text or answer ends, so it does not learn to stop.",
    fix=(
        "Append the eos token to each row's input_ids, and the same id to its labels, unless the "
        "rows are parts of one long text."
    ),
    accept="The rows are trained on as they are.",
)

LABELS_DIFFER = rule(
    "SF156",
    "error",
    "labels are other tokens than input_ids",
    why=(
        "A causal model learns to continue a text with the labels. If they are not the text's own "
        "tokens, they come from another column or another tokenizer."
    ),
    fix="Store labels that equal input_ids, with -100 where there is no label. If they are classes "
    "of the tokens: --task token-classification.",
    accept="The labels are used as they are.",
)

SHIFTS = (1, -1, 2)
"""Distances between a label and its token that are recognised as a shift."""
CONSTANT_SHARE = 0.95
"""The share of rows whose last label is the same token, from which it is taken for their end."""
CHECKED_ENDS = 3
"""How many of the last labelled tokens may hold the special token that ends an answer."""
FILLED_SHARE = 0.25
"""The share of rows that end with a repeated token, from which it is taken for padding."""

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TokenRows:
    """Rows one after the other: ids, labels and mask, and where each row starts and the last ends.

    No row is empty. Without a mask, every position is a token.
    """

    ids: Ids
    labels: Ids
    starts: Ids
    mask: npt.NDArray[np.bool_]

    @classmethod
    def of_batch(cls, ids: Any, labels: Any, mask: Any = None) -> TokenRows:
        """Return the rows of a padded batch: three arrays (B, T), or nested lists."""
        ids, labels = np.asarray(ids, np.int64), np.asarray(labels, np.int64)
        seen = np.ones(ids.shape, bool) if mask is None else np.asarray(mask) != 0
        starts = np.arange(len(ids) + 1) * ids.shape[1]
        return cls(ids.ravel(), labels.ravel(), starts, seen.ravel())

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[Any, Any, Any]]) -> TokenRows:
        """Ids, labels and mask of each row; a mask may be None."""
        starts = np.cumsum([0, *(len(ids) for ids, _, _ in rows)])
        masks = [np.ones(len(ids), bool) if m is None else np.asarray(m) != 0 for ids, _, m in rows]
        ids = np.concatenate([np.asarray(ids, np.int64) for ids, _, _ in rows])
        labels = np.concatenate([np.asarray(labels, np.int64) for _, labels, _ in rows])
        return cls(ids, labels, starts, np.concatenate(masks))


@dataclass(frozen=True)
class KnownTokens:
    """The ids that have a meaning of their own, as far as they are known."""

    pad: int | None = None
    ends: frozenset[int] = frozenset()
    """Tokens that end a text or an answer: eos, and others that the model stops at."""
    special: frozenset[int] | None = None
    """All special tokens of the tokenizer; None without a tokenizer."""


@dataclass
class Hits:
    """Rows and labelled tokens of one kind of fault, and the first rows."""

    rows: int = 0
    tokens: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, tokens: Ids, numbers: Ids) -> None:
        """Count rows by their number of faulty tokens."""
        hit = np.flatnonzero(tokens)
        self.rows += len(hit)
        self.tokens += int(tokens.sum())
        self.first += numbers[hit[: 3 - len(self.first)]].tolist()


@dataclass
class LabelTally:
    """Counts over all rows of a data set; `add` them in any number of parts."""

    known: KnownTokens
    rows: int = 0
    shifted: dict[int, Hits] = field(default_factory=lambda: {k: Hits() for k in SHIFTS})
    other: Hits = field(default_factory=Hits)
    padding: Hits = field(default_factory=Hits)
    masked_padding: Hits = field(default_factory=Hits)
    masked: Hits = field(default_factory=Hits)
    rows_with_end: int = 0
    rows_with_prompt: int = 0
    last_labels: dict[int, int] = field(default_factory=dict)
    """How many rows end with each label; a special one counts that is among the last."""
    rows_with_unlabelled_end: int = 0
    longest: int = 0
    longest_rows: int = 0
    """How many rows have the greatest length."""

    def add(self, rows: TokenRows, numbers: Sequence[int] | Ids) -> None:
        """Count rows; `numbers` are theirs in the data."""
        numbers = np.asarray(numbers, np.int64)
        sizes = np.diff(rows.starts)
        padding = find_padding(rows, self.known.pad, self.known.ends)
        labelled = rows.labels != IGNORE_INDEX
        real = labelled & rows.mask & ~padding
        self.rows += len(sizes)
        self.padding.add(_per_row(labelled & padding & rows.mask, rows), numbers)
        self.masked_padding.add(_per_row(labelled & padding & ~rows.mask, rows), numbers)
        self.masked.add(_per_row(labelled & ~padding & ~rows.mask, rows), numbers)
        unlike = _per_row(real & (rows.labels != rows.ids), rows)
        for shift in SHIFTS if unlike.any() else ():
            is_shifted = (unlike > 0) & _is_shifted(rows, real, padding, shift)
            self.shifted[shift].add(np.where(is_shifted, _per_row(real, rows), 0), numbers)
            unlike = np.where(is_shifted, 0, unlike)
        self.other.add(unlike, numbers)
        self._count_ends(rows, real, ~labelled & rows.mask & ~padding)
        lengths = _per_row(rows.mask & ~padding, rows)
        if int(lengths.max()) > self.longest:
            self.longest, self.longest_rows = int(lengths.max()), 0
        self.longest_rows += int((lengths == self.longest).sum())

    def _count_ends(
        self, rows: TokenRows, real: npt.NDArray[np.bool_], unlabelled: npt.NDArray[np.bool_]
    ) -> None:
        is_end = np.isin(rows.ids, list(self.known.ends))
        labelled_end = real & np.isin(rows.labels, list(self.known.ends))
        self.rows_with_end += int((_per_row(labelled_end, rows) > 0).sum())
        self.rows_with_unlabelled_end += int((_per_row(unlabelled & is_end, rows) > 0).sum())
        self.rows_with_prompt += int((_per_row(unlabelled, rows) > 0).sum())
        own, starts = np.arange(len(rows.ids)), rows.starts
        last = np.maximum.reduceat(np.where(real, own, -1), starts[:-1])
        if self.known.special:  # a template may write a line break after the end of a turn
            seen = np.cumsum(real)
            behind: Ids = np.repeat(seen[starts[1:] - 1], np.diff(starts)) - seen
            ends = real & (behind < CHECKED_ENDS) & np.isin(rows.labels, [*self.known.special])
            special = np.maximum.reduceat(np.where(ends, own, -1), starts[:-1])
            last = np.where(special >= 0, special, last)
        for label, count in zip(
            *np.unique(rows.labels[last[last >= 0]], return_counts=True), strict=True
        ):
            self.last_labels[int(label)] = self.last_labels.get(int(label), 0) + int(count)

    @property
    def has_answers(self) -> bool:
        """Whether some tokens have no label, as prompts have."""
        return self.rows_with_prompt > 0

    @property
    def lacks_end(self) -> bool:
        """Whether no row has a label on a token that ends a text.

        A special token that nearly all rows end with counts as their end. Rows without prompts
        that are mostly of one length are blocks of a longer text, which may have no end.
        """
        if not self.known.ends or self.rows_with_end or not self.last_labels:
            return False
        if not self.has_answers and 2 * self.longest_rows >= self.rows:
            return False
        label, count = max(self.last_labels.items(), key=lambda pair: pair[1])
        is_special = self.known.special is None or label in self.known.special
        is_constant = count >= CONSTANT_SHARE * sum(self.last_labels.values())
        return self.rows > 1 and not (is_constant and is_special)


def _per_row(where: npt.NDArray[np.bool_], rows: TokenRows) -> Ids:
    return np.add.reduceat(where.astype(np.int64), rows.starts[:-1])


def find_padding(
    rows: TokenRows, pad: int | None, ends: frozenset[int] = frozenset()
) -> npt.NDArray[np.bool_]:
    """Positions of the pad token before the first and after the last other token of a row.

    If pad is a token that ends texts, one next to the text belongs to it: its end, or a bos of the
    same id. Masked positions at either end of the rows are padding, too, if all have one id.

    >>> rows = TokenRows.of_rows([([5, 6, 2, 2], [5, 6, 2, 2], None)])
    >>> find_padding(rows, 2, frozenset({2})).tolist()
    [False, False, False, True]
    """
    hidden = _outside(rows, rows.mask)
    outside = rows.ids[hidden]
    padding = hidden & bool(len(outside) and (outside == outside[0]).all())
    if pad is None:
        return padding
    return padding | _outside(rows, rows.ids != pad, int(pad in ends))


def _outside(
    rows: TokenRows, inside: npt.NDArray[np.bool_], margin: int = 0
) -> npt.NDArray[np.bool_]:
    """Positions before the first and after the last one that is inside, and `margin` from it."""
    if inside.all():
        return ~inside
    own, starts, sizes = np.arange(len(rows.ids)), rows.starts[:-1], np.diff(rows.starts)
    last = np.maximum.reduceat(np.where(inside, own, -1), starts) + margin
    first = np.minimum.reduceat(np.where(inside, own, len(own)), starts) - margin
    return (own > np.repeat(last, sizes)) | (own < np.repeat(first, sizes))


def infer_pad(rows: TokenRows) -> int | None:
    """Return the token that rows of one length are filled up with, if there is one.

    An attention mask that leaves positions out says itself what is padding.

    >>> infer_pad(TokenRows.of_batch([[5, 6, 0, 0], [5, 6, 7, 8], [5, 0, 0, 0]], [[1] * 4] * 3))
    0
    """
    sizes, behind = np.diff(rows.starts), rows.starts[1:]
    if len(sizes) < 2 or int(sizes.min()) != int(sizes.max()) or not rows.mask.all():
        return None
    values, counts = np.unique(rows.ids[behind - 1], return_counts=True)
    pad = int(values[np.argmax(counts)])
    own = np.arange(len(rows.ids))
    filled = behind - 1 - np.maximum.reduceat(np.where(rows.ids != pad, own, -1), behind - sizes)
    is_pad = (filled >= 2).mean() >= FILLED_SHARE and len({*filled.tolist()}) > 1
    return pad if is_pad else None


def _is_shifted(
    rows: TokenRows, real: npt.NDArray[np.bool_], padding: npt.NDArray[np.bool_], shift: int
) -> npt.NDArray[np.bool_]:
    """For each row, whether every label is the token `shift` places on; two labels at least."""
    own = np.arange(len(rows.ids))
    row_of = np.repeat(np.arange(len(rows.starts) - 1), np.diff(rows.starts))
    place = np.clip(own + shift, 0, len(own) - 1)
    known = real & (row_of[place] == row_of) & (place == own + shift) & ~padding[place]
    same = known & (rows.labels == rows.ids[place])
    compared = _per_row(known, rows)
    is_shifted: npt.NDArray[np.bool_] = (compared >= 2) & (_per_row(same, rows) == compared)
    return is_shifted


def check_labels(tally: LabelTally, where: Callable[[int], Place]) -> Iterator[Finding]:
    """What is wrong with the labels of a data set; `where` is the place of a row by its number."""
    for shift, hits in tally.shifted.items():
        if hits.rows:
            yield _shifted(shift, hits, tally.rows, where)
    padding = tally.padding
    if tally.known.pad in tally.known.ends and padding.tokens == padding.rows:
        padding = Hits()  # texts that end with eos twice
    for found, hits, what in (
        (LABELS_DIFFER, tally.other, "not the token at the same position"),
        (LABELS_ON_PADDING, padding, "on padding"),
        (LABELS_WHERE_MASKED, tally.masked, "at positions where attention_mask is 0"),
        (
            PADDING_LABELS_LEFT_OUT,
            tally.masked_padding,
            "on padding that attention_mask leaves out",
        ),
    ):
        if hits.rows:
            yield _finding(found, hits, what, tally.rows, where)
    if tally.lacks_end:
        yield _without_end(tally, where)


def _shifted(shift: int, hits: Hits, num_rows: int, where: Callable[[int], Place]) -> Finding:
    moved = f"t {'+' if shift > 0 else '-'} {abs(shift)}"
    gap = f"[-100] * {shift} + " if shift > 1 else "[-100] + "
    line = f"{gap}labels[:-{shift}]" if shift > 0 else f"labels[{-shift}:] + [-100]"
    what = f"shifted: the label at t is the token at {moved}"
    fix = f"Undo the shift: labels = {line}. {LABELS_SHIFTED.fix}"
    return _finding(LABELS_SHIFTED, hits, what, num_rows, where, fix)


def _finding(
    found: Rule,
    hits: Hits,
    what: str,
    num_rows: int,
    where: Callable[[int], Place],
    fix: str = "",
) -> Finding:
    numbers = ", ".join(str(where(row).get("row", row)) for row in hits.first)
    labels = "1 label is" if hits.tokens == 1 else f"{hits.tokens:,} labels are"
    shown = f"row {numbers}" if hits.rows == 1 else f"rows {numbers}, for example"
    message = f"{labels} {what}; in {hits.rows:,} of {num_rows:,} rows ({shown})."
    return found.finding(message, where(hits.first[0]), fix=fix, column="labels")


def _without_end(tally: LabelTally, where: Callable[[int], Place]) -> Finding:
    ends = " or ".join(map(str, sorted(tally.known.ends)))
    message = f"None of {tally.rows:,} rows has a label on the token that ends a text (id {ends})"
    if tally.rows_with_unlabelled_end:
        message += f"; {tally.rows_with_unlabelled_end:,} rows contain it, with the label -100"
    label, count = max(tally.last_labels.items(), key=lambda pair: pair[1])
    message += f". The most frequent last label is {label} ({count:,} of {tally.rows:,} rows)."
    found = END_NEVER_LABELLED if tally.rows_with_unlabelled_end else EOS_NEVER_LABELLED
    return found.finding(message, where(0), column="labels")
