"""Bad rows of token ids: each fault is a finding with its row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bad_input import found_by_check

from builders import (
    write_jsonl,
)

pytestmark = pytest.mark.usefixtures("folder")


def tokens(place: int, ids: Any, labels: Any) -> list[dict[str, Any]]:
    """Tokenized rows, one of them odd."""
    rows: list[dict[str, Any]] = [
        {"input_ids": [5, 6, 7 + n], "labels": [-100, 6, 7 + n]} for n in range(20)
    ]
    rows[place] = {"input_ids": ids, "labels": labels}
    return rows


TOKEN_FAULTS: dict[str, tuple[list[dict[str, Any]], str, int, str | None, str]] = {
    "id beyond the vocabulary": (
        tokens(17, [5, 99_999], [5, 6]),
        "SF302",
        17,
        "input_ids",
        "input_ids[1] is 99999, but the model's vocabulary has 512 tokens",
    ),
    "negative id": (tokens(3, [-1, 5], [5, 6]), "SF302", 3, "input_ids", "input_ids[0] is -1"),
    "label beyond the vocabulary": (
        tokens(3, [5, 6], [5, 99_999]),
        "SF302",
        3,
        "labels",
        "labels[1] is 99999",
    ),
    "labels longer than ids": (
        tokens(8, [5, 6], [5, 6, 7]),
        "SF201",
        8,
        "labels",
        "column 'labels' has length 3, but 'input_ids', which it is aligned with, has length 2",
    ),
    "labels shorter than ids": (tokens(8, [5, 6], [5]), "SF201", 8, "labels", "has length 1"),
    "no value among the ids": (tokens(8, [5, None], [5, 6]), "SF207", 8, "input_ids", "nan at [1]"),
    "fractions": (tokens(8, [5.5, 6], [5, 6]), "SF213", 8, "input_ids", "fractions"),
    "one label per row": (
        [{"input_ids": [5, n], "labels": n % 2} for n in range(20)],
        "SF208",
        0,
        "labels",
        "expected one list of ids",
    ),
    "ids in two axes": (
        [{"input_ids": [[5, n]], "labels": [[5, n]]} for n in range(20)],
        "SF208",
        0,
        "input_ids",
        "expected one list of ids",
    ),
    "text as ids": (
        [{"input_ids": ["a", str(n)], "labels": [5, 6]} for n in range(20)],
        "SF213",
        0,
        "input_ids",
        "expected numbers",
    ),
    "longer than the model's positions": (
        tokens(8, [5] * 600, [5] * 600),
        "SF304",
        8,
        None,
        "longer than the 512 positions of the model: row 8 has 600 tokens.",
    ),
    "nothing to learn at all": (
        [{"input_ids": [5, n], "labels": [-100, -100]} for n in range(20)],
        "SF401",
        0,
        None,
        "No training row is left of 20: 20 rows have no labelled token.",
    ),
}


@pytest.mark.parametrize("name", TOKEN_FAULTS)
def test_fault_of_tokenised_rows_is_a_finding_with_its_row(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    rows, expected, row, column, message = TOKEN_FAULTS[name]
    write_jsonl(folder / "tokens.jsonl", rows)
    options = ["--data", "tokens.jsonl", "--model", "tiny:llama", "--max-seq-length", "900"]
    code, plan = found_by_check(capsys, *options, "--set", "eval_share=0")
    assert code == 1
    (found,) = (found for found in plan["findings"] if found["severity"] == "error")
    assert found["code"] == expected
    assert found["where"]["file"] == "tokens.jsonl"
    assert found["where"]["row"] == row
    assert found["where"].get("column") == column
    assert message in found["message"]


def test_row_with_nothing_to_learn_is_dropped(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_jsonl(folder / "tokens.jsonl", tokens(6, [5, 6], [-100, -100]))
    code, plan = found_by_check(capsys, "--data", "tokens.jsonl", "--model", "tiny:llama")
    assert code == 0
    assert plan["ledger"]["dropped_rows"] == {"nothing_to_learn": 1}
    (found,) = (f for f in plan["findings"] if "no labelled token" in f["message"])
    assert found["where"]["row"] == 6
