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


def priced(title: str, rows: Any, **more: Any) -> Case:
    """A table whose target is the price."""
    return for_mlp(title, rows, TO_PRICE, **more)


LABELS = [
    for_bert(
        "SF238 classes whose order their names do not say",
        labelled(lambda n: ("red", "green", "blue")[n % 3]),
        f"--task ordinal {ALL}",
        column="label",
    ),
    for_bert("SF205 label never given", labelled(lambda n: None), "--task text-classification"),
    for_bert(
        "SF202 no label column",
        [{"text": r["text"]} for r in sentiment_rows(30)],
        "--task text-classification",
    ),
    for_bert("SF205 one class only", labelled(lambda n: "good"), column="label"),
    for_bert(
        "SF205 a class for every row",
        labelled(lambda n: f"class {n}"),
        "--task text-classification",
        column="label",
    ),
    for_bert(
        "SF205 amounts as classes",
        labelled(lambda n: n + 0.5),
        f"--task text-classification {ALL}",
        row=0,
        column="label",
    ),
    for_bert(
        "missing value among class numbers",
        labelled(lambda n: None if n == 4 else n % 2),
        ALL,
        row=4,
        note="dropped: ",
    ),
    for_bert(
        "SF205 objects as labels",
        labelled(lambda n: {"is": n % 2}),
        "--task text-classification",
        column="label",
    ),
    for_bert("SF103 label of another type in one row", texts(9, label=1), row=9, column="label"),
    evaluated(
        "SF206 label in evaluation only",
        texts(),
        [*sentiment_rows(5, seed=1), {"text": "sun new", "label": "odd"}],
        row=5,
    ),
    evaluated(
        "SF210 evaluation rows that are training rows",
        texts(),
        [{"text": "fresh one", "label": "bad"}, texts()[3], texts()[4]],
        row=1,
    ),
    evaluated(
        "SF210 evaluation rows alike but for case",
        texts(3, text="Red cat sun good"),
        [
            {"text": "red  cat sun GOOD!", "label": texts()[3]["label"]},
            texts(2, text="new here")[2],
        ],
        row=0,
    ),
    evaluated("SF202 evaluation data without the label", texts(), [{"text": "a"}], column="label"),
    for_bert(
        "SF202 column that is not there", texts(), "--set columns.label=stars", column="stars"
    ),
    for_bert(
        "SF213 text column of numbers",
        [{"text": n, "label": n % 2} for n in range(30)],
        f"--task text-classification --set columns.text=text {ALL}",
        row=0,
        column="text",
    ),
    for_bert(
        "SF215 text missing in some rows",
        [{**r, "text": None if n % 6 == 1 else r["text"]} for n, r in enumerate(texts())],
        ALL,
        row=1,
    ),
    for_bert(
        "SF204 text missing in most rows",
        [{**r, "text": "" if n % 3 else r["text"]} for n, r in enumerate(texts())],
        ALL,
        row=1,
    ),
    for_bert(
        "SF215 most texts too long",
        [{**r, "text": "red sun " * 40 + r["text"]} for r in texts()],
        "--max-seq-length 16",
    ),
    for_bert("SF215 one very long text", texts(3, text="red sun " * 4000)),
    for_bert("SF402 too few rows to evaluate", texts(), ALL),
    for_bert("SF201 more tags than words", tagged(7, ["a", "b"], ["O", "X", "O"]), ALL, row=7),
    for_bert(
        "SF205 one tag only",
        [{"tokens": ["a", f"w{n}"], "tags": ["O", "O"]} for n in range(20)],
        ALL,
    ),
    for_bert(
        "SF320 no token to hide behind",
        [{"text": r["text"]} for r in texts()],
        "--task masked-lm",
        tokenizer=Chat("chatml"),
    ),
    Case(
        "SF301 task the model has no head for",
        [{"text": r["text"]} for r in texts()],
        "tiny:llama",
        "--task masked-lm",
    ),
]
NUMBERS = [
    priced(
        "SF230 target that is text",
        [{"size": n, "age": n * 7 % 11, "price": f"about {n}"} for n in range(40)],
        column="price",
    ),
    priced(
        "SF230 target that never changes", [{**r, "price": 2.0} for r in numbers(0)], column="price"
    ),
    for_mlp(
        "SF230 one of two targets that never changes",
        [{**r, "size": 2.0} for r in numbers(0)],
        "--task regression --set columns.label=[price,size]",
    ),
    priced(
        "target that is not a number in one row", numbers(6, price=NAN), row=6, note="dropped: "
    ),
    priced(
        "SF230 target with a decimal comma in one row of a table",
        {"a.csv": csv(numbers(10, price="12,5"))},
        row=10,
        column="price",
        also=("SF118",),
    ),
    priced(
        "SF103 target written as text in the first row",
        numbers(0, price="12,5"),
        row=0,
        column="price",
    ),
    priced(
        "SF118 unit in a cell of a column of inputs",
        {"a.csv": csv(numbers(6, size="7 kg"))},
        row=6,
        line=8,
        column="size",
    ),
    priced(
        "missing value written as a word in a column of inputs",
        {"a.csv": csv(numbers(6, size="n/a"))},
        column="size",
        note="is read as missing",
    ),
    for_mlp(
        "SF119 header between the rows",
        {"a.csv": csv(numbers(0)) + csv(numbers(0))},
        "--task tabular-classification --set columns.label=age",
        row=40,
        line=42,
    ),
    priced("SF207 target without end", numbers(6, price=float("inf")), row=6, column="price"),
    priced(
        "SF232 target given away",
        [{**r, "total": r["price"] * 2} for r in numbers(0)],
        column="total",
    ),
    priced("SF233 nothing but the target", [{"price": r["price"]} for r in numbers(0)]),
    priced(
        "SF207 value without end in a table", numbers(6, size=float("inf")), row=6, column="size"
    ),
]
