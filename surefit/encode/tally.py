"""Counts of encoded and dropped rows, and the faults found in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from surefit.data.table import Table
from surefit.encode.encoded_row import EncodedRow, Remark, RowFaultError, SkipRowError
from surefit.encode.encoder import Encoder
from surefit.findings import RULES, Finding


@dataclass
class Faults:
    """The first row of each kind of fault, and how many rows have it."""

    table: Table
    encoder: Encoder
    first: dict[tuple[str, str | None], tuple[int, RowFaultError | Remark]] = field(
        default_factory=dict
    )
    counts: Counter[tuple[str, str | None]] = field(default_factory=Counter)

    def add(self, row: int, fault: RowFaultError | Remark) -> None:
        """Count a fault of a row."""
        key = (fault.rule.code, fault.column)
        self.first.setdefault(key, (row, fault))
        self.counts[key] += 1

    def state(self) -> list[list[Any]]:
        """The counts as JSON values."""
        return [
            [row, fault.rule.code, fault.message, fault.column, fault.fix, self.counts[key]]
            for key, (row, fault) in self.first.items()
        ]

    def restore(self, state: Sequence[Sequence[Any]]) -> None:
        """Continue from a saved state."""
        for row, code, message, column, fix, count in state:
            self.first[code, column] = row, Remark(RULES[code], message, column, fix)
            self.counts[code, column] = count

    def findings(self) -> list[Finding]:
        """One Finding per kind of fault."""
        found = []
        for key, (row, fault) in self.first.items():
            where = self.table.where(row)
            more = self.counts[key] - 1
            tail = f" ({more} more row{'s' if more > 1 else ''} like it)" if more else ""
            message = f"row {where['row']}: {fault.message}{tail}"
            column = self.encoder.column_of(fault.column) if fault.column else None
            found.append(fault.rule.finding(message, where, fix=fault.fix, column=column))
        return found


@dataclass
class Tally:
    """What became of rows and their augmented copies; a row counts once, with all its copies."""

    remarks: Faults
    counts: Counter[str] = field(default_factory=Counter)
    dropped: dict[str, list[int]] = field(default_factory=dict)
    dropped_copies: Counter[str] = field(default_factory=Counter)

    def drop_row(self, number: int, skip: SkipRowError) -> None:
        """Count a row that is dropped."""
        self.dropped.setdefault(skip.reason, []).append(number)
        if skip.remark is not None:
            self.remarks.add(number, skip.remark)

    def add_row(
        self,
        number: int,
        first: EncodedRow,
        copies: Sequence[tuple[int, EncodedRow | SkipRowError, bool]],
    ) -> list[tuple[int, EncodedRow]]:
        """Count a row and its augmented copies; return the copies that are kept, by number."""
        for remark in first.remarks:
            self.remarks.add(number, remark)
        kept = [(0, first)]
        if not copies:  # the common case
            self._count(first.num_targets, first.truncated, first.learns_eos)
            return kept
        for copy, made, is_equal in copies:
            self.counts["equal_copies"] += is_equal
            if isinstance(made, SkipRowError):
                self.dropped_copies[made.reason] += 1
            else:
                kept.append((copy, made))
        self._count(
            sum(each.num_targets for _, each in kept),
            any(each.truncated for _, each in kept),
            all(each.learns_eos for _, each in kept),
        )
        return kept

    def _count(self, num_targets: int, truncated: bool, learns_eos: bool) -> None:
        self.counts["rows"] += 1
        self.counts["trained_tokens"] += num_targets
        self.counts["truncated_rows"] += truncated
        self.counts["rows_learning_eos"] += learns_eos

    def state(self) -> dict[str, Any]:
        """The counts as JSON values."""
        return {
            "remarks": self.remarks.state(),
            "counts": dict(self.counts),
            "dropped": self.dropped,
            "dropped_copies": dict(self.dropped_copies),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self.remarks.restore(state["remarks"])
        self.counts.update(state["counts"])
        self.dropped.update(state["dropped"])
        self.dropped_copies.update(state["dropped_copies"])

    def notes(self) -> dict[str, Any]:
        """The counts that a Store keeps."""
        return {
            "counts": dict(self.counts),
            "dropped": {reason: len(hit) for reason, hit in self.dropped.items()},
            "dropped_examples": {reason: hit[:3] for reason, hit in self.dropped.items()},
            "dropped_copies": dict(self.dropped_copies),
            "findings": [asdict(found) for found in self.remarks.findings()],
        }
