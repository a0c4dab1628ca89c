"""What a task's `encode` makes of one row; what may be wrong with it, and why it is dropped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.data.data_rules import USER_DATA_CODE_FAILED
from surefit.errors import SurefitError, describe_error
from surefit.findings import NOTE, Rule, rule
from surefit.inputs.batch_tokenizing import Text, Tokenized

if TYPE_CHECKING:
    from surefit.inputs.encoder import Encoder


class DropReason(StrEnum):
    """Every reason for which surefit drops a row; the value is its key in the ledger.

    >>> DropReason.NO_LABEL == "no_label", DropReason.NO_LABEL.phrase
    (True, 'without a label')
    """

    phrase: str
    """Describes one row, or several."""
    fix: str

    def __new__(cls, key: str, phrase: str, fix: str) -> DropReason:
        """Return a member with what messages say about its rows."""
        member = str.__new__(cls, key)
        member._value_, member.phrase, member.fix = key, phrase, fix
        return member

    EMPTY = "empty", "empty", "Fill in the missing input or answer, or delete the rows."
    NO_LABEL = "no_label", "without a label", "Add the missing labels, or delete the rows."
    UNKNOWN_LABEL = (
        "unknown_label",
        "with a label that no training row has",
        "Correct the label, or add training rows that have it.",
    )
    NO_LABELLED_TOKEN = (
        "nothing_to_learn",
        "without a labelled token",
        "Check that the labels are not all -100, and that max_seq_length keeps the answer.",
    )
    NO_TARGET = (
        "no_target",
        "without a target",
        "Add the missing targets, or check what the task's count_targets counts.",
    )
    MASKED = (
        "mask_all_zero",
        "with a mask that is all zero",
        "Set the mask to 1 at the positions to use, or delete the rows.",
    )
    OVERLONG = (
        "overlong",
        "longer than the limit",
        "Raise max_seq_length (for audio: audio.seconds), shorten the rows, or set "
        "overlong=truncate.",
    )
    BAD_FILE = (
        "bad_file",
        "with a file that cannot be read",
        "Replace the unreadable files; on_bad_file=error names the first of them.",
    )
    BAD_MESSAGES = (
        "bad_messages",
        "with invalid messages",
        "Correct the messages: each needs a known role and content, in the order of a dialogue.",
    )
    TEMPLATE = (
        "template",
        "unsuited to the chat template",
        "Correct the rows, or choose another template.",
    )
    BAD_ANSWER = (
        "bad_answer",
        "with an answer that is marked as bad",
        "Remove SF131 from accept if bad answers should stop the run.",
    )
    TEST_PART = (
        "test_row",
        "for testing",
        "Train on them as well: split.column=none.",
    )
    IN_GAP = (
        "in_gap",
        "in the gap before the validation set",
        "Set a smaller split.gap.",
    )
    HELD_OUT = (
        "validation_row",
        "with the input of a validation row",
        "Use other changes under augment.changes, if such copies are many.",
    )
    NOT_COLLATED = (
        "not_collated",
        "behind the batch that failed",
        "Correct the batch that failed; the rows after it were not read.",
    )


KNOWN: dict[str, DropReason] = {reason.value: reason for reason in DropReason}


def phrase_of(reason: str) -> str:
    """What a message says about rows that are dropped; a task's own reason is quoted as it is."""
    return KNOWN[reason].phrase if reason in KNOWN else reason


def describe_counts(counts: Mapping[str, int]) -> str:
    """Return how many rows are dropped for each reason.

    >>> describe_counts({"empty": 2, "no_label": 1, "too short": 3000})
    '2 empty, 1 without a label, 3,000 too short'
    """
    return ", ".join(f"{count:,} {phrase_of(reason)}" for reason, count in counts.items())


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

    Raised, it refuses the data, or, with a `reason`, drops the row (see `drop_row`). A row that is
    used nevertheless carries such faults.
    """

    rule: Rule
    message: str
    column: str | None = None
    fix: str = ""
    place: int | None = None
    """That of the row among those that were fitted on, if it is not the last one read."""
    counted: bool = False
    """Whether the message is about all rows like it: they are counted, and three are named."""
    reason: str = ""
    """Why the row is dropped, as the ledger counts it; empty where it is not."""
    also: tuple[RowFaultError, ...] = ()
    """Other faults of a row that is dropped."""

    @property
    def faults(self) -> tuple[RowFaultError, ...]:
        """What is worth a Finding."""
        return (self, *self.also) if self.message else self.also

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.reason, self.message)))


def drop_row(
    reason: str,
    rule: Rule = NOTE,
    message: str = "",
    column: str | None = None,
    also: tuple[RowFaultError, ...] = (),
) -> RowFaultError:
    """Return the fault to raise so that one row is dropped, counted under the reason.

    The tasks of surefit use a DropReason. Another task may use any text; messages quote it. With a
    Rule, the fault is a Finding as well.
    """
    return RowFaultError(rule, message, column, reason=reason, also=also)


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
        known = (RowFaultError, SurefitError)
        if error is None or isinstance(error, known) or not isinstance(error, Exception):
            return
        function = self._function
        module = getattr(function, "__module__", None) or ""
        if module.split(".")[0] == "surefit":
            return
        name = getattr(function, "__qualname__", type(function).__name__)
        message = f"{module}.{name} raised {describe_error(error)}"[:300]
        fix = f"Repair {name}, or let it raise drop_row(reason) for rows to be dropped."
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
class TokenSequence:
    """Tokens of a row, or of one of its blocks, and what a Target reads its labels off."""

    ids: npt.NDArray[np.int64]
    answers: Sequence[tuple[int, int]] | None = None
    """Start and end of each answer that is learned; None: all tokens are."""
    prompt_length: int | None = None
    """Where the last answer starts."""
    labels: npt.NDArray[np.int64] | None = None
    """Those of the data, if it has some."""
    truncated: int = 0
    faults: tuple[RowFaultError, ...] = ()


LabelTokens = Callable[[TokenSequence], Encoded]
"""How a Target makes an encoded row of tokens."""


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
    """Return the Encoding of a row that has no text to tokenize."""
    row = Encoded(columns, truncated, learns_eos)
    return Encoding(lambda tokens: row)


EncodeRow = Callable[[Mapping[str, Any], "Encoder"], Encoding | Mapping[str, Any]]
"""A task's `encode`; a plain dict of columns is short for `encoded(columns)`."""


def is_overlong(length: int, encoder: Encoder) -> bool:
    """Return whether a row of so many tokens is over the limit."""
    return encoder.max_length is not None and length > encoder.max_length


def refuse_overlong(
    length: int,
    encoder: Encoder,
    unit: str = "tokens",
    column: str | None = None,
    limit: str | None = None,
    dropped: Rule = NOTE,
) -> None:
    """Raise the error or drop the row, as `overlong` says; return if it is truncated or split.

    With the rule `dropped`, a dropped row is a Finding as well.
    """
    policy = encoder.settings.overlong
    if policy == "error":
        limit = limit or f"max_seq_length is {encoder.max_length}"
        message = f"{length} {unit}, but {limit}"
        raise RowFaultError(OVERLONG_ROW, message, column)
    if policy == "drop":
        found = "" if dropped is NOTE else f"{length} {unit}, but the limit is {encoder.max_length}"
        raise drop_row(DropReason.OVERLONG, dropped, found)


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
        """Return the values of all columns, to compare rows."""
        return b"\0".join(np.ascontiguousarray(value).tobytes() for value in self.columns.values())
