"""The Ledger: what became of every row and token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from surefit.encode.store import Store


@dataclass(frozen=True)
class Ledger:
    """`rows = used_rows + Σ dropped_rows`, `used_rows = train_rows + eval_rows`.

    Rows are rows of the data. A training row may have several views, each trained on once an
    epoch: tokens count one epoch of training rows with all their views.
    """

    rows: int
    used_rows: int
    train_rows: int
    eval_rows: int
    dropped_rows: dict[str, int]
    truncated_rows: int
    tokens: int
    trained_tokens: int
    rows_learning_eos: int
    train_views: int
    """Rows of a training epoch: each training row as often as it has views."""
    dropped_views: dict[str, int]
    """Views left out though their row is used, by reason."""

    def as_dict(self) -> dict[str, Any]:
        """The ledger as `check --json` prints it."""
        return asdict(self)


def make_ledger(train: Store, evaluation: Store) -> Ledger:
    """Add up what the encoding of both sides noted."""
    sides: Sequence[Store] = (train, evaluation)
    dropped: Counter[str] = Counter()
    for side in sides:
        dropped.update(side.notes["dropped"])
    counts = [Counter(side.notes["counts"]) for side in sides]
    train_rows, eval_rows = (side["rows"] for side in counts)
    used = train_rows + eval_rows
    return Ledger(
        rows=used + dropped.total(),
        used_rows=used,
        train_rows=train_rows,
        eval_rows=eval_rows,
        dropped_rows=dict(sorted(dropped.items())),
        truncated_rows=sum(side["truncated_rows"] for side in counts),
        tokens=counts[0]["tokens"],
        trained_tokens=counts[0]["trained_tokens"],
        rows_learning_eos=sum(side["rows_learning_eos"] for side in counts),
        train_views=len(train),
        dropped_views=dict(sorted(train.notes["dropped_views"].items())),
    )
