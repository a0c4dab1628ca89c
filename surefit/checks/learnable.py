"""Whether there is anything to learn: a linear predictor on cheap vectors, judged out of fold.

The same predictor is fitted to shuffled labels. What it gains over them shows whether labels belong
to their rows at all, in a part of the file, and whether two classes are one under two names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.findings import Finding, note, rule
from surefit.inputs.row_facts import Sample, scaled

NOT_LEARNABLE = rule(
    "SF226",
    "warning",
    "labels that do not follow from the inputs",
    why="A linear predictor on words, pixels or summaries of the training rows does as well on "
    "shuffled labels. Most often labels and inputs were joined wrongly, in all rows or in a part "
    "of the file, or one class has two names.",
    fix="Compare some rows with their labels, and how the two were joined.",
    accept="The labels are trained on as they are.",
)

Array = npt.NDArray[Any]
FEWEST_ROWS, FEWEST_OF_CLASS = 200, 20
FOLDS, SHUFFLES = 4, 8
SPREAD = 30.0
"""The weight of the penalty, beside rows of length 1."""
BY_CHANCE, FEW_BY_CHANCE, FEW_ROWS = 2.0, 1.0, 800
"""Standard deviations above shuffled labels up to which nothing was learned; fewer where so few
rows may be too few to learn from."""
FAR_BELOW = 6.0
"""Standard errors by which a part of the file must be below the rest."""
ALIKE, APART = 0.06, 0.85
"""How far above 0.5 the area under the curve between two classes that are one may be, and its value
between both and the rest."""
OTHERS = 0.7
"""The least area between either of the two and any other class."""
MOST_CLASSES = 60


@dataclass(frozen=True)
class Learned:
    """Scores of each class for each row, by a predictor that has not seen the row."""

    scores: Array
    gain: float
    shuffled: tuple[float, float]
    """Mean and standard deviation of the gain of shuffled labels."""

    @property
    def certainty(self) -> float:
        """How many standard deviations above shuffled labels."""
        mean, spread = self.shuffled
        return (self.gain - mean) / max(spread, 1e-9)


def fit(vectors: Array, targets: Array, own: Array, seed: int = 0) -> Learned:
    """Fit the predictor to targets (N, K) and to shuffled ones: to `own` rows alone, in folds."""
    rng = np.random.default_rng(seed)
    given, known = vectors[own], targets[own]
    orders = [rng.permutation(len(known)) for _ in range(SHUFFLES)]
    centred = known - known.mean(0)
    every = np.concatenate([centred, *(centred[order] for order in orders)], axis=1)
    fold = rng.permutation(len(known)) % FOLDS
    made = np.zeros_like(every)
    penalty = SPREAD * float(np.square(given).sum(1).mean()) / max(1, given.shape[1]) ** 0.5
    for at in range(FOLDS):
        left = fold != at
        made[~left] = _predict(given[left], every[left], given[~left], penalty)
    agree = (made * every).reshape(len(known), SHUFFLES + 1, -1)
    sizes = np.sqrt((np.square(made) * 1.0).reshape(agree.shape).sum((0, 2))) + 1e-12
    gains = agree.sum((0, 2)) / sizes / np.sqrt(np.square(centred).sum())
    spread = max(float(gains[1:].std()), 1 / len(known) ** 0.5)
    scores = np.zeros(targets.shape, every.dtype)
    scores[own] = made[:, : targets.shape[1]]
    scores[~own] = _predict(given, centred, vectors[~own], penalty)
    return Learned(scores, float(gains[0]), (float(gains[1:].mean()), spread))


def _predict(left: Array, targets: Array, held: Array, penalty: float) -> Array:
    """Return what a ridge regression on some rows predicts for others."""
    middle = left.mean(0)
    left, held = left - middle, held - middle
    is_wide = left.shape[0] <= left.shape[1]
    gram = left @ left.T if is_wide else left.T @ left
    gram.flat[:: len(gram) + 1] += penalty
    if is_wide:
        return np.asarray(held @ (left.T @ np.linalg.solve(gram, targets)))
    return np.asarray(held @ np.linalg.solve(gram, left.T @ targets))


def check_learnable(
    train: Sample, validation: Sample | None, names: Sequence[Any]
) -> Iterator[Finding]:
    """Yield whether labels follow from inputs; `names` are the classes, empty for numbers."""
    if train.labels is None or train.vectors.shape[1] == 0 or len(train.labels) < FEWEST_ROWS:
        return
    labels, vectors = train.labels, train.vectors
    for other in (validation,) if validation is not None else ():
        if other.labels is not None and other.vectors.shape[1:] == vectors.shape[1:]:
            labels = np.concatenate([labels, other.labels])
            vectors = np.concatenate([vectors, other.vectors])
    if len(names):
        counts = np.bincount(train.labels, minlength=len(names))
        kept = np.flatnonzero(counts >= FEWEST_OF_CLASS)
        if not 2 <= len(kept) <= MOST_CLASSES:
            return
        rows = np.isin(labels, kept)
        targets = (labels[rows][:, None] == kept).astype(np.float32)
    else:
        rows = np.isfinite(labels)
        ranks = np.argsort(np.argsort(labels[rows], kind="stable")) / max(1, rows.sum())
        targets, kept = ranks[:, None].astype(np.float32), np.arange(1)
    own = np.flatnonzero(rows) < len(train.labels)
    count = int(own.sum())
    if count < FEWEST_ROWS:
        return
    vectors = vectors[rows]
    learned = fit(vectors if train.is_text else scaled(vectors, vectors[own]), targets, own)
    mean, _ = learned.shuffled
    yield note(
        f"a linear predictor on {count:,} rows has a correlation of {learned.gain:.2f} "
        f"with the labels of rows that it has not seen ({mean:.2f} with shuffled labels)."
    )
    if learned.certainty < (BY_CHANCE if count >= FEW_ROWS else FEW_BY_CHANCE):
        yield NOT_LEARNABLE.finding(
            f"a linear predictor on {count:,} rows does no better than with shuffled "
            f"labels: its correlation with the labels of unseen rows is {learned.gain:.2f}, and "
            f"{mean:.2f} with shuffled ones."
        )
        return
    order = train.rows[rows[: len(train.labels)]]
    yield from _check_parts(train, own, order, targets, learned)
    known = [names[k] for k in kept.tolist()] if len(names) else []
    yield from _check_names(learned.scores[own], targets[own], known)


def _parts(own: Array, numbers: Array) -> Iterator[tuple[Array, Array, str, int | None]]:
    """Yield parts of the rows, the rest, a name and the first row: validation, ends of the file."""
    order = np.argsort(numbers, kind="stable")
    at = np.flatnonzero(own)[order]
    held = np.flatnonzero(~own)
    if len(held):
        yield held, at, "the validation rows", None
    for share in (0.1, 0.2, 0.3, 0.5):
        count = int(share * len(at))
        for part, rest, end in (
            (slice(len(at) - count, None), slice(0, len(at) - count), "last"),
            (slice(0, count), slice(count, None), "first"),
        ):
            first, last = (int(numbers[order[part]][n]) for n in (0, -1)) if count else (0, 0)
            name = f"the {end} {share:.0%} of the file (rows {first} to {last})"
            yield at[part], at[rest], name, first


def _check_parts(
    sample: Sample, own: Array, numbers: Array, targets: Array, learned: Learned
) -> Iterator[Finding]:
    """Yield a part of the rows whose labels do not follow from the inputs, or are turned round."""
    centred = targets - targets[own].mean(0)
    gain = (learned.scores * centred).sum(1)
    owner = targets.argmax(1)
    if targets.shape[1] > 1:  # classes differ in how easy they are
        of = [own & (owner == k) for k in range(targets.shape[1])]
        typical = np.array([gain[each].mean() if each.any() else 0 for each in of])[owner]
    else:
        typical = np.full(len(gain), gain[own].mean())
    if float(typical.mean()) <= 0:
        return
    for part, rest, name, first in _parts(own, numbers):
        if len(part) < 40 or len(np.unique(owner[part])) < min(2, targets.shape[1]):
            continue
        differs = gain[part] - typical[part]
        error = gain.std() * (1 / len(part) + 1 / len(rest)) ** 0.5
        here, other = float(gain[part].mean()), float(gain[rest].mean())
        known = float(typical[part].mean())
        if differs.mean() < -FAR_BELOW * error and here < 0.2 * known and other > 0:
            yield NOT_LEARNABLE.finding(
                f"{name}: what a linear predictor learns from the other rows does not hold there; "
                f"its agreement with the labels is {here / known:.0%} of that in all rows.",
                None if first is None else sample.where(first),
            )
            return


def _check_names(scores: Array, targets: Array, names: Sequence[Any]) -> Iterator[Finding]:
    """Yield two classes that cannot be told apart, though both differ from the others."""
    owner = targets.argmax(1)
    if len(names) < 3:
        return
    rows_of = [np.flatnonzero(owner == k) for k in range(len(names))]
    for one in range(len(names)):
        for two in range(one + 1, len(names)):
            pair = np.concatenate([rows_of[one], rows_of[two]])
            fewer = min(len(rows_of[one]), len(rows_of[two]))
            if fewer < 2 * FEWEST_OF_CLASS:
                continue
            between = _area(scores[pair, one] - scores[pair, two], owner[pair] == one)
            error = (1 / (6 * fewer)) ** 0.5
            both = _area(scores[:, one] + scores[:, two], (owner == one) | (owner == two))
            others = [
                _area(scores[pair, k] - scores[pair, other], owner[pair] == k)
                for k in (one, two)
                for other in range(len(names))
                if other not in (one, two)
                for pair in [np.concatenate([rows_of[k], rows_of[other]])]
            ]
            alike = between - 0.5 < max(ALIKE, error)
            if alike and both > APART and min(others) > OTHERS:
                yield NOT_LEARNABLE.finding(
                    f"the classes {names[one]!r} and {names[two]!r} cannot be told apart (area "
                    f"under the curve {between:.2f}), though both differ from the others "
                    f"({both:.2f}): they may be one class under two names.",
                    fix="Write the class in one way in all rows, if the two are one.",
                )
                return


def _area(scores: Array, positive: Array) -> float:
    """Return the area under the ROC curve."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores, kind="stable")] = np.arange(1, len(scores) + 1)
    one, two = int(positive.sum()), int((~positive).sum())
    if not one or not two:
        return 0.5
    return float((ranks[positive].sum() - one * (one + 1) / 2) / (one * two))
