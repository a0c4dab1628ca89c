"""One encoded row, or why there is none: what a task's `encode` returns or raises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.encode.drop_reasons import DropReason
from surefit.encode.encoder import Encoder
from surefit.encode.text.batch_tokenizing import Pending
from surefit.findings import Rule, rule

OVERLONG_ROW = rule(
    "SF212",
    "error",
    "overlong row",
    why="overlong=error was asked for, and a row is longer than the limit.",
    fix="Raise max_seq_length, shorten the row, or set overlong=truncate or drop.",
)


class RowFaultError(Exception):
    """One row that cannot be encoded: the Rule it breaks, what is wrong, and the column."""

    def __init__(self, rule: Rule, message: str, column: str | None = None, fix: str = "") -> None:
        super().__init__(message)
        self.rule = rule
        self.message = message
        self.column = column
        self.fix = fix


@dataclass(frozen=True)
class Remark:
    """What is to be said of a row without stopping the rest: its Rule, what, column."""

    rule: Rule
    message: str
    column: str | None = None
    fix: str = ""


@dataclass(frozen=True)
class Encoded:
    """One encoded row, and what was done to it."""

    columns: Mapping[str, Any]
    truncated: bool = False
    learns_eos: bool = False
    remarks: tuple[Remark, ...] = ()


@dataclass(frozen=True)
class Skip:
    """A row that is dropped, the reason, and what is worth a Finding.

    surefit's own tasks give a DropReason. Another task may give any text; messages quote it.
    """

    reason: str
    remark: Remark | None = None


def refuse_overlong(
    length: int, encoder: Encoder, unit: str = "tokens", column: str | None = None
) -> Skip | None:
    """What the user wants of a row over the limit: a fault, a Skip, or None to cut it."""
    policy = encoder.settings["overlong"]
    if policy == "error":
        message = f"{length} {unit}, but max_seq_length is {encoder.max_length}"
        raise RowFaultError(OVERLONG_ROW, message, column)
    return Skip(DropReason.OVERLONG) if policy == "drop" else None


@dataclass(frozen=True)
class EncodedRow:
    """One row as the Store takes it: columns in their dtypes, and how much it teaches."""

    columns: Mapping[str, npt.NDArray[Any]]
    num_targets: int
    truncated: bool
    learns_eos: bool
    remarks: tuple[Remark, ...] = ()

    def content(self) -> bytes:
        """The columns' values, by which two rows are alike."""
        return b"\0".join(np.ascontiguousarray(value).tobytes() for value in self.columns.values())


EncodeRow = Callable[[Mapping[str, Any], Encoder], Encoded | Skip | Pending | Mapping[str, Any]]
