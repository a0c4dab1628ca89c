"""Augmented copies: drawn from (seed, row, copy), answers and meaning kept, all counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import surefit
from builders import WORDS, sentiment_rows, write_jsonl
from surefit.data.split import count_repeats, split_rows
from surefit.errors import FindingError, UsageError
from surefit.inputs.augment.augmented_copies import AugmentedCopies
from surefit.inputs.augment.text_changes import CHANGES, read_synonyms
from surefit.plan.plan import Plan

ALL: dict[str, dict[str, Any]] = {
    "wording": {"frames": ()},
    "synonyms": {"table": {"big": ("large", "huge"), "describe": ("outline",)}},
    "case": {},
    "spacing": {},
    "punctuation": {},
    "typos": {"rate": 0.3},
}


def copies(factor: int = 3, seed: int = 0, **changes: Any) -> AugmentedCopies:
    return AugmentedCopies(factor, seed, ("prompt", "messages"), ("answer",), changes or ALL)


def task_rows(count: int) -> list[dict[str, str]]:
    choose = np.random.default_rng(0)
    rows = []
    for place in range(count):
        words = choose.choice(WORDS, size=int(choose.integers(2, 9)))
        rows.append({"prompt": f"Describe list {place}: {' '.join(words)}.", "completion": "fine"})
    return rows


def texts(plan: Plan, row: int) -> list[tuple[str, str]]:
    """Prompt and answer of every copy of a row, as the model reads them."""
    store, tokenizer = plan.job.train, plan.job.pipeline.encoder.tokenizer
    made = []
    for place in np.flatnonzero(store.source_row == row):
        ids, end = store.row(int(place))["input_ids"], int(store.row(int(place))["prompt_length"])
        made.append((tokenizer.decode(ids[:end]).strip(), tokenizer.decode(ids[end:])))
    return made


# Counting


def test_first_view_is_the_row_and_every_answer_stays() -> None:
    rows = task_rows(40)
    plan = surefit.check(data=rows, model="tiny:llama", augmentation_factor=4)
    eos = plan.job.pipeline.encoder.tokenizer.eos_token
    for row in sorted({*plan.job.train.source_row.tolist()}):
        made = texts(plan, row)
        assert made[0][0] == rows[row]["prompt"]
        assert len({prompt for prompt, _ in made}) == 4
        assert {answer for _, answer in made} == {f"fine{eos}"}


def test_identical_copies_are_counted() -> None:
    plan = surefit.check(
        data=task_rows(20),
        model="tiny:llama",
        augmentation_factor=3,
        augment=lambda text, rng: text.upper(),
    )
    assert "18 of 36 augmented copies equal another copy of their row." in plan.notes
    assert plan.ledger.train_views == 54


def test_copies_over_the_limit_are_left_out_and_counted() -> None:
    rows = task_rows(40)
    whole = surefit.check(data=rows, model="tiny:llama")
    limit = int(max(whole.job.train.lengths.max(), whole.job.validation.lengths.max()))
    plan = surefit.check(
        data=rows,
        model="tiny:llama",
        augmentation_factor=3,
        max_seq_length=limit,
        overlong="drop",
        augment={"changes": ["wording"]},
    )
    assert plan.ledger is not None
    ledger = plan.ledger
    assert (ledger.rows, ledger.used_rows, ledger.dropped_rows) == (40, 40, {})
    left_out = ledger.dropped_views["overlong"]
    assert left_out > 0
    assert ledger.train_views == 3 * ledger.train_rows - left_out
    assert [found.code for found in plan.findings if found.code == "SF287"]


# Drawing


def test_seeds_rows_and_copies_draw_differently() -> None:
    row = {"prompt": "Describe the big house near the river and the garden.", "answer": "old"}
    drawn = {
        tuple(each["prompt"] for each in copies(3, seed).draw(row, number, copy))
        for seed in (0, 1)
        for number in (0, 1)
        for copy in (1, 2)
    }
    assert len(drawn) == 8


PROTECTED = st.sampled_from(
    [
        *("42", "3.50", "-7", "x1", "snake_case", "a+b", "https://example.org/Page", "me@site.org"),
        *("`rm -rf dir`", '"Quoted words stay"', "{placeholder}", "<b>", "NASA", "iPhone", "z"),
        *("[link text]", "Answerword", "answerword.", "answerword,"),
    ]
)
PLAIN = st.sampled_from(["describe", "the", "big", "House", "with", "never", "river", "garden,"])


@settings(deadline=None)
@given(st.lists(PROTECTED | PLAIN, min_size=1, max_size=12), st.integers(0, 99))
@example(["describe", '"Quoted words stay"', "answerword."], 3)
def test_numbers_code_quotations_and_words_of_the_answer_stay(words: list[str], seed: int) -> None:
    text = " ".join(words)
    row = {"prompt": text, "answer": "It is Answerword"}
    for drawn in copies(2, seed).draw(row, seed, 1):
        rest = drawn["prompt"]
        for word in words:
            if not any(word == plain for plain in PLAIN.elements):  # type: ignore[attr-defined]
                place = rest.find(word.rstrip(".,"))
                assert place >= 0, (word, drawn["prompt"])
                rest = rest[place:]


def test_code_lines_keep_every_character() -> None:
    code = "    for big in range(3):\n        describe(big)\n"
    row = {"prompt": f"Describe this big loop.\n{code}```\nbig  house\n```", "answer": ""}
    for copy in range(1, 40):
        for drawn in copies(2).draw(row, 0, copy):
            assert code in drawn["prompt"]
            assert "```\nbig  house\n```" in drawn["prompt"]


@pytest.mark.parametrize(
    ("name", "text", "made"),
    [
        ("case", "Tell Tom. Now!", {"tell Tom. now!"}),
        ("case", "tell Tom. Now!", {"tell Tom. now!", "Tell Tom. Now!"}),
        ("spacing", "find 3 cats here", {"find 3 cats  here"}),
        ("punctuation", "Find it.", {"Find it", "Find it ."}),
        ("punctuation", "Find it", {"Find it."}),
        ("punctuation", "Find: 42.", {"Find: 42."}),
        ("synonyms", "The big BIG cat", {"The large BIG cat", "The huge BIG cat"}),
        ("typos", "a bad cat", {"a bad cat"}),
        ("typos", "with", {"wtih", "wiith"}),
    ],
)
def test_what_each_change_makes(name: str, text: str, made: set[str]) -> None:
    change = CHANGES[name]
    drawn = {change(text, (), np.random.default_rng(seed), **ALL[name]) for seed in range(40)}
    assert drawn == made


def test_frames_suit_questions_requests_and_anything_else() -> None:
    def framed(text: str, frames: tuple[str, ...] = ()) -> set[str]:
        change = CHANGES["wording"]
        return {change(text, (), np.random.default_rng(s), frames=frames) for s in range(80)}

    assert "Question: Who was it?" in framed("Who was it?")
    assert not any(text.startswith("Please who") for text in framed("Who was it?"))
    assert {"Please write it down.", "Could you write it down?"} <= framed("Write it down.")
    assert not any(text.startswith("Please red") for text in framed("red blue"))
    assert framed("Wer war das?", ("Frage: {}",)) == {"Frage: Wer war das?"}


@pytest.mark.parametrize("form", ["messages", "conversations"])
def test_dialogues_are_augmented_with_their_answers_as_they_are(form: str) -> None:
    keys = ("role", "content") if form == "messages" else ("from", "value")
    who = ("user", "assistant") if form == "messages" else ("human", "gpt")
    rows = []
    for place in range(30):
        said = ("Describe list one.", "Fine.", f"Describe the list {place}.", "red")
        rows.append(
            {form: [dict(zip(keys, (who[n % 2], t), strict=True)) for n, t in enumerate(said)]}
        )
    plan = surefit.check(data=rows, model="tiny:llama", augmentation_factor=3)
    assert plan.ok
    store, tokenizer = plan.job.train, plan.job.pipeline.encoder.tokenizer
    assert len(store) == 3 * 27
    for place in range(0, len(store), 3):
        copies_of = [store.row(place + copy) for copy in range(3)]
        learned = {tuple(row["labels"][row["labels"] != -100].tolist()) for row in copies_of}
        assert len(learned) == 1
        told = [tokenizer.decode(row["input_ids"]) for row in copies_of]
        assert len({*told}) == 3
        assert all(text.count("Describe list one.") == 1 for text in told)


# Splitting


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), min_size=4, max_size=40),
    st.integers(0, 50),
)
def test_no_validation_row_has_a_relative_in_training(
    drawn: list[tuple[int, int]], seed: int
) -> None:
    from surefit.data.python.rows_to_arrow import open_rows
    from surefit.data.row_parts import hash_columns

    ways = ("{}.", "{}", " {}  ", "“{}”", "{}!", "({})")
    rows: list[dict[str, Any]] = []
    for number, way in drawn:
        said = ways[way].format(f"Name  river {number}" if way % 2 else f"name river {number}")
        rows.append({"prompt": said, "completion": f"river {number}" + "." * (way % 2)})
    hashes = hash_columns(open_rows(rows), ["prompt", "completion"], fold=True)
    split = split_rows(hashes, 0.3, seed)
    sides = [{drawn[row][0] for row in side} for side in (split.train, split.evaluation)]
    assert not sides[0] & sides[1]
    assert count_repeats(hashes) == len(drawn) - len({number for number, _ in drawn})


def test_folding_keeps_numbers_and_formulas_apart() -> None:
    from surefit.data.python.rows_to_arrow import open_rows
    from surefit.data.row_parts import hash_columns

    said = ["3.5", "35", "-1", "1", ".5", "5", "a + b", "a - b", "a*b", "it's", "its", "C++", "C#"]
    table = open_rows([{"prompt": text} for text in said])
    assert len({*hash_columns(table, ["prompt"], fold=True).tolist()}) == len(said)


# One's own


def test_own_function_by_name_and_from_python(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def shout(text, rng):\n    return text + '!' * int(rng.integers(1, 9))\n"
    )
    data = str(write_jsonl(tmp_path / "rows.jsonl", task_rows(30)))
    config = tmp_path / "run.yaml"
    config.write_text(json.dumps({"augmentation_factor": 3, "augment": {"function": "mine:shout"}}))
    from surefit.config import read_yaml
    from surefit.plan.make_plan import make_plan
    from surefit.request import make_request

    settings = {**read_yaml(config), "data": data, "model": "tiny:llama"}
    plan = make_plan(make_request(settings, tmp_path))
    row = int(plan.job.train.source_row[0])
    plain, *others = [prompt for prompt, _ in texts(plan, row)]
    assert all(prompt.rstrip("!") == plain and prompt != plain for prompt in others)
    assert any(f"is run.  [file {tmp_path / 'mine.py'}]" in note for note in plan.notes)

    def shout(text: str, rng: np.random.Generator) -> str:
        return text + "!" * int(rng.integers(1, 9))

    handed = surefit.check(data=data, model="tiny:llama", augmentation_factor=3, augment=shout)
    assert texts(handed, row) == texts(plan, row)


def test_another_function_is_another_set_of_rows() -> None:
    def plan(mark: str) -> Plan:
        def ending(text: str, rng: np.random.Generator) -> str:
            return text + mark

        return surefit.check(
            data=task_rows(20), model="tiny:llama", augmentation_factor=2, augment=ending
        )

    first, second = plan(" now"), plan(" today")
    assert first.data_key != second.data_key
    assert texts(second, 1)[1][0].endswith("today")


@pytest.mark.parametrize("suffix", [".json", ".csv", ".tsv"])
def test_synonyms_of_a_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"words{suffix}"
    lines = {
        ".csv": "Big,large,very large\nsea,ocean\n",
        ".tsv": "Big\tlarge\tvery large\nsea\tocean",
    }
    pairs = {"Big": ["large", "very large"], "sea": "ocean"}
    path.write_text(lines.get(suffix) or json.dumps(pairs))
    expected = {"big": ("large", "very large"), "sea": ("ocean",)}
    assert read_synonyms(str(path)) == read_synonyms(pairs) == expected
    plan = surefit.check(
        data=[{"prompt": f"Name a big sea, number {n}", "completion": "x"} for n in range(20)],
        model="tiny:llama",
        augmentation_factor=2,
        augment={"changes": ["synonyms"], "synonyms": str(path)},
    )
    changed = {prompt for prompt, _ in texts(plan, 1)[1:]}
    assert changed <= {
        f"Name a {big} {sea}, number 1"
        for big in ("big", "large", "very large")
        for sea in ("sea", "ocean")
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("big\n", "expected a single word"),
        ("ice cream,sorbet\n", "expected a single word"),
        ("\n", "contains no synonyms"),
    ],
)
def test_faulty_table_of_synonyms(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "words.csv").write_text(content)
    with pytest.raises(UsageError, match=message):
        read_synonyms(str(tmp_path / "words.csv"))
    with pytest.raises(UsageError, match="There is no file"):
        read_synonyms(str(tmp_path / "none.csv"))


# Asking


def test_texts_to_classify_are_changed_but_not_reworded() -> None:
    rows = sentiment_rows(60)
    plan = surefit.check(
        data=rows, model="tiny:bert", task="text-classification", augmentation_factor=3
    )
    assert plan.ok
    assert len(plan.job.train) == 3 * 54
    labels = plan.job.train.values("labels").reshape(-1, 3)
    assert (labels == labels[:, :1]).all()
    for place in range(12):
        ids = plan.job.train.row(place)["input_ids"]
        said = plan.job.pipeline.encoder.tokenizer.decode(ids, skip_special_tokens=True)
        source = rows[int(plan.job.train.source_row[place])]
        assert "task" not in said.lower()
        assert source["label"] in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"data": [{"text": f"word {n}"} for n in range(9)], "task": "causal-lm"},
            "no text that could be said otherwise",
        ),
        (
            {"data": [{"input_ids": [5, 6, 7 + n], "labels": [5, 6, 7]} for n in range(9)]},
            "no prompt or messages as text",
        ),
        ({"augment": {"changes": ["synonyms"]}}, "no table"),
        ({"augment": {"changes": []}}, "no change is left"),
        ({"augment": {"frames": ["no room"]}}, "expected {} once"),
        ({"augment": {"changes": ["rhymes"]}}, "rhymes"),
        ({"augment": {"function": "mine"}}, "expected module:function"),
        ({"augmentation_factor": 0}, "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_augmented_is_refused(options: dict[str, Any], message: str) -> None:
    asked = {"data": task_rows(9), "task": "sft", "model": "tiny:llama", "augmentation_factor": 2}
    with pytest.raises((UsageError, FindingError), match=message):
        surefit.check(**{**asked, **options})
