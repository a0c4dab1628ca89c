"""The columns of data sets that everyone uses: the right task and roles, or options that work."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
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
HEADS = {
    "classifier": frozenset({"AutoModelForSequenceClassification", "AutoModelForMaskedLM"}),
    "writer": frozenset({"AutoModelForCausalLM", "AutoModelForSequenceClassification"}),
    "pair": frozenset({"AutoModelForSeq2SeqLM"}),
    "table": frozenset(),
}
"""The classes of transformers that a model has heads for."""


def say(words: int = 9) -> str:
    return " ".join(DRAW.choices(NOUNS, k=words))


def ask() -> str:
    return f"who is {say(5)}?"


KINDS: dict[str, Callable[[int], Any]] = {
    "ask": lambda n: ask(),
    "say": lambda n: say(),
    "long": lambda n: say(30),
    "short": lambda n: say(3),
    "word": lambda n: say(1),
    "mr": lambda n: f"{say(1)}, Mr. {say(2)}",
    "code": lambda n: f"def f(x): return {n}",
    "json": lambda n: f'{{"n": {n}}}',
    "day": lambda n: f"2024-05-{n % 28 + 1:02d}T00:00:00Z",
    "id": lambda n: f"x{n}",
    "url": lambda n: f"https://x.org/{n}",
    "n": lambda n: n,
    "count": lambda n: 30 + n * 7 % 41,
    "half": lambda n: n % 2,
    "third": lambda n: n % 3 // 2,
    "class": lambda n: n % 3,
    "true": lambda n: n % 3 > 0,
    "amount": lambda n: n / 7,
    "price": lambda n: n * 7 % 31 / 9,
    "letter": lambda n: "ABCD"[n % 4],
    "vector": lambda n: [n / 3, n / 5, n / 7],
    "ids": lambda n: [n + 1],
    "texts": lambda n: [say(4) for _ in range(4)],
    "own": lambda n: [f"a{n}", f"b{n}"],
    "tags": lambda n: DRAW.choice([["sql"], ["sql", "c"], ["c"]]),
    "lettered": lambda n: {"text": [say(4) for _ in "ABCD"], "label": list("ABCD")},
    "letters": lambda n: {"A": say(2), "B": say(2)},
    "aliases": lambda n: {"value": say(2), "aliases": [say(2), say(2)]},
    "languages": lambda n: {"en": say(), "fr": say()},
    "turns": lambda n: [{"input": ask(), "output": say()}] * 2,
    "asked": lambda n: [ask(), ask()],
    "answered": lambda n: {"input_text": [say(2), say(3)], "answer_start": [1, 2]},
    "spoken": lambda n: f"Amy: {say()}\nBen: {say()}",
}
"""What a column holds, by row number; `a|b` is one of those words."""

READ = """
QNLI: classifier: question ask, sentence say, label half, idx n
    text-classification: text=question, text_pair=sentence, label=label
BoolQ: writer: question ask, passage long, answer true
    text-classification: text=question, text_pair=passage, label=answer
MS MARCO: classifier: query ask, passage long, label half
    text-classification: text=query, text_pair=passage, label=label
SICK: classifier: sentence_A say, sentence_B say, label class, relatedness amount
    text-classification: text=sentence_A, text_pair=sentence_B, label=label
Quora: classifier: qid1 n, question1 ask, question2 ask, is_duplicate half
    text-classification: text=question1, text_pair=question2, label=is_duplicate
AG News: classifier: Class Index class, Title say, Description long
    text-classification: text=Title, text_pair=Description, label=Class Index
SMS spam: classifier: v1 ham|spam, v2 say
    text-classification: text=v2, label=v1
e-SNLI: classifier: premise say, hypothesis say, label class, explanation say
    text-classification: text=premise, text_pair=hypothesis, label=label
arXiv: classifier: id id, title say, abstract long, categories cs|math
    text-classification: text=title, text_pair=abstract, label=categories
STS: classifier: sentence1 say, sentence2 say, score amount
    regression: text=sentence1, text_pair=sentence2, label=score
a cleaned copy of the text: classifier: text say, clean_text say, label class
    text-classification: text=text, label=label
texts with tags: classifier: text long, tags tags
    text-classification: text=text, label=tags
CommonLit: classifier: id id, excerpt long, target amount, standard_error amount
    regression: text=excerpt, label=target
a table with a description: table: city A|B, description say, size count, y amount
    regression: label=y
features: table: X vector, y half
    feature-classification: features=X, label=y
features with a mask: table: features vector, label half, mask ids
    feature-classification: features=features, label=label, mask=mask
alpaca in capital letters: writer: Instruction ask, Output say
    sft: prompt=Instruction, answer=Output
token ids: writer: input_ids ids, labels ids
    sft: input_ids=input_ids, labels=labels
token ids alone: writer: input_ids ids
    sft: input_ids=input_ids
