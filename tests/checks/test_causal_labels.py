"""Labels of a causal model against its tokens, with known answers."""

from __future__ import annotations

from typing import Any

import pytest

from surefit.checks.causal_labels import (
    KnownTokens,
    LabelTally,
    TokenRows,
    check_labels,
)

EOS, PAD = 2, 0
KNOWN = KnownTokens(PAD, frozenset({EOS}))
SAME = KnownTokens(EOS, frozenset({EOS}))
ROWS = [[5, 6, 7 + n, 9 + n % 2, EOS] for n in range(6)]


def found(rows: list[tuple[Any, Any, Any]], known: KnownTokens = KNOWN) -> dict[str, str]:
    tally = LabelTally(known)
    for place, row in enumerate(rows):  # in parts, as large data is
        tally.add(TokenRows.of_rows([row]), [place])
    return {each.code: each.message for each in check_labels(tally, lambda row: {"row": row})}


def masked(ids: list[int]) -> list[int]:
    return [-100, -100, *ids[2:]]


HEALTHY: dict[str, tuple[list[tuple[Any, Any, Any]], KnownTokens]] = {
    "labels equal to the tokens": ([(ids, ids, None) for ids in ROWS], KNOWN),
    "prompts masked": ([(ids, masked(ids), None) for ids in ROWS], KNOWN),
    "one token repeated": ([([7] * 6, [7] * 6, None)] * 4, KnownTokens()),
    "padding masked": (
        [(ids + [PAD] * 3, ids + [-100] * 3, [1] * 5 + [0] * 3) for ids in ROWS],
        KNOWN,
    ),
    "padding on the left": (
        [([PAD] * 3 + ids, [-100] * 3 + ids, [0] * 3 + [1] * 5) for ids in ROWS],
        KNOWN,
    ),
    "pad is eos, and eos is learned": (
        [(ids + [EOS] * 3, ids + [-100] * 3, [1] * 5 + [0] * 3) for ids in ROWS],
        SAME,
    ),
    "bos, eos and pad are one token": ([([EOS, *ids], [EOS, *ids], None) for ids in ROWS], SAME),
    "eos in some rows, the others cut off": (
        [(ids[: 5 - n % 2], masked(ids[: 5 - n % 2]), None) for n, ids in enumerate(ROWS)],
        KNOWN,
    ),
    "another token ends every answer": (
        [([*ids[:-1], 99], masked([*ids[:-1], 99]), None) for ids in ROWS],
        KNOWN,
    ),
    "blocks of one long text": ([(ids[:-1], ids[:-1], None) for ids in ROWS], KNOWN),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_found_in_healthy_labels(name: str) -> None:
    assert found(*HEALTHY[name]) == {}


@pytest.mark.parametrize(("shift", "text"), [(1, "t + 1"), (2, "t + 2"), (-1, "t - 1")])
def test_shifted_labels(shift: int, text: str) -> None:
    texts = [list(range(5 + n, 13 + n)) for n in range(4)]
    if shift > 0:
        rows = [(ids, ids[shift:] + [-100] * shift, None) for ids in texts]
    else:
        rows = [(ids, [-100, *ids[:-1]], None) for ids in texts]
    codes = found(rows, KnownTokens())
    assert codes == {
        "SF150": f"{4 * (8 - abs(shift))} labels are shifted: the label at t is the token "
        f"at {text}; in 4 of 4 rows (rows 0, 1, 2, for example)."
    }


def test_counts_of_rows_and_tokens() -> None:
    rows: list[tuple[Any, Any, Any]] = [(ids, ids, None) for ids in ROWS]
    rows[1] = (ROWS[1], [5, 6, 30, 31, EOS], None)
    rows[4] = (ROWS[4] + [PAD] * 3, ROWS[4] + [PAD] * 3, None)
    rows[5] = (ROWS[5], ROWS[5], [1, 1, 0, 1, 1])
    assert found(rows) == {
        "SF156": "2 labels are not the token at the same position; in 1 of 6 rows (row 1).",
        "SF151": "3 labels are on padding; in 1 of 6 rows (row 4).",
        "SF152": "1 label is at positions where attention_mask is 0; in 1 of 6 rows (row 5).",
    }


def test_a_word_that_ends_every_answer_is_no_end() -> None:
    known = KnownTokens(PAD, frozenset({EOS}), special=frozenset({PAD, EOS}))
    rows: list[tuple[Any, Any, Any]] = [
        ([*ids[:-1], 99], masked([*ids[:-1], 99]), None) for ids in ROWS
    ]
    assert found(rows, known).keys() == {"SF155"}
