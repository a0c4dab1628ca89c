"""Faults of texts, classes and numbers: what does not suit the task."""

from __future__ import annotations

from typing import Any

from builders import sentiment_rows
from faults.case import Case, Chat, evaluated, for_bert, for_mlp

NAN = float("nan")


def texts(place: int | None = None, **odd: Any) -> list[dict[str, Any]]:
    """Texts with classes, one of them odd."""
    rows: list[dict[str, Any]] = list(sentiment_rows(30))
    if place is not None:
        rows[place] = {**rows[place], **odd}
    return rows


def labelled(label: Any) -> list[dict[str, Any]]:
    """Texts whose label is a function of the row's number."""
    return [{**row, "label": label(n)} for n, row in enumerate(sentiment_rows(30))]


def tagged(place: int, words: Any, tags: Any) -> list[dict[str, Any]]:
    """Words with tags, one row odd."""
    rows: list[dict[str, Any]] = [
        {"tokens": ["a", "b", f"w{n}"], "tags": ["O", "X", "O"]} for n in range(20)
    ]
    rows[place] = {"tokens": words, "tags": tags}
    return rows


def numbers(place: int, **odd: Any) -> list[dict[str, Any]]:
    """A small table whose target is a sum, one row odd."""
    rows: list[dict[str, Any]] = [
        {"size": float(n), "age": n * 7 % 11, "price": n + 0.5 * (n * 7 % 11) + 0.25}
        for n in range(40)
    ]
    rows[place] = {**rows[place], **odd}
    return rows


ALL = "--set eval_share=0"
TO_PRICE = f"--task regression --set columns.label=price {ALL}"


def csv(rows: list[dict[str, Any]]) -> str:
    """A table with every cell in quotes."""
    lines = [rows[0].keys(), *(row.values() for row in rows)]
    return "".join(",".join(f'"{cell}"' for cell in line) + "\n" for line in lines)


def priced(name: str, code: str | None, rows: Any, **more: Any) -> Case:
    """A table whose target is the price."""
    return for_mlp(name, code, rows, TO_PRICE, **more)


