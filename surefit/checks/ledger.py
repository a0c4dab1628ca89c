"""The Ledger: what became of every row and token, and in which unit a row is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from surefit.batches.field import Field, lead_column
from surefit.batches.mixing import Drawn
from surefit.inputs.store import Store

Unit = Literal["tokens", "time steps", "rows", "pixels"]


@dataclass(frozen=True)
class Ledger:
    """`rows = used_rows + Σ dropped_rows`, `used_rows = train_rows + eval_rows`.

    Rows are rows of the data. An epoch trains on each training row and on its augmented copies;
    `tokens` and `trained_tokens` count one epoch. A row that is split becomes several blocks; any
    other row is one block.
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
    """Rows per epoch: the training rows and their augmented copies."""
    dropped_views: dict[str, int]
    """Augmented copies that are left out though their row is used, by reason."""
    unit: Unit = "tokens"
    """What `tokens` counts."""
    target_unit: Unit = "tokens"
    """What `trained_tokens` counts: what has a label."""
    train_blocks: int = 0
    """Sequences per epoch: the blocks of the training rows and of their augmented copies."""
    eval_blocks: int = 0
    """Sequences in the validation set: the blocks of its rows."""
    split_rows: int = 0
    """Rows that are split into several blocks."""
    dropped_blocks: int = 0
    """Blocks of split rows that are dropped, as they have no labelled token."""
    truncated_tokens: int = 0
    """Tokens or time steps that truncation cuts off, in both sets and all augmented copies."""
    sources: dict[str, dict[str, int]] = field(default_factory=dict)
    """Of data from several sources, the rows of each, and what an epoch draws of it."""

    @property
    def per_epoch(self) -> str:
        """What one epoch holds: rows, and tokens or time steps where the rows are sequences."""
        parts = [f"{self.train_views:,} rows"]
        if self.train_blocks > self.train_views:
            parts[0] += f" in {self.train_blocks:,} blocks"
        if self.unit != "rows":
            parts.append(f"{self.tokens:,} {self.unit}")
        if self.target_unit != "rows":
            share = f" ({self.trained_tokens / max(self.tokens, 1):.1%})"
            of_row = share if self.target_unit == self.unit else ""
            parts.append(f"{self.trained_tokens:,} labelled {self.target_unit}{of_row}")
        return ", ".join(parts)

    def of_source(self, name: str) -> str:
        """Return what one epoch has of a source."""
        rows = self.sources[name]
        tokens = "" if self.unit == "rows" else f", {rows['tokens']:,} {self.unit}"
        return (
            f"{rows['train_rows']:,} training rows, {rows['eval_rows']:,} validation rows; an "
            f"epoch draws {rows['drawn_rows']:,}{tokens}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the ledger as `check --json` prints it."""
        found = asdict(self)
        return found if self.sources else {n: v for n, v in found.items() if n != "sources"}


def make_ledger(
    train: Store, evaluation: Store, left_out: Mapping[str, int], drawn: Sequence[Drawn] = ()
) -> Ledger:
    """Add up what the encoding of both sides noted, and the rows that the split leaves out.

    Where an epoch draws rows from sources, its tokens are those of a mean epoch.
    """
    sides: Sequence[Store] = (train, evaluation)
    dropped = Counter(left_out)
    for side in sides:
        dropped.update(side.notes["dropped"])
    counts = [Counter(side.notes["counts"]) for side in sides]
    train_rows, eval_rows = (side["rows"] for side in counts)
    used = train_rows + eval_rows
    ledger = Ledger(
        rows=used + dropped.total(),
        used_rows=used,
        train_rows=train_rows,
        eval_rows=eval_rows,
        dropped_rows=dict(sorted(dropped.items())),
        truncated_rows=sum(side["truncated_rows"] for side in counts),
        tokens=counts[0]["tokens"],
        trained_tokens=counts[0]["trained_tokens"],
        rows_learning_eos=sum(side["rows_learning_eos"] for side in counts),
        train_views=counts[0]["views"],
        dropped_views=dict(sorted(train.notes["dropped_copies"].items())),
        unit=sequence_unit(train.fields),
        target_unit=target_unit(train.fields),
        train_blocks=len(train),
        eval_blocks=len(evaluation),
        split_rows=sum(side["split_rows"] for side in counts),
        dropped_blocks=sum(side["dropped_blocks"] for side in counts),
        truncated_tokens=sum(side["truncated_tokens"] for side in counts),
    )
    return ledger if not train.sources else _of_sources(ledger, train, evaluation, drawn)


def _of_sources(ledger: Ledger, train: Store, evaluation: Store, drawn: Sequence[Drawn]) -> Ledger:
    """Return the ledger with the rows of each source, and the tokens that an epoch draws."""
    shares = {each.first: each.draws / each.num_rows for each in drawn}
    sources, totals = {}, np.zeros(3)
    for name, rows in train.sources.items():
        share, part = shares.get(rows.start, 1.0), slice(rows.start, rows.stop)
        held = evaluation.sources.get(name, range(0))
        lengths, targets = train.lengths[part], train.num_targets[part]
        own = share * np.array([len(rows), lengths.sum(dtype=np.int64), targets.sum()])
        num_rows = len(np.unique(train.source_row[part]))
        sources[name] = {
            "train_rows": num_rows,
            "eval_rows": len(np.unique(evaluation.source_row[held.start : held.stop])),
            "drawn_rows": round(share * num_rows),
            "tokens": round(own[1]),
            "trained_tokens": round(own[2]),
        }
        totals += own
    whole = [len(train), train.lengths.sum(dtype=np.int64), train.num_targets.sum()]
    rows_share, tokens_share, targets_share = totals / np.maximum(whole, 1)
    return replace(
        ledger,
        sources=sources,
        train_views=round(ledger.train_views * rows_share),
        train_blocks=round(ledger.train_blocks * rows_share),
        tokens=round(ledger.tokens * tokens_share),
        trained_tokens=round(ledger.trained_tokens * targets_share),
    )


def sequence_unit(fields: Mapping[str, Field]) -> Unit:
    """Return what a row is a sequence of; `rows` where it is not a sequence.

    >>> sequence_unit({"input_ids": Field(("time",))}), sequence_unit({"features": Field()})
    ('tokens', 'rows')
    """
    if "input_ids" in fields:
        return "tokens"
    lead = lead_column(fields)
    return "rows" if lead is None or fields[lead].time_axis is None else "time steps"


def target_unit(fields: Mapping[str, Field]) -> Unit:
    """Return what has a label: parts of the sequence, or rows.

    >>> target_unit({"input_ids": Field(("time",)), "labels": Field()})
    'rows'
    """
    labels = fields.get("labels")
    if labels is not None and labels.axes == ("height", "width"):
        return "pixels"
    along = labels is not None and labels.rank > 0 and labels.axes[0].endswith("time")
    return sequence_unit(fields) if along else "rows"
