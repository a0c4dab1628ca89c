"""Faults that leave nothing to learn, or teach something else than was meant."""

from __future__ import annotations

from typing import Any

import numpy as np

from builders import echo_rows, sentiment_rows
from faults.case import Case, for_bert, for_mlp, for_vit
from faults.models import RETURNS, TEXT, language_model, net, own


def classes(label: Any, count: int = 60) -> dict[str, Any]:
    """Texts whose label is a function of the row's number and its label."""
    rows = sentiment_rows(count)
    return {"a.jsonl": [{**row, "label": label(n, row["label"])} for n, row in enumerate(rows)]}


def table(count: int = 80, **columns: Any) -> dict[str, Any]:
    """A table with a target that depends on `size`, and further columns by row number."""
    rows = [
        {
            "size": n * 13 % 29,
            **{name: value(n) for name, value in columns.items()},
            "price": n * 13 % 29 * 1.5 + n * 7 % 5,
        }
        for n in range(count)
    ]
    return {"a.jsonl": rows}


TO_PRICE = "--task regression --set columns.label=price"
HIDDEN = "hidden = self.dropout(torch.tanh(self.body(inputs_embeds)))"

MODELS = [
    own("outputs times zero", "SF733", net(RETURNS, RETURNS + " * 0")),
    Case("token outputs times zero", "SF733", TEXT, module=language_model("return logits * 0")),
    own(
        "outputs that only know the length",
        "SF730",
        net(HIDDEN, HIDDEN.replace("inputs_embeds", "inputs_embeds * 0")),
    ),
    Case(
        "outputs that are a bias",
        "SF730",
        TEXT,
        module=language_model("return logits * 0 + self.head.bias"),
    ),
    own(
        "body cut off from the loss",
        "SF734",
        net(RETURNS, "hidden = hidden.detach()\n        " + RETURNS),
    ),
    Case(
        "embedding cut off from the loss",
        "SF734",
        TEXT,
        module=language_model("return self.head(self.body(self.embed(input_ids).data)[0])"),
    ),
]
RATES = [
    Case("rate of 5 for a language model", "SF740", echo_rows(60), options="--lr 5"),
    for_mlp(
        "rate of 20 for a table", "SF740", table(age=lambda n: n * 7 % 31), f"{TO_PRICE} --lr 20"
    ),
    for_bert("rate of 1 for a classifier", "SF741", classes(lambda n, label: label), "--lr 1"),
    for_vit(
        "rate of 0.3 for images",
        "SF741",
        {
            "a.npz": {
                "image": np.random.default_rng(0).integers(0, 255, (60, 8, 8), dtype=np.uint8),
                "label": np.arange(60) % 3,
            }
        },
        "--lr 0.3",
    ),
]
LABELS = [
    for_bert(
        "class names in two cases",
        "SF234",
        classes(lambda n, label: label.upper() if n % 10 == 3 else label),
        column="label",
    ),
    for_bert(
        "class names with other spaces",
        "SF234",
        classes(lambda n, label: ("not  " if n == 7 else "not ") + label),
    ),
    for_bert(
        "missing label as minus one",
        "SF235",
        classes(lambda n, label: -1 if n % 9 == 4 else n % 3),
        row=4,
        column="label",
    ),
    for_bert(
        "missing label as a question mark",
        "is read as missing",
        classes(lambda n, label: "?" if n % 9 == 4 else label),
        column="label",
        also=("SF215",),
    ),
    for_bert(
        "misspelt class in one row",
        "SF237",
        classes(lambda n, label: "goood" if n == 5 else label),
        "--set eval_share=0",
        row=5,
        column="label",
    ),
    for_vit(
        "class number that one image has",
        "SF237",
        {
            "a.npz": {
                "image": np.random.default_rng(0).integers(0, 255, (60, 8, 8), dtype=np.uint8),
                "label": np.where(np.arange(60) == 11, 3, np.arange(60) % 3),
            }
        },
        "--set eval_share=0",
    ),
]
