"""The split by input: what a model reads is in one set, whatever the target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import surefit
from surefit.data.split import split_by_input

Row = dict[str, Any]


def codes(plan: surefit.Plan) -> list[str]:
    return [found.code for found in plan.findings]


def sides(plan: surefit.Plan) -> tuple[list[int], list[int]]:
    """Row numbers of the training and the validation set."""
    stores = (plan.job.train, plan.job.validation)
    return tuple(sorted({*store.source_row.tolist()}) for store in stores)  # type: ignore[return-value]


def inputs_on_both_sides(plan: surefit.Plan, rows: list[Row], key: Any) -> set[Any]:
    train, validation = sides(plan)
    assert train
    assert validation
    return {key(rows[row]) for row in train} & {key(rows[row]) for row in validation}


def repeated(make: Any, inputs: int = 40, times: int = 8) -> list[Row]:
    """Every input several times, each time with another target."""
    return [make(place, again) for again in range(times) for place in range(inputs)]


WORDS = [f"{a}{b}" for a in "bdfgklmnprst" for b in ("ale", "ite", "one", "ume")]


def dialogue(place: int, again: int) -> Row:
    turns = [("user", f"Name {WORDS[place]}"), ("assistant", "Which?"), ("user", "That")]
    turns.append(("assistant", f"It is {again}"))
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


CASES: dict[str, tuple[str, str, Any, Any]] = {
    "prompts": (
        "sft",
        "tiny:llama",
        lambda p, a: {"prompt": f"Describe {WORDS[p]}.", "completion": f"It is {a}"},
        lambda row: row["prompt"],
    ),
    "prompts but for case": (
        "sft",
        "tiny:llama",
        lambda p, a: {
            "prompt": f"describe {WORDS[p]}" if a % 2 else f"Describe  {WORDS[p]}!",
            "completion": f"It is {a}",
        },
        lambda row: row["prompt"].lower().replace("  ", " ").rstrip("!"),
    ),
    "instruction and input": (
        "sft",
        "tiny:llama",
        lambda p, a: {"instruction": "Describe it", "input": WORDS[p], "output": f"It is {a}"},
        lambda row: row["input"],
    ),
    "messages": ("sft", "tiny:llama", dialogue, lambda row: row["messages"][0]["content"]),
    "tokens and labels": (
        "sft",
        "tiny:llama",
        lambda p, a: {"input_ids": [7, p, 50 + a], "labels": [-100, -100, 50 + a]},
        lambda row: row["input_ids"][1],
    ),
    "sources": (
        "seq2seq",
        "tiny:t5",
        lambda p, a: {"source": f"Describe {WORDS[p]}.", "target": f"It is {a}"},
        lambda row: row["source"],
    ),
    "texts": (
        "text-classification",
        "tiny:bert",
        lambda p, a: {"text": f"about {WORDS[p]}", "label": "xyz"[a % 3]},
        lambda row: row["text"],
    ),
    "pairs": (
        "text-classification",
        "tiny:bert",
        lambda p, a: {"sentence1": WORDS[p], "sentence2": WORDS[-p], "label": "xy"[a % 2]},
        lambda row: row["sentence1"],
    ),
    "words": (
        "token-classification",
        "tiny:bert",
        lambda p, a: {"tokens": ["in", WORDS[p]], "tags": ["O", f"B-{'xyz'[a % 3]}"]},
        lambda row: row["tokens"][1],
    ),
    "numbers": (
        "tabular-classification",
        "tiny:mlp",
        lambda p, a: {"a": p, "b": p / 7, "id": 1000 * a + p, "label": "xy"[a % 2]},
        lambda row: row["a"],
    ),
    "amounts": (
        "regression",
        "tiny:bert",
        lambda p, a: {"text": f"about {WORDS[p]}", "label": a + p / 3},
        lambda row: row["text"],
    ),
    "features": (
        "feature-classification",
        "tiny:bert",
        lambda p, a: {"features": [[p / 9, 1.0], [0.5, p / 3]], "label": "xy"[a % 2]},
        lambda row: row["features"][0][0],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_no_input_is_in_both_sets(name: str) -> None:
    task, model, make, key = CASES[name]
    rows = repeated(make)
    plan = surefit.check(data=rows, model=model, task=task, accept=["SF225"])
    assert plan.ok, [found.message for found in plan.findings]
    assert inputs_on_both_sides(plan, rows, key) == set()
    assert len(sides(plan)[1]) == 32
    shared = [note for note in plan.notes if "but another target" in note]
    assert shared or {"SF223", "SF225"} & {*codes(plan)}
    assert not any("have the input of a training row" in note for note in plan.notes)


def test_answers_to_one_prompt_are_no_contradiction() -> None:
    rows = [{"prompt": f"Say {word}", "completion": word} for word in WORDS]
    rows += [{"prompt": "Say bale", "completion": "Bale it is"}]
    plan = surefit.check(data=rows, model="tiny:llama", task="sft")
    assert "SF223" not in codes(plan)
    assert any("rows 0 and 48 ('Say bale')" in note for note in plan.notes)


@pytest.mark.parametrize("make", [list, "|".join])
def test_sets_of_classes_are_equal_in_any_order(make: Any) -> None:
    rows = [{"text": f"a {w}", "label": make("ab"[: 1 + n % 2])} for n, w in enumerate(WORDS)]
    rows += [{"text": f"a {WORDS[1]}", "label": make("ba")}]
    assert "SF223" not in codes(surefit.check(data=rows, model="tiny:bert"))
    rows += [{"text": f"a {WORDS[2]}", "label": make("b")}]
    plan = surefit.check(data=rows, model="tiny:bert")
    (found,) = (each for each in plan.findings if each.code == "SF223")
    assert f"rows 2 and 49 ('a {WORDS[2]}')" in found.message


# Data whose rows share their inputs by nature


@pytest.mark.parametrize("others", [0, 20, 60])
def test_one_instruction_for_most_rows(others: int) -> None:
    rows = [
        {"prompt": "Write a poem.", "completion": f"Of {n} {WORDS[n % 48]}"} for n in range(100)
    ]
    rows += [{"prompt": f"Name {n} {WORDS[n % 48]}", "completion": "So"} for n in range(others)]
    plan = surefit.check(data=rows, model="tiny:llama", task="sft")
    _, validation = sides(plan)
    assert len(validation) == round(0.1 * len(rows))
    poems = sum(row < 100 for row in validation)
    assert 0 < poems < len(validation) or others == 0
    shared = any("validation rows have the input of a" in note for note in plan.notes)
    assert shared == (poems > 0)
    assert plan.ok


def test_copies_of_rows_with_one_instruction_are_kept() -> None:
    rows = [{"prompt": "Write a poem.", "completion": f"Of {n} {WORDS[n % 48]}"} for n in range(50)]
    options: Any = {"augmentation_factor": 3, "augment": {"changes": ["case", "spacing"]}}
    plan = surefit.check(data=rows, model="tiny:llama", task="sft", **options)
    assert plan.ledger.dropped_views == {}
    assert plan.ledger.train_views == 3 * 45


@given(
    drawn=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=2, max_size=80),
    share=st.sampled_from([0.05, 0.1, 0.3]),
    seed=st.integers(0, 99),
)
def test_both_sets_have_rows_and_equal_rows_stay_together(
    drawn: list[tuple[int, int]], share: float, seed: int
) -> None:
    inputs = np.array([one for one, _ in drawn], np.uint64)
    whole = np.array([4 * one + other if one or other else 0 for one, other in drawn], np.uint64)
    split = split_by_input(inputs, whole, share, seed)
    assert sorted([*split.train, *split.evaluation]) == [*range(len(drawn))]
    both = {*whole[split.train].tolist()} & {*whole[split.evaluation].tolist()}
    assert not both
    assert len(split.train) > 0
    again = split_by_input(inputs, whole, share, seed)
    assert again.evaluation.tolist() == split.evaluation.tolist()
    shared = {*inputs[split.train].tolist()} & {*inputs[split.evaluation].tolist()} - {0}
    assert (split.num_shared > 0) == bool(shared)


# Evaluation data of the user's


def test_one_instruction_in_both_files_is_no_overlap() -> None:
    rows = [{"prompt": "Write a poem.", "completion": f"Of {word}"} for word in WORDS]
    plan = surefit.check(data=rows[:40], eval_data=rows[40:], model="tiny:llama", task="sft")
    assert "SF210" not in codes(plan)
    plan = surefit.check(data=rows[:41], eval_data=rows[40:], model="tiny:llama", task="sft")
    (found,) = [found for found in plan.findings if found.code == "SF210"]
    assert found.message.startswith("1 of 8 validation rows")


# Augmented copies


@pytest.mark.parametrize("given", ["split", "file"])
def test_copies_equal_to_validation_rows_are_discarded_and_counted(given: str) -> None:
    words = [f"{a} {b}" for a in WORDS[:20] for b in WORDS[20:28]]
    rows = [
        {"prompt": text, "completion": f"It is {word}"}
        for word in words
        for text in (f"Describe {word}.", f"Please describe {word}.")
    ]
    options: Row = {"data": rows, "augmentation_factor": 8, "augment": {"changes": ["wording"]}}
    if given == "file":
        options |= {"data": rows[::2], "eval_data": rows[1::2][:32]}
    plan = surefit.check(**options, model="tiny:llama", task="sft")
    train, validation = plan.job.train, plan.job.validation
    tokenizer = plan.job.pipeline.encoder.tokenizer

    def prompts(store: Any) -> list[str]:
        made = (store.row(row) for row in range(len(store)))
        texts = (tokenizer.decode(row["input_ids"][: row["prompt_length"]]) for row in made)
        return [text.strip().lower().rstrip(".!") for text in texts]

    assert not {*prompts(train)} & {*prompts(validation)}
    discarded = plan.ledger.dropped_views["validation_row"]
    assert discarded > 0
    assert plan.ledger.train_views == len(train) == 8 * plan.ledger.train_rows - discarded
    said = [note for note in plan.notes if "have the input of a validation row" in note]
    assert said[0].startswith(f"{discarded} of ")
