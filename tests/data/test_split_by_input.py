"""The split by input: what a model reads is in one set, whatever the target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import surefit
from builders import write_jsonl
from surefit.data.split import find_contradictions, split_by_input

Row = dict[str, Any]


def codes(plan: surefit.Plan) -> list[str]:
    return [found.code for found in plan.findings]


def sides(plan: surefit.Plan) -> tuple[list[int], list[int]]:
    """Row numbers of the training and the validation set."""
    assert plan.job is not None
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
    assert {"SF223", "SF224", "SF225"} & {*codes(plan)}
    assert "SF222" not in codes(plan)


def test_images_are_compared_by_content(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    rows = []
    for place in range(10):
        picture = Image.fromarray(draw.integers(0, 255, (8, 8, 3), np.uint8))
        for again in range(4):
            file = f"{place}-{again}.png"
            picture.save(tmp_path / file)
            rows.append({"image": file, "label": "xy"[again % 2]})
    data = write_jsonl(tmp_path / "rows.jsonl", rows)
    plan = surefit.check(
        data=str(data), model="tiny:vit", task="image-classification", accept=["SF225"]
    )
    assert plan.ok, [found.message for found in plan.findings]
    assert inputs_on_both_sides(plan, rows, lambda row: row["image"].split("-")[0]) == set()
    assert "SF225" in codes(plan)  # all images have two labels


def test_contradictions_are_named() -> None:
    rows = [{"text": f"about {word}", "label": "xy"[n % 2]} for n, word in enumerate(WORDS)]
    rows += [{"text": "about bite", "label": "x"}, {"text": "ABOUT bone!", "label": "y"}]
    plan = surefit.check(data=rows, model="tiny:bert", task="text-classification")
    (found,) = [found for found in plan.findings if found.code == "SF223"]
    assert found.severity == "warning"
    assert found.where["row"] == 1
    assert "2 of 50 rows" in found.message
    assert "rows 1 and 48" in found.message  # a text in capitals is not the same text


def test_answers_to_one_prompt_are_no_contradiction() -> None:
    rows = [{"prompt": f"Say {word}", "completion": word} for word in WORDS]
    rows += [{"prompt": "Say bale", "completion": "Bale it is"}]
    plan = surefit.check(data=rows, model="tiny:llama", task="sft")
    (found,) = [found for found in plan.findings if found.code in ("SF223", "SF224")]
    assert (found.code, found.severity) == ("SF224", "info")
    assert "rows 0 and 48" in found.message


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
    assert ("SF222" in codes(plan)) == (poems > 0)
    assert plan.ok


def test_copies_of_rows_with_one_instruction_are_kept() -> None:
    rows = [{"prompt": "Write a poem.", "completion": f"Of {n} {WORDS[n % 48]}"} for n in range(50)]
    options: Any = {"augmentation_factor": 3, "augment": {"changes": ["case", "spacing"]}}
    plan = surefit.check(data=rows, model="tiny:llama", task="sft", **options)
    assert plan.ledger is not None
    assert plan.ledger.dropped_views == {}
    assert plan.ledger.train_views == 3 * 45


def test_few_inputs_one_of_them_is_the_validation_set() -> None:
    rows = [{"text": f"about {WORDS[n % 5]}", "label": "xy"[n // 5 % 2]} for n in range(100)]
    plan = surefit.check(data=rows, model="tiny:bert", task="text-classification", accept=["SF225"])
    assert inputs_on_both_sides(plan, rows, lambda row: row["text"]) == set()
    assert len(sides(plan)[1]) == 20


def test_rows_of_few_categories_have_a_validation_set() -> None:
    draw = np.random.default_rng(0)
    rows = [
        {"a": str(draw.choice(["r", "g"])), "b": bool(draw.integers(2)), "label": "xy"[n % 2]}
        for n in range(400)
    ]
    plan = surefit.check(data=rows, model="tiny:mlp", task="tabular-classification")
    train, validation = sides(plan)
    assert train
    assert validation


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


def test_places_of_contradictions() -> None:
    inputs = np.array([5, 0, 5, 6, 0, 6, 5], np.uint64)
    whole = np.array([1, 2, 1, 3, 4, 3, 9], np.uint64)
    assert sorted(find_contradictions(inputs, whole).tolist()) == [0, 2, 6]  # 0: without content


# Evaluation data of the user's


def test_overlap_of_evaluation_data_by_input() -> None:
    rows = [{"prompt": f"Say {word}", "completion": word} for word in WORDS]
    shown = [{"prompt": "Say new", "completion": "a"}, {"prompt": "say BALE!", "completion": "b"}]
    shown += [rows[3]]
    plan = surefit.check(data=rows, eval_data=shown, model="tiny:llama", task="sft")
    (found,) = [found for found in plan.findings if found.code == "SF210"]
    assert found.where["row"] == 1
    assert found.message.startswith("2 of 3 validation rows have the input of a training row, 1 of")


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
    assert plan.ledger is not None
    assert plan.job is not None
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
    (found,) = [found for found in plan.findings if found.code == "SF292"]
    assert f"{discarded} of " in found.message
