"""Preference data that would teach something else, and data that only looks like it."""

from __future__ import annotations

from typing import Any

from faults.case import Case
from faults.columns import bot, user

Row = dict[str, Any]
OPTIONS = "--task preference"


def compared(count: int = 24, **changed: Any) -> list[Row]:
    """Pairs of answers, of which neither side is the longer one more often."""
    made: list[Row] = []
    for n in range(count):
        good, bad = f"It is {2 * n}.", f"It is {2 * n + 1}."
        if n % 2:
            good = f"The sum is {2 * n}, as you can check by hand."
        else:
            bad = f"The sum is {2 * n + 1}, as you can check by hand."
        row: Row = {"prompt": f"What is {n} and {n}?", "chosen": good, "rejected": bad}
        made.append({**row, **{name: make(n, row) for name, make in changed.items()}})
    return made


def judged(good: Any) -> list[Row]:
    """Single answers, each good or bad."""
    return [
        {"prompt": f"What is {n} and {n}?", "completion": f"It is {2 * n}.", "label": good(n)}
        for n in range(40)
    ]


def neighbours(count: int = 24, **changed: Any) -> list[Row]:
    """Questions with the answer that belongs to each, and one that does not."""
    made: list[Row] = []
    for n in range(count):
        texts = (f"What is {n} and {n}?", f"The sum is {2 * n}.", f"The sum is {2 * n + 1}.")
        row: Row = dict(zip(("anchor", "positive", "negative"), texts, strict=True))
        made.append({**row, **{name: make(n, row) for name, make in changed.items()}})
    return made


def pairs(rows: list[Row]) -> list[Row]:
    """The same without the negatives."""
    return [{name: row[name] for name in ("anchor", "positive")} for row in rows]


VECTORS: dict[str, Any] = {"model": "tiny:bert", "options": "--task embedding"}
SWAPPED = [{**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in compared(2)]

CASES = [
    Case(
        "SF259 a negative that is its positive",
        neighbours(negative=lambda n, row: row["positive" if n == 3 else "negative"]),
        **VECTORS,
    ),
    Case(
        "SF260 pairs with one answer",
        pairs(neighbours(positive=lambda n, row: row["positive" if n % 8 else "anchor"][:12])),
        **VECTORS,
    ),
    Case(
        "SF261 pairs in batches of one",
        pairs(neighbours()),
        "tiny:bert",
        "--task embedding --batch-size 1",
    ),
    Case(
        "SF460 pairs of equal answers",
        compared(rejected=lambda n, row: row["chosen"] if n == 3 else row["rejected"]),
        options=OPTIONS,
    ),
    Case("SF461 preferences both ways", [*compared(), *SWAPPED], options=OPTIONS),
    Case(
        "SF462 the longer answer is always chosen",
        compared(chosen=lambda n, row: f"{row['rejected']} That is right, and easy to see."),
        options=OPTIONS,
    ),
    Case("SF463 good answers only", judged(lambda n: True), options=OPTIONS),
    Case("SF464 hardly a bad answer", judged(lambda n: n % 20 != 0), options=OPTIONS),
    Case(
        "SF465 sides with questions of their own",
        [
            {
                "chosen": user(f"What is {n} and {n}?") + bot(f"It is {2 * n}."),
                "rejected": user(f"What makes {n} and {n}?") + bot(f"It is {2 * n + 1}."),
            }
            for n in range(24)
        ],
        options=OPTIONS,
    ),
    Case(
        "SF466 chosen answers that refuse",
        compared(chosen=lambda n, row: "I'm sorry, but I cannot." if n % 4 == 0 else row["chosen"]),
        options=OPTIONS,
    ),
    Case(
        "SF460 dialogues that end alike",
        [
            {
                "chosen": user(row["prompt"]) + bot(row["chosen"]),
                "rejected": user(row["prompt"]) + bot(row["rejected" if n % 6 else "chosen"]),
            }
            for n, row in enumerate(compared())
        ],
        options=OPTIONS,
    ),
    Case(
        "SF461 an answer that is good and bad",
        [*judged(lambda n: n % 2 == 0), *judged(lambda n: n % 2 == 1)[:2]],
        options=OPTIONS,
    ),
    Case(
        "SF462 the shorter answer is always chosen",
        compared(rejected=lambda n, row: f"{row['chosen']} That is right, and easy to see."),
        options=OPTIONS,
    ),
    Case("SF463 bad answers only", judged(lambda n: False), options=OPTIONS),
    Case("SF464 hardly a good answer", judged(lambda n: n % 20 == 0), options=OPTIONS),
    Case(
        "SF465 sides with turns of their own",
        [
            {
                "chosen": user(f"What is {n} and {n}?") + bot(f"It is {2 * n}."),
                "rejected": user(f"Hello, {n}!")
                + bot("Hello!")
                + user(f"What is {n} and {n}?")
                + bot(f"It is {2 * n + 1}."),
            }
            for n in range(24)
        ],
        options=OPTIONS,
    ),
    Case(
        "SF466 chosen answers of an AI that is not able to",
        compared(
            chosen=lambda n, row: (
                "As an AI, I have no numbers to add." if n % 4 == 0 else row["chosen"]
            )
        ),
        options=OPTIONS,
    ),
]

HEALTHY = [
    Case("triplets", neighbours(), **VECTORS),
    Case(
        "not SF461: a chosen answer compared with two others",
        [*compared(), *compared(2, rejected=lambda n, row: f"It is {2 * n + 3}, or so.")],
        options=OPTIONS,
    ),
    Case("not SF460 SF462 SF465: pairs", compared(), options=OPTIONS),
    Case(
        "not SF463 SF464: as many good as bad answers",
        judged(lambda n: n % 2 == 0),
        options=OPTIONS,
    ),
    Case(
        "not SF466: rejected answers that refuse",
        compared(
            rejected=lambda n, row: "I'm sorry, but I cannot." if n % 4 == 0 else row["rejected"]
        ),
        options=OPTIONS,
    ),
]
