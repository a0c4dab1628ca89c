"""bench/compare_answers.py: answers of a LoRA run and of its base model, side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import surefit
from compare_answers import last_number, report, word_scores, write_answers
from surefit.tasks.metrics.text_scores import token_f1


class Words:
    """A tokenizer whose tokens are words."""

    def __init__(self) -> None:
        self.known: list[str] = []

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        self.known += text.split()
        first = len(self.known) - len(text.split())
        return {"input_ids": list(range(first, len(self.known)))}

    def decode(self, ids: list[int]) -> str:
        return " ".join(self.known[number] for number in ids)


def test_scores_of_cut_answers() -> None:
    rows = [
        {"expected": "red house 7", "before": "red house 8 8 8 8", "after": "red 7"},
        {"expected": "blue car 9", "before": "blue car 9 9 9 9", "after": "blue 9"},
    ]
    lines = list(report(rows, Words(), [3]))
    assert lines == [
        "2 rows; median tokens: expected 3, before 6, after 2",
        "first 3 tokens (answers as long or longer: before 100%, after 0%)",
        "  precision: 0.833 -> 1.000, rise +0.167 (standard error 0.167)",
        "  recall: 0.833 -> 0.667, rise -0.167 (standard error 0.167)",
        "  token_f1: 0.833 -> 0.800, rise -0.033 (standard error 0.167)",
        "last number right before: 1 of 2",
        "last number right after: 2 of 2",
    ]


@pytest.mark.parametrize("got", ["The red house.", "a car", "house house"])
def test_f1_is_that_of_the_metric(got: str) -> None:
    assert word_scores("red house", got)[2] == pytest.approx(token_f1("red house", got))


@pytest.mark.parametrize(
    ("text", "number"),
    [("2 * 9 = $1,800.", "1800"), ("#### -3.5", "-3.5"), ("none", None), ("18, then", "18")],
)
def test_last_number(text: str, number: str | None) -> None:
    assert last_number(text) == number


@pytest.mark.slow
def test_both_models_answer_every_row(tmp_path: Path) -> None:
    rows = [{"prompt": f"say {word}", "answer": word} for word in ("one", "two", "three") * 4]
    data, answers = tmp_path / "rows.jsonl", tmp_path / "answers.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    base, run = str(tmp_path / "base"), str(tmp_path / "run")
    generate = {"rows": 0, "max_new_tokens": 4}
    surefit.train(data=str(data), model="tiny:llama", max_steps=1, generate=generate, output=base)
    surefit.train(
        data=str(data),
        model=base,
        lora={"r": 2},
        lr=0.5,
        max_steps=3,
        generate=generate,
        output=run,
    )
    write_answers(Path(run), str(data), answers, max_new_tokens=4)
    made = [json.loads(line) for line in answers.read_text("utf-8").splitlines()]
    assert [row["expected"] for row in made] == [row["answer"] for row in rows]
    for model, name in ((base, "before"), (run, "after")):
        predicted = [row["prediction"] for row in surefit.predict(model, str(data))]
        assert [row[name] for row in made] == predicted
    assert any(row["before"] != row["after"] for row in made)
