"""What a task's `encode` makes of one row, and the exceptions that drop or refuse a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.data.data_rules import USER_DATA_CODE_FAILED
from surefit.encode.drop_reasons import DropReason
from surefit.encode.encoder import Encoder
from surefit.encode.text.batch_tokenizing import Text, Tokenized
from surefit.errors import SurefitError, describe_error
from surefit.findings import Rule, rule

OVERLONG_ROW = rule(
    "SF212",
    "error",
    "overlong row",
    why="A row is longer than the limit, and overlong=error refuses such rows.",
    fix=(
        "Raise max_seq_length (for audio: audio.seconds), shorten the row, or set "
        "overlong=truncate or drop."
    ),
)


class RowFaultError(Exception):
    """One row that cannot be encoded: the Rule it breaks, what is wrong, and the column.

    `place` is that of the row among those that were fitted on, if it is not the last one read.
    """

    def __init__(
        self,
        rule: Rule,
        message: str,
        column: str | None = None,
        fix: str = "",
        place: int | None = None,
    ) -> None:
        super().__init__(message)
        self.rule = rule
        self.message = message
        self.column = column
        self.fix = fix
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent from one process to another."""
        return type(self), (self.rule, self.message, self.column, self.fix, self.place)


@dataclass(frozen=True)
class Remark:
    """A Finding about a row that does not stop the others: its Rule, message and column."""

    rule: Rule
    message: str
    column: str | None = None
    fix: str = ""
    counted: bool = False
    """Whether the message is about all rows like it: they are counted, and three are named."""


class SkipRowError(Exception):
    """One row that is dropped: the reason it is counted under, and what is worth a Finding.

    The tasks of surefit use a DropReason. Another task may use any text; messages quote it.
    """

    def __init__(self, reason: str, remark: Remark | None = None, *more: Remark) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remark = remark
        self.more = more


class NamingOwnCode:
    """What a user's own function raises becomes a fault of the row it was called for.

    A class, as it is entered twice per row: a generator would take three times as long.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __enter__(self) -> None:
        """Nothing is prepared."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Name the function in what it raised."""
        known = (RowFaultError, SkipRowError, SurefitError)
        if error is None or isinstance(error, known) or not isinstance(error, Exception):
            return
        function = self._function
        module = getattr(function, "__module__", None) or ""
        if module.split(".")[0] == "surefit":
            return
        name = getattr(function, "__qualname__", type(function).__name__)
        message = f"{module}.{name} raised {describe_error(error)}"[:300]
        fix = f"Repair {name}, or let it raise SkipRowError for rows to be dropped."
        raise RowFaultError(USER_DATA_CODE_FAILED, message, fix=fix) from error


@dataclass(frozen=True)
class Encoded:
    """The columns of one row, or of one block of a row that is split."""

    columns: Mapping[str, Any]
    truncated: int = 0
    """How many tokens or time steps are cut off."""
    learns_eos: bool = False
    remarks: tuple[Remark, ...] = ()


@dataclass(frozen=True)
class Encoding:
    """A row before tokenization: its texts, and how their tokens become the encoded row.

    The texts of many rows are tokenized at once. With `special`, the tokenizer adds its own
    special tokens. `finish` returns several blocks for a row that is split.
    """

    finish: Callable[[list[Tokenized]], Encoded | Sequence[Encoded]]
    texts: Sequence[Text] = ()
    special: bool = True
    ends: bool = False
    """Whether `finish` is to be told where each token ends in the text."""


def encoded(columns: Mapping[str, Any], truncated: int = 0, learns_eos: bool = False) -> Encoding:
    """The Encoding of a row that has no text to tokenize."""
    row = Encoded(columns, truncated, learns_eos)
    return Encoding(lambda tokens: row)


EncodeRow = Callable[[Mapping[str, Any], Encoder], Encoding | Mapping[str, Any]]
"""A task's `encode`; a plain dict of columns is short for `encoded(columns)`."""


def refuse_overlong(
    length: int,
    encoder: Encoder,
    unit: str = "tokens",
    column: str | None = None,
    limit: str | None = None,
) -> None:
    """Raise the error or drop the row, as `overlong` says; return if it is truncated or split."""
    policy = encoder.settings["overlong"]
    if policy == "error":
        limit = limit or f"max_seq_length is {encoder.max_length}"
        message = f"{length} {unit}, but {limit}"
        raise RowFaultError(OVERLONG_ROW, message, column)
    if policy == "drop":
        raise SkipRowError(DropReason.OVERLONG)


@dataclass(frozen=True)
class EncodedRow:
    """One row, or one block of it, as the Store takes it: columns in their dtypes."""

    columns: Mapping[str, npt.NDArray[Any]]
    num_targets: int
    truncated: int
    """How many tokens or time steps are cut off."""
    learns_eos: bool
    remarks: tuple[Remark, ...] = ()

    def content(self) -> bytes:
        """The values of all columns, to compare rows."""
        return b"\0".join(np.ascontiguousarray(value).tobytes() for value in self.columns.values())