MATH: writer: problem ask, level easy|hard, solution say
    sft: prompt=problem, answer=solution
MMLU: writer: question ask, subject law|art, choices texts, answer class
    sft: prompt=question, choices=choices, answer=answer
ARC: writer: id id, question ask, choices lettered, answerKey letter
    sft: prompt=question, choices=choices, answer=answerKey
RACE: writer: example_id id, article long, answer letter, question ask, options texts
    sft: prompt=question, choices=options, answer=answer
MedQA: writer: question ask, answer short, options letters, answer_idx letter
    sft: prompt=question, choices=options, answer=answer
TriviaQA: writer: question ask, answer aliases
    sft: prompt=question, answer=answer, references=references
Capybara: writer: source x, conversation turns
    sft: messages=messages
OpenBookQA: writer: id id, question_stem say, choices lettered, answerKey letter
    sft: prompt=question_stem, choices=choices, answer=answerKey
SciQ: writer: question ask, distractor1 short, distractor2 short, correct_answer short, support long
    sft: prompt=question, answer=correct_answer
WebQuestions: writer: url url, question ask, answers own
    sft: prompt=question, answer=answer, references=references
NQ open: writer: question ask, answer own
    sft: prompt=question, answer=answer, references=references
CoQA: writer: source wiki, story long, questions asked, answers answered
    sft: messages=messages
SAMSum: pair: id id, dialogue spoken, summary say
    seq2seq: source=dialogue, target=summary
FineWeb: writer: text long, id id, dump C1|C2, language en, url url, language_score amount
    causal-lm: text=text
code with stars: writer: content code, max_stars_count n, lang py
    causal-lm: text=content
keywords of each text: classifier: text long, keywords own
    masked-lm: text=text
token counts: writer: text long, token_count count
    causal-lm: text=text
one source: writer: text long, source wiki
    causal-lm: text=text
languages: writer: text long, lang en|de
    causal-lm: text=text
timestamps: writer: text long, timestamp day
    causal-lm: text=text
JSON beside texts: writer: text long, meta json
    causal-lm: text=text
titles: writer: text long, title short
    causal-lm: text=text
genres: classifier: text long, genre news|web|law
    text-classification: text=text, label=genre
stars: classifier: text long, stars class
    text-classification: text=text, label=stars
spam: classifier: text long, is_spam true
    text-classification: text=text, label=is_spam
"""
"""Data that is read without a question: the model, the columns, then the task with its roles."""

ASKED = """
text and a number: classifier: text long, price price
    SF143: regression: text=text, label=price
text and several labels: classifier: text ask, coarse_label class, fine_label count
    SF143: text-classification: text=text, label=coarse_label
texts with several classes: classifier: comment_text say, id id, toxic half, insult third
    SF202: text-classification: text=comment_text, label=[toxic; insult]
the text alone, if no label is meant: classifier: text ask, toxic half, insult third
    SF143: masked-lm: text=text
product reviews: classifier: stars class, review_body long, review_title say, product_category a|b
    SF202: text-classification: text=review_body, text_pair=review_title, label=stars
summaries for a causal model: writer: document long, summary say
    SF202: sft: prompt=document, answer=summary
questions under letters: writer: Q ask, A say
    SF202: sft: prompt=Q, answer=A
counsel: writer: Context long, Response say
    SF202: sft: prompt=Context, answer=Response
speakers: writer: user ask, assistant say
    SF202: sft: prompt=user, answer=assistant
a summary for an encoder-decoder: pair: text long, summary say, title word
    SF202: seq2seq: source=text, target=summary
two texts: pair: title say, description long
    SF202: seq2seq: source=description, target=title
two languages: pair: id id, translation languages
    SF202: seq2seq: source=translation.fr, target=translation.en
iris: table: length amount, width price, species setosa|virginica
    SF202: tabular-classification: label=species
housing: table: MedInc amount, AveRooms amount, MedHouseVal price
    SF202: regression: label=MedHouseVal
titanic: table: Survived half, Name mr, Pclass class, Age n
    SF202: tabular-classification: label=Survived