LABELS = [
    for_bert("label never given", "SF205", labelled(lambda n: None), "--task text-classification"),
    for_bert(
        "no label column",
        "SF202",
        [{"text": r["text"]} for r in sentiment_rows(30)],
        "--task text-classification",
        process=True,
    ),
    for_bert("one class only", "SF205", labelled(lambda n: "good"), column="label"),
    for_bert(
        "a class for every row",
        "SF205",
        labelled(lambda n: f"class {n}"),
        "--task text-classification",
        column="label",
    ),
    for_bert(
        "amounts as classes",
        "SF205",
        labelled(lambda n: n + 0.5),
        f"--task text-classification {ALL}",
        row=0,
        column="label",
    ),
    for_bert(
        "missing value among class numbers",
        "dropped: ",
        labelled(lambda n: None if n == 4 else n % 2),
        ALL,
        row=4,
    ),
    for_bert(
        "objects as labels",
        "SF205",
        labelled(lambda n: {"is": n % 2}),
        "--task text-classification",
        column="label",
    ),
    for_bert("label of another type in one row", "SF103", texts(9, label=1), row=9, column="label"),
    evaluated(
        "label in evaluation only",
        "SF206",
        texts(),
        [*sentiment_rows(5, seed=1), {"text": "sun new", "label": "odd"}],
        row=5,
    ),
    evaluated(
        "evaluation rows that are training rows",
        "SF210",
        texts(),
        [{"text": "fresh one", "label": "bad"}, texts()[3], texts()[4]],
        row=1,
    ),
    evaluated(
        "evaluation rows alike but for case",
        "SF210",
        texts(3, text="Red cat sun good"),
        [
            {"text": "red  cat sun GOOD!", "label": texts()[3]["label"]},
            texts(2, text="new here")[2],
        ],
        row=0,
    ),
    evaluated(
        "evaluation data without the label", "SF202", texts(), [{"text": "a"}], column="label"
    ),
    for_bert(
        "column that is not there", "SF202", texts(), "--set columns.label=stars", column="stars"
    ),
    for_bert(
        "text column of numbers",
        "SF213",
        [{"text": n, "label": n % 2} for n in range(30)],
        f"--task text-classification --set columns.text=text {ALL}",
        row=0,
        column="text",
    ),
    for_bert(
        "text missing in some rows",
        "SF215",
        [{**r, "text": None if n % 6 == 1 else r["text"]} for n, r in enumerate(texts())],
        ALL,
        row=1,
    ),
    for_bert(
        "text missing in most rows",
        "SF204",
        [{**r, "text": "" if n % 3 else r["text"]} for n, r in enumerate(texts())],
        ALL,
        row=1,
    ),
    for_bert(
        "most texts too long",
        "SF216",
        [{**r, "text": "red sun " * 40 + r["text"]} for r in texts()],
        "--max-seq-length 16",
    ),
    for_bert("too few rows to evaluate", "SF402", texts(), ALL),
    for_bert("more tags than words", "SF201", tagged(7, ["a", "b"], ["O", "X", "O"]), ALL, row=7),
    for_bert(
        "one tag only",
        "SF205",
        [{"tokens": ["a", f"w{n}"], "tags": ["O", "O"]} for n in range(20)],
        ALL,
    ),
    for_bert(
        "no token to hide behind",
        "SF320",
        {"a.jsonl": [{"text": r["text"]} for r in texts()], "tok": Chat("chatml")},
        "--task masked-lm --tokenizer tok",
    ),
    Case(
        "task the model has no head for",
        "SF301",
        [{"text": r["text"]} for r in texts()],
        "tiny:llama",
        "--task masked-lm",
    ),
]
NUMBERS = [
    priced(
        "target that is text",
        "SF230",
        [{"size": n, "age": n * 7 % 11, "price": f"about {n}"} for n in range(40)],
        column="price",
    ),
    priced(
        "target that never changes",
        "SF230",
        [{**r, "price": 2.0} for r in numbers(0)],
        column="price",
    ),
    for_mlp(
        "one of two targets that never changes",
        "SF230",
        [{**r, "size": 2.0} for r in numbers(0)],
        "--task regression --set columns.label=[price,size]",
    ),
    priced("target that is not a number in one row", "dropped: ", numbers(6, price=NAN), row=6),
    priced(
        "target with a decimal comma in one row of a table",
        "SF230",
        {"a.csv": csv(numbers(10, price="12,5"))},
        row=10,
        column="price",
        also=("SF118",),
    ),
    priced(
        "target written as text in the first row",
        "SF103",
        numbers(0, price="12,5"),
        row=0,
        column="price",
    ),
    priced(
        "unit in a cell of a column of inputs",
        "SF118",
        {"a.csv": csv(numbers(6, size="7 kg"))},
        row=6,
        line=8,
        column="size",
    ),
    priced(
        "missing value written as a word in a column of inputs",
        "is read as missing",
        {"a.csv": csv(numbers(6, size="n/a"))},
        column="size",
    ),
    for_mlp(
        "header between the rows",
        "SF119",
        {"a.csv": csv(numbers(0)) + csv(numbers(0))},
        "--task tabular-classification --set columns.label=age",
        row=40,
        line=42,
    ),
    priced("target without end", "SF207", numbers(6, price=float("inf")), row=6, column="price"),
    priced(
        "target given away",
        "SF232",
        [{**r, "total": r["price"] * 2} for r in numbers(0)],
        column="total",
    ),
    priced("nothing but the target", "SF233", [{"price": r["price"]} for r in numbers(0)]),
    priced(
        "value without end in a table", "SF207", numbers(6, size=float("inf")), row=6, column="size"
    ),
]
