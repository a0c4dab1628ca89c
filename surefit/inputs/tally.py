"""Counts of encoded and dropped rows, and the faults found in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from surefit.batches.branches import FIRST, LENGTHS, PROMPT, is_branched, sequence_lengths
from surefit.data.table import Table
from surefit.findings import NOTE, RULES, Finding
from surefit.inputs.encoded_row import EncodedRow, RowFaultError
from surefit.inputs.encoder import Encoder

NAMED_ROWS = 3
"""How many rows of a fault are named."""
Blocks = tuple[EncodedRow, ...]
"""A row, or an augmented copy of one: a single block unless the row is split."""


@dataclass
class Faults:
    """The first rows of each kind of fault, and how many rows have it."""

    table: Table
    encoder: Encoder
    first: dict[tuple[str, str | None], tuple[list[int], RowFaultError]] = field(
        default_factory=dict
    )
    counts: Counter[tuple[str, str | None]] = field(default_factory=Counter)

    def add(self, row: int, fault: RowFaultError) -> None:
        """Count a fault of a row."""
        key = (fault.rule.code, fault.column)
        rows, _ = self.first.setdefault(key, ([], fault))
        if len(rows) < NAMED_ROWS:
            rows.append(row)
        self.counts[key] += 1

    def state(self) -> list[list[Any]]:
        """Return the counts as JSON values."""
        return [
            [rows, *key, each.message, each.fix, each.counted, each.reason, self.counts[key]]
            for key, (rows, each) in self.first.items()
        ]

    def restore(self, state: Sequence[Sequence[Any]]) -> None:
        """Add the saved state of other rows."""
        for rows, code, column, message, fix, counted, reason, count in state:
            broken = RULES.get(code, NOTE)
            fault = RowFaultError(broken, message, column, fix, counted=counted, reason=reason)
            own, _ = self.first.setdefault((code, column), ([], fault))
            own[:] = sorted({*own, *rows})[:NAMED_ROWS]
            self.counts[code, column] += count

    def findings(self, num_rows: int | None = None) -> list[Finding]:
        """Return one Finding per kind of fault; `num_rows` is the number of rows that were read."""
        found = []
        for key, (rows, fault) in self.first.items():
            where = self.table.where(rows[0])
            if fault.counted:
                numbers = ", ".join(str(self.table.where(row)["row"]) for row in rows)
                of = f" of {num_rows:,}" if num_rows is not None else ""
                example = f"row {numbers}" if len(rows) == 1 else f"rows {numbers}, for example"
                message = f"{self.counts[key]:,}{of} rows: {fault.message} ({example})."
            else:
                more = self.counts[key] - 1
                others = [str(self.table.where(row)["row"]) for row in rows[1:]]
                shown = ", ".join(others) + ", …" * (more > len(others))
                like_it = f" ({more:,} more row{'s' if more > 1 else ''} like it: {shown})"
                tail = like_it if more else ""
                message = f"row {where['row']}: {fault.message}{tail}"
            column = self.encoder.column_of(fault.column) if fault.column else None
            found.append(fault.rule.finding(message, where, fix=fault.fix, column=column))
        return found


@dataclass
class Tally:
    """What became of rows, their blocks and their augmented copies.

    A row counts once, with all its blocks and copies.
    """

    remarks: Faults
    counts: Counter[str] = field(default_factory=Counter)
    dropped: dict[str, list[int]] = field(default_factory=dict)
    dropped_copies: Counter[str] = field(default_factory=Counter)

    def drop_row(self, number: int, skip: RowFaultError) -> None:
        """Count a row that is dropped."""
        self.dropped.setdefault(skip.reason, []).append(number)
        for fault in skip.faults:
            self.remarks.add(number, fault)

    def add_row(
        self,
        number: int,
        first: Blocks,
        copies: Sequence[tuple[int, Blocks | RowFaultError, bool]],
    ) -> list[tuple[int, EncodedRow]]:
        """Count a row and its augmented copies; return the blocks that are kept, by copy.

        A block without a target is not kept.
        """
        for block in first:
            for fault in block.faults:
                self.remarks.add(number, fault)
        made = [(0, first)]
        for copy, blocks, is_equal in copies:
            self.counts["equal_copies"] += is_equal
            if isinstance(blocks, RowFaultError):
                self.dropped_copies[blocks.reason] += 1
            else:
                made.append((copy, blocks))
        every = [(copy, block) for copy, blocks in made for block in blocks]
        kept = [(copy, block) for copy, block in every if block.num_targets]
        truncated = sum(block.truncated for _, block in every)
        counts = self.counts
        counts["rows"] += 1
        counts["views"] += len(made)
        counts["trained_tokens"] += sum(block.num_targets for _, block in kept)
        counts["truncated_rows"] += truncated > 0
        counts["truncated_tokens"] += truncated
        if first[0].truncated and "input_ids" in first[0].columns:
            whole = _row_length(first[0].columns) + first[0].truncated
            counts[f"{LONGER}{length_edge(whole)}"] += 1
            counts[f"{LONGER}{length_edge(whole)} tokens"] += whole
        counts["rows_learning_eos"] += all(blocks[-1].learns_eos for _, blocks in made)
        if len(first) > 1:
            counts["split_rows"] += 1
            counts["split_blocks"] += sum(copy == 0 for copy, _ in kept)
            counts["dropped_blocks"] += len(every) - len(kept)
        return kept

    def notes(self) -> dict[str, Any]:
        """Return the counts that a Store keeps."""
        return {
            "counts": dict(self.counts),
            "dropped": {reason: len(hit) for reason, hit in self.dropped.items()},
            "dropped_examples": {reason: hit[:3] for reason, hit in self.dropped.items()},
            "dropped_copies": dict(self.dropped_copies),
            "remarks": self.remarks.state(),
        }


LONGER = "rows up to "
"""How the counts of truncated rows begin, by their lengths before; with `tokens`, the sum."""


def length_edge(length: int) -> int:
    """Round a length up to 1, 1¼, 1½ or 1¾ times a power of two.

    >>> [length_edge(length) for length in (3, 9, 1025, 1280)]
    [3, 10, 1280, 1280]
    """
    step = 1 << max(0, length.bit_length() - 3)
    return -(-length // step) * step


def _row_length(columns: Mapping[str, Any]) -> int:
    """Return what `max_seq_length` bounds: of several sequences, the longest one."""
    if LENGTHS in columns:
        return int(max(columns[LENGTHS]))
    length = len(columns["input_ids"])
    if not is_branched(columns):
        return length
    return int(sequence_lengths(np.array([length]), columns[PROMPT], columns[FIRST])[0])


def remark_findings(
    sides: Sequence[tuple[Table, Mapping[str, Any], int]], encoder: Encoder
) -> tuple[list[Finding], frozenset[str]]:
    """Return the findings about rows that are used or dropped, from each side's notes of its Store;
    and the codes of those for which rows are dropped.

    `sides` have their Table, the notes and the number of rows. Sides of one Table are counted
    together, as their rows were split by surefit.
    """
    found, dropping = list[Finding](), set[str]()
    for key in dict.fromkeys(table.key for table, _, _ in sides):
        same = [side for side in sides if side[0].key == key]
        faults = Faults(same[0][0], encoder)
        for _, notes, _ in same:
            faults.restore(notes["remarks"])
        found += faults.findings(sum(num_rows for _, _, num_rows in same))
        dropping |= {fault.rule.code for _, fault in faults.first.values() if fault.reason}
    return found, frozenset(dropping)