"""
"""Data that is refused with options, of which one is right: as above, with the code."""


def read_table(text: str) -> dict[str, tuple[str, str, str]]:
    """The model, the columns and what is expected, by name."""
    lines = text.strip().splitlines()
    firsts = (line.split(": ") for line in lines[::2])
    return {
        name: (model, columns, meant.strip())
        for (name, model, columns), meant in zip(firsts, lines[1::2], strict=True)
    }


def roles_in(text: str) -> dict[str, str]:
    """Role to column."""
    return dict(part.replace("; ", ", ").split("=") for part in text.split(", "))


def opened(columns: str, count: int = 60) -> Table:
    """Rows of such columns."""
    kinds = [part.rsplit(" ", 1) for part in columns.split(", ")]

    def value(kind: str, n: int) -> Any:
        return KINDS[kind](n) if kind in KINDS else DRAW.choice(kind.split("|"))

    return spread_columns(
        open_rows([{name: value(kind, n) for name, kind in kinds} for n in range(count)])
    )


def read_options(words: list[str]) -> tuple[str, dict[str, str]]:
    """The task and the columns that some options name."""
    pairs = (word.removeprefix("columns.").split("=", 1) for word in words if "columns." in word)
    return words[words.index("--task") + 1], dict(pairs)


@pytest.mark.parametrize("name", LAYOUTS := read_table(READ))
def test_columns_are_read_as_what_they_are(name: str) -> None:
    model, columns, expected = LAYOUTS[name]
    chosen, found = choose_task(opened(columns), None, {}, HEADS[model])
    task, roles = expected.split(": ")
    assert (chosen.name, found) == (task, roles_in(roles))


@pytest.mark.parametrize("name", REFUSED := read_table(ASKED))
def test_options_of_a_refusal_work(name: str) -> None:
    model, columns, expected = REFUSED[name]
    table, heads = opened(columns), HEADS[model]
    code, task, roles = expected.split(": ")
    with pytest.raises(FindingError) as caught:
        choose_task(table, None, {}, heads)
    (found,) = caught.value.findings
    assert found.code == code
    read = []
    for line in lines_in(found.fix):
        wanted, named = read_options(line)
        joined = join_columns(table, named.values())
        chosen, made = choose_task(joined, TASKS[wanted], named, heads)
        read.append((chosen.name, made))
    assert (task, roles_in(roles)) in read


def test_answers_of_squad_in_a_table_become_columns() -> None:
    answers = [{"text": ["red", "blue"], "answer_start": [3, 5]}, None, {"text": []}]
    arrow = pa.table({"question": ["a", "b", "c"], "answers": pa.array(answers)})
    table = spread_columns(Table(arrow, (Source("a.parquet", 0),), "key"))
    assert table.arrow["answer"].to_pylist() == ["red", None, None]
    assert table.arrow["references"].to_pylist() == [["red", "blue"], None, []]
    assert "are read as the columns" in table.findings[0].message


def test_lists_of_answer_objects_are_read_as_those_of_squad() -> None:
    answers = [[{"text": "red", "answer_start": 3}, {"text": "blue", "answer_start": 5}], [], None]
    arrow = pa.table({"question": ["a", "b", "c"], "answers": pa.array(answers)})
    table = spread_columns(Table(arrow, (Source("a.parquet", 0),), "key"))
    assert table.arrow["answer"].to_pylist() == ["red", None, None]
    assert table.arrow["references"].to_pylist() == [["red", "blue"], [], []]
    assert table.arrow["answer_start"].to_pylist() == [[3, 5], [], []]
    scored = pa.table({"question": ["a"], "answers": [[{"text": "x", "score": 2}]]})
    assert spread_columns(replace(table, arrow=scored)).columns == ("question", "answers")


def test_lists_of_questions_and_answers_become_dialogues() -> None:
    rows = [{"questions": ["a", "b"], "answers": ["1", "2"]}, {"questions": [], "answers": []}]
    table = spread_columns(open_rows(rows))
    assert table.arrow["messages"].to_pylist() == [said("a", "1", "b", "2"), []]
    uneven = open_rows([{"questions": ["a", "b"], "answers": ["1"]}])
    assert spread_columns(uneven) is uneven


def test_lists_of_what_is_said_in_turn_become_dialogues() -> None:
    rows = [{"dialog": ["a", "b", "c"], "act": [1, 2, 1]}, {"dialog": [], "act": []}] * 2
    table = spread_columns(open_rows([*rows, {"dialog": ["d", "e"], "act": [1, 1]}]))
    first = [*said("a", "b"), {"role": "user", "content": "c"}]
    assert table.arrow["messages"].to_pylist() == [first, [], first, [], said("d", "e")]
    sliced = spread_columns(replace(table, arrow=open_rows(rows).arrow.slice(2)))
    assert sliced.arrow["messages"].to_pylist() == [first, []]


@pytest.mark.parametrize(
    "row",
    [
        {"dialogue": ["a", "b"], "summary": "c"},
        {"dialogue": ["a", "b"], "label": 1},
        {"turns": ["a", "b"]},
    ],
)
def test_lists_beside_what_is_learned_from_them_stay(row: dict[str, Any]) -> None:
    table = open_rows([row] * 3)
    assert spread_columns(table) is table


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
        choose_task(opened("text say, y n"), TASKS[task], {role: "y"})


def test_pairs_become_usual_columns_for_a_task_that_reads_them() -> None:
    table = open_rows([{"prompt": "a", "winner": "b", "loser": "c"}])
    assert spread_columns(table) is table
    assert spread_columns(table, ("prompt", "chosen", "rejected")).row(0) == {
        "prompt": "a",
        "chosen": "b",
        "rejected": "c",
    }
