"""The columns of data sets that everyone uses: the right task and roles, or options that work."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest

from chats import said
from faults.misread import NOUNS
from faults.pasted import lines_in
from surefit.data.forms import spread_columns
from surefit.data.python.rows_to_arrow import open_rows
from surefit.data.several_columns import join_columns
from surefit.data.table import Source, Table
from surefit.errors import FindingError, UsageError
from surefit.tasks import TASKS
from surefit.tasks.choose_task import choose_task

DRAW = random.Random(5)
CLASSIFIER = frozenset({"AutoModelForSequenceClassification", "AutoModelForMaskedLM"})
WRITER = frozenset({"AutoModelForCausalLM", "AutoModelForSequenceClassification"})
PAIR = frozenset({"AutoModelForSeq2SeqLM"})
MLP: frozenset[str] = frozenset()
Make = Callable[[int], dict[str, Any]]
Roles = Mapping[str, str]


def say(words: int = 9) -> str:
    return " ".join(DRAW.choices(NOUNS, k=words))


def one_of(*values: Any) -> Any:
    return DRAW.choice(values)


def ask() -> str:
    return f"who is {say(5)}?"


READ: dict[str, tuple[frozenset[str], Make, str, Roles]] = {
    "QNLI": (
        CLASSIFIER,
        lambda n: {"question": ask(), "sentence": say(), "label": n % 2, "idx": n},
        "text-classification",
        {"text": "question", "text_pair": "sentence", "label": "label"},
    ),
    "BoolQ": (
        WRITER,
        lambda n: {"question": ask(), "passage": say(30), "answer": n % 3 > 0},
        "text-classification",
        {"text": "question", "text_pair": "passage", "label": "answer"},
    ),
    "MS MARCO": (
        CLASSIFIER,
        lambda n: {"query": ask(), "passage": say(30), "label": n % 2},
        "text-classification",
        {"text": "query", "text_pair": "passage", "label": "label"},
    ),
    "SICK": (
        CLASSIFIER,
        lambda n: {"sentence_A": say(), "sentence_B": say(), "label": n % 3, "relatedness": n / 9},
        "text-classification",
        {"text": "sentence_A", "text_pair": "sentence_B", "label": "label"},
    ),
    "Quora": (
        CLASSIFIER,
        lambda n: {"qid1": n, "question1": ask(), "question2": ask(), "is_duplicate": n % 2},
        "text-classification",
        {"text": "question1", "text_pair": "question2", "label": "is_duplicate"},
    ),
    "AG News": (
        CLASSIFIER,
        lambda n: {"Class Index": n % 4 + 1, "Title": say(5), "Description": say(20)},
        "text-classification",
        {"text": "Title", "text_pair": "Description", "label": "Class Index"},
    ),
    "SMS spam": (
        CLASSIFIER,
        lambda n: {"v1": one_of("ham", "spam"), "v2": say()},
        "text-classification",
        {"text": "v2", "label": "v1"},
    ),
    "e-SNLI": (
        CLASSIFIER,
        lambda n: {"premise": say(), "hypothesis": say(), "label": n % 3, "explanation": say()},
        "text-classification",
        {"text": "premise", "text_pair": "hypothesis", "label": "label"},
    ),
    "a cleaned copy of the text": (
        CLASSIFIER,
        lambda n: {"text": say(), "clean_text": say(), "label": n % 3},
        "text-classification",
        {"text": "text", "label": "label"},
    ),
    "texts with tags": (
        CLASSIFIER,
        lambda n: {"text": say(20), "tags": one_of(["sql"], ["sql", "c"], ["c"])},
        "text-classification",
        {"text": "text", "label": "tags"},
    ),
    "CommonLit": (
        CLASSIFIER,
        lambda n: {"id": f"c{n}", "excerpt": say(30), "target": n / 7, "standard_error": n / 90},
        "regression",
        {"text": "excerpt", "label": "target"},
    ),
    "a table with a description": (
        MLP,
        lambda n: {"city": one_of("A", "B"), "description": say(), "size": n * 7 % 31, "y": n / 3},
        "regression",
        {"label": "y"},
    ),
    "MATH": (
        WRITER,
        lambda n: {"problem": ask(), "level": f"Level {n % 5}", "solution": say()},
        "sft",
        {"prompt": "problem", "answer": "solution"},
    ),
    "MMLU": (
        WRITER,
        lambda n: {
            "question": ask(),
            "subject": one_of("law", "art"),
            "choices": [say(4) for _ in range(4)],
            "answer": n % 4,
        },
        "sft",
        {"prompt": "question", "choices": "choices", "answer": "answer"},
    ),
    "ARC": (
        WRITER,
        lambda n: {
            "id": f"q{n}",
            "question": ask(),
            "choices": {"text": [say(4) for _ in range(4)], "label": list("ABCD")},
            "answerKey": "ABCD"[n % 4],
        },
        "sft",
        {"prompt": "question", "choices": "choices", "answer": "answerKey"},
    ),
    "RACE": (
        WRITER,
        lambda n: {
            "example_id": f"h{n}",
            "article": say(30),
            "answer": "ABCD"[n % 4],
            "question": ask(),
            "options": [say(5) for _ in range(4)],
        },
        "sft",
        {"prompt": "question", "choices": "options", "answer": "answer"},
    ),
    "MedQA": (
        WRITER,
        lambda n: {
            "question": ask(),
            "answer": say(2),
            "options": {"A": say(2), "B": say(2)},
            "answer_idx": "A",
        },
        "sft",
        {"prompt": "question", "choices": "options", "answer": "answer"},
    ),
    "TriviaQA": (
        WRITER,
        lambda n: {"question": ask(), "answer": {"value": say(2), "aliases": [say(2), say(2)]}},
        "sft",
        {"prompt": "question", "answer": "answer", "references": "references"},
    ),
    "Capybara": (
        WRITER,
        lambda n: {"source": "x", "conversation": [{"input": ask(), "output": say()}] * 2},
        "sft",
        {"messages": "messages"},
    ),
    "OpenBookQA": (
        WRITER,
        lambda n: {
            "id": f"i{n}",
            "question_stem": say(),
            "choices": {"text": [say(2), say(2)], "label": ["A", "B"]},
            "answerKey": "AB"[n % 2],
        },
        "sft",
        {"prompt": "question_stem", "choices": "choices", "answer": "answerKey"},
    ),
    "SciQ": (
        WRITER,
        lambda n: {
            "question": ask(),
            "distractor1": say(2),
            "distractor2": say(2),
            "correct_answer": say(2),
            "support": say(20),
        },
        "sft",
        {"prompt": "question", "answer": "correct_answer"},
    ),
    "WebQuestions": (
        WRITER,
        lambda n: {"url": f"https://x.org/{n}", "question": ask(), "answers": [say(2), say(2)]},
        "sft",
        {"prompt": "question", "answer": "answer", "references": "references"},
    ),
    "NQ open": (
        WRITER,
        lambda n: {"question": ask(), "answer": [say(2)]},
        "sft",
        {"prompt": "question", "answer": "answer", "references": "references"},
    ),
    "CoQA": (
        WRITER,
        lambda n: {
            "source": "wiki",
            "story": say(30),
            "questions": [ask(), ask()],
            "answers": {"input_text": [say(2), say(3)], "answer_start": [1, 2]},
        },
        "sft",
        {"messages": "messages"},
    ),
    "SAMSum": (
        PAIR,
        lambda n: {"id": str(n), "dialogue": f"Amy: {say()}\nBen: {say()}", "summary": say()},
        "seq2seq",
        {"source": "dialogue", "target": "summary"},
    ),
    "FineWeb": (
        WRITER,
        lambda n: {
            "text": say(30),
            "id": f"u{n}",
            "dump": one_of("CC-1", "CC-2"),
            "language": "en",
            "url": f"https://x.org/{n}",
            "language_score": n / 99,
            "token_count": 9 * n,
        },
        "causal-lm",
        {"text": "text"},
    ),
    "code with stars": (
        WRITER,
        lambda n: {"content": f"def f(x): return {n}", "max_stars_count": n, "lang": "py"},
        "causal-lm",
        {"text": "content"},
    ),
    "keywords of each text": (
        CLASSIFIER,
        lambda n: {"text": say(20), "keywords": [f"a{n}", f"b{n}"]},
        "masked-lm",
        {"text": "text"},
    ),
    **{
        f"text and {name}": (
            WRITER,
            lambda n, name=name, make=make: {"text": say(20), name: make(n)},
            "causal-lm",
            {"text": "text"},
        )
        for name, make in {
            "token_count": lambda n: 30 + n * 7 % 41,
            "source": lambda n: "wiki",
            "lang": lambda n: one_of("en", "de"),
            "timestamp": lambda n: f"2024-05-{n % 28 + 1:02d}T00:00:00Z",
            "meta": lambda n: f'{{"n": {n}}}',
            "title": lambda n: say(3),
        }.items()
    },
    **{
        f"text and {name}": (
            CLASSIFIER,
            lambda n, name=name, make=make: {"text": say(20), name: make(n)},
            "text-classification",
            {"text": "text", "label": name},
        )
        for name, make in {
            "genre": lambda n: one_of("news", "web", "law"),
            "stars": lambda n: n % 5 + 1,
            "is_spam": lambda n: n % 3 > 0,
        }.items()
    },
}
"""Data that is read without a question: heads of the model, a row, the task, role to column."""

ASKED: dict[str, tuple[frozenset[str], Make, str, str, Roles]] = {
    "text and a number": (
        CLASSIFIER,
        lambda n: {"text": say(20), "price": n * 1.5},
        *("SF143", "regression", {"text": "text", "label": "price"}),
    ),
    "text and several labels": (
        CLASSIFIER,
        lambda n: {"text": ask(), "coarse_label": n % 3, "fine_label": n % 9},
        *("SF143", "text-classification", {"text": "text", "label": "fine_label"}),
    ),
    "texts with several classes": (
        CLASSIFIER,
        lambda n: {"comment_text": say(), "id": f"x{n}", "toxic": n % 2, "insult": n % 3 // 2},
        *("SF202", "text-classification", {"text": "comment_text", "label": "[toxic, insult]"}),
    ),
    "the text alone, if several labels are not meant": (
        CLASSIFIER,
        lambda n: {"text": ask(), "toxic": n % 2, "insult": n % 3 // 2},
        *("SF143", "masked-lm", {"text": "text"}),
    ),
    "product reviews": (
        CLASSIFIER,
        lambda n: {
            "review_id": f"r{n}",
            "stars": n % 5 + 1,
            "review_body": say(20),
            "review_title": say(4),
            "product_category": one_of("book", "toy"),
        },
        "SF202",
        "text-classification",
        {"text": "review_body", "text_pair": "review_title", "label": "stars"},
    ),
    "summaries for a causal model": (
        WRITER,
        lambda n: {"document": say(30), "summary": say()},
        *("SF202", "sft", {"prompt": "document", "answer": "summary"}),
    ),
    "a text with its summary for an encoder-decoder": (
        PAIR,
        lambda n: {"text": say(30), "summary": say(8), "title": say(1)},
        *("SF202", "seq2seq", {"source": "text", "target": "summary"}),
    ),
    "two texts": (
        PAIR,
        lambda n: {"title": say(4), "description": say(20)},
        *("SF202", "seq2seq", {"source": "description", "target": "title"}),
    ),
    "two languages": (
        PAIR,
        lambda n: {"id": str(n), "translation": {"en": say(), "fr": say()}},
        *("SF202", "seq2seq", {"source": "translation.fr", "target": "translation.en"}),
    ),
    "iris": (
        MLP,
        lambda n: {"length": n / 7, "width": n / 9, "species": one_of("setosa", "virginica")},
        *("SF202", "tabular-classification", {"label": "species"}),
    ),
    "housing": (
        MLP,
        lambda n: {"MedInc": n / 7, "AveRooms": n / 9, "MedHouseVal": n * 7 % 31 / 9},
        *("SF202", "regression", {"label": "MedHouseVal"}),
    ),
    "titanic": (
        MLP,
        lambda n: {"Survived": n % 2, "Name": f"{say(1)}, Mr. {say(2)}", "Pclass": n % 3, "Age": n},
        *("SF202", "tabular-classification", {"label": "Survived"}),
    ),
}
"""Data that is refused with options, of which one is right."""


def opened(make: Make, count: int = 60) -> Table:
    return spread_columns(open_rows([make(n) for n in range(count)]))


def read_options(words: list[str]) -> tuple[str, dict[str, str]]:
    """The task and the columns that some options name."""
    pairs = (word.removeprefix("columns.").split("=", 1) for word in words if "columns." in word)
    return words[words.index("--task") + 1], dict(pairs)


@pytest.mark.parametrize("name", READ)
def test_columns_are_read_as_what_they_are(name: str) -> None:
    heads, make, task, roles = READ[name]
    chosen, found = choose_task(opened(make), None, {}, heads)
    assert (chosen.name, found) == (task, roles)


@pytest.mark.parametrize("name", ASKED)
def test_options_of_a_refusal_work(name: str) -> None:
    heads, make, code, task, roles = ASKED[name]
    table = opened(make)
    with pytest.raises(FindingError) as caught:
        choose_task(table, None, {}, heads)
    (found,) = caught.value.findings
    assert found.code == code
    read = []
    for line in lines_in(found.fix):
        wanted, columns = read_options(line)
        joined = join_columns(table, columns.values())
        chosen, made = choose_task(joined, TASKS[wanted], columns, heads)
        read.append((chosen.name, made))
    assert (task, roles) in read


def test_answers_of_squad_in_a_table_become_columns() -> None:
    answers = [{"text": ["red", "blue"], "answer_start": [3, 5]}, None, {"text": []}]
    arrow = pa.table({"question": ["a", "b", "c"], "answers": pa.array(answers)})
    table = spread_columns(Table(arrow, (Source("a.parquet", 0),), "key"))
    assert table.arrow["answer"].to_pylist() == ["red", None, None]
    assert table.arrow["references"].to_pylist() == [["red", "blue"], None, []]
    assert "are read as the columns" in table.findings[0].message


def test_lists_of_questions_and_answers_become_dialogues() -> None:
    rows = [{"questions": ["a", "b"], "answers": ["1", "2"]}, {"questions": [], "answers": []}]
    table = spread_columns(open_rows(rows))
    assert table.arrow["messages"].to_pylist() == [said("a", "1", "b", "2"), []]
    uneven = open_rows([{"questions": ["a", "b"], "answers": ["1"]}])
    assert spread_columns(uneven) is uneven


@pytest.mark.parametrize("other", [{"label": 1}, {"scores": [1, 0]}, {"correct_answer": "b"}])
def test_lists_of_answers_of_which_one_is_right_stay(other: dict[str, Any]) -> None:
    table = open_rows([{"question": "a", "answers": ["b", "c"], **other}] * 3)
    assert spread_columns(table) is table


def test_objects_that_are_no_translations_stay() -> None:
    table = open_rows([{"text": "a", "meta": {"source": "x", "id": "y"}}])
    assert spread_columns(table) is table


@pytest.mark.parametrize(
    ("task", "role", "meant"), [("regression", "target", "label"), ("sft", "completion", "answer")]
)
def test_a_column_name_given_as_a_role_is_answered_with_the_role(
    task: str, role: str, meant: str
) -> None:
    with pytest.raises(UsageError, match=f"Did you mean columns.{meant}"):
        choose_task(opened(lambda n: {"text": say(), "y": n}), TASKS[task], {role: "y"})
