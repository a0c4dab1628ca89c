"""Why a row is dropped: the key in the ledger, the words in messages, and the fix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum


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
