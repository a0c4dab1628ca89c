"""What a task's `encode` makes of one row; what may be wrong with it, and why it is dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.data.data_rules import USER_DATA_CODE_FAILED
from surefit.errors import SurefitError, describe_error
from surefit.findings import Rule, rule
from surefit.inputs.encoder import Encoder
from surefit.inputs.text.batch_tokenizing import Text, Tokenized


class DropReason(StrEnum):
    """Every reason for which surefit drops a row; the value is its key in the ledger.

    >>> DropReason.EMPTY == "empty", DropReason.EMPTY.plural
    (True, 'are empty')
    """

    singular: str
    plural: str
    fix: str

    def __new__(cls, key: str, singular: str, plural: str, fix: str) -> DropReason:
        """A member with the verb phrases that follow "1 row" and "2 rows"."""
        member = str.__new__(cls, key)
        member._value_ = key
        member.singular, member.plural, member.fix = singular, plural, fix
        return member

    EMPTY = (
        "empty",
        "is empty",
        "are empty",
        "Fill in the missing input or answer, or delete the rows.",
    )
    NO_LABEL = (
        "no_label",
        "has no label",
        "have no label",
        "Add the missing labels, or delete the rows.",
    )
    UNKNOWN_LABEL = (
        "unknown_label",
        "has a label that no training row has",
        "have a label that no training row has",
        "Correct the label, or add training rows that have it.",
    )
    NO_LABELLED_TOKEN = (
        "nothing_to_learn",
        "has no labelled token",
        "have no labelled token",
        "Check that the labels are not all -100, and that max_seq_length keeps the answer.",
    )
    NO_TARGET = (
        "no_target",
        "has no target",
        "have no target",
        "Add the missing targets, or check what the task's count_targets counts.",
    )
    MASKED = (
        "mask_all_zero",
        "has a mask that is all zero",
        "have a mask that is all zero",
        "Set the mask to 1 at the positions to use, or delete the rows.",
    )
    OVERLONG = (
        "overlong",
        "is longer than the limit",
        "are longer than the limit",
        "Raise max_seq_length (for audio: audio.seconds), shorten the rows, or set "
        "overlong=truncate.",
    )
    BAD_FILE = (
        "bad_file",
        "has a file that cannot be read",
        "have a file that cannot be read",
        "Replace the unreadable files; on_bad_file=error names the first of them.",
    )
    BAD_MESSAGES = (
        "bad_messages",
        "has invalid messages",
        "have invalid messages",
        "Correct the messages: each needs a known role and content, in the order of a dialogue.",
    )
    TEMPLATE = (
        "template",
        "does not fit the chat template",
        "do not fit the chat template",
        "Correct the rows, or choose another template.",
    )
    BAD_ANSWER = (
        "bad_answer",
        "has an answer that is marked as bad",
        "have an answer that is marked as bad",
        "Remove SF131 from accept if bad answers should stop the run.",
    )
    HELD_OUT = (
        "validation_row",
        "has the input of a validation row",
        "have the input of a validation row",
        "Use other changes under augment.changes, if such copies are many.",
    )
    NOT_COLLATED = (
        "not_collated",
        "comes after the batch that failed",
        "come after the batch that failed",
        "Correct the batch that failed; the rows after it were not read.",
    )


KNOWN: dict[str, DropReason] = {reason.value: reason for reason in DropReason}


def describe_counts(counts: Mapping[str, int], nouns: tuple[str, str] = ("row", "rows")) -> str:
    """How many rows are dropped for each reason; a task's own reason is quoted as it is.

    >>> describe_counts({"empty": 2, "no_label": 1, "too short": 3})
    '2 rows are empty, 1 row has no label, 3 rows: too short'
    """
    return ", ".join(
        _sentence(f"{count:,} {nouns[count != 1]}", reason, count)
        for reason, count in counts.items()
    )


def describe_rows(reason: str, rows: Sequence[int]) -> str:
    """The numbers of some rows and what is wrong with them.

    >>> describe_rows("empty", [4]), describe_rows("no_label", [5, 9])
    ('row 4 is empty', 'rows 5, 9 have no label')
    """
    numbers = ", ".join(map(str, rows))
    return _sentence(f"{'row' if len(rows) == 1 else 'rows'} {numbers}", reason, len(rows))


def fix_for(reasons: Iterable[str]) -> str:
    """What the user can do about rows that were dropped; empty for a task's own reasons.

    >>> fix_for(["no_label", "too short"])
    'Add the missing labels, or delete the rows.'
    """
    return " ".join(KNOWN[reason].fix for reason in reasons if reason in KNOWN)


def _sentence(rows: str, reason: str, count: int) -> str:
    known = KNOWN.get(reason)
    if known is None:
        return f"{rows}: {reason}"
    return f"{rows} {known.singular if count == 1 else known.plural}"


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


@dataclass(eq=False)
class RowFaultError(Exception):
    """What is wrong with a row: the Rule it breaks, the message, and the column.

    Raised, it refuses the data. A row that is dropped, or used nevertheless, carries such faults.
    """

    rule: Rule
    message: str
    column: str | None = None
    fix: str = ""
    place: int | None = None
    """That of the row among those that were fitted on, if it is not the last one read."""
    counted: bool = False
    """Whether the message is about all rows like it: they are counted, and three are named."""

    def __str__(self) -> str:
        return self.message


class SkipRowError(Exception):
    """One row that is dropped: the reason it is counted under, and what is worth a Finding.

    The tasks of surefit use a DropReason. Another task may use any text; messages quote it.
    """

    def __init__(self, reason: str, *faults: RowFaultError) -> None:
        super().__init__(reason, *faults)
        self.reason = reason
        self.faults = faults

    def __str__(self) -> str:
        return self.reason


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
    faults: tuple[RowFaultError, ...] = ()


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
    faults: tuple[RowFaultError, ...] = ()

    def content(self) -> bytes:
        """The values of all columns, to compare rows."""
        return b"\0".join(np.ascontiguousarray(value).tobytes() for value in self.columns.values())
