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
    own("SF733 outputs times zero", net(RETURNS, RETURNS + " * 0")),
    Case("SF733 token outputs times zero", TEXT, module=language_model("return logits * 0")),
    own(
        "SF730 outputs that only know the length",
        net(HIDDEN, HIDDEN.replace("inputs_embeds", "inputs_embeds * 0")),
    ),
    Case(
        "SF730 outputs that are a bias",
        TEXT,
        module=language_model("return logits * 0 + self.head.bias"),
    ),
    own(
        "SF734 body cut off from the loss",
        net(RETURNS, "hidden = hidden.detach()\n        " + RETURNS),
    ),
    Case(
        "SF734 embedding cut off from the loss",
        TEXT,
        module=language_model("return self.head(self.body(self.embed(input_ids).data)[0])"),
    ),
]
RATES = [
    Case("SF740 rate of 5 for a language model", echo_rows(60), options="--lr 5"),
    for_mlp("SF740 rate of 20 for a table", table(age=lambda n: n * 7 % 31), f"{TO_PRICE} --lr 20"),
    for_bert("SF741 rate of 1 for a classifier", classes(lambda n, label: label), "--lr 1"),
    for_vit(
        "SF741 rate of 0.3 for images",
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
        "SF234 class names in two cases",
        classes(lambda n, label: label.upper() if n % 10 == 3 else label),
        column="label",
    ),
    for_bert(
        "SF234 class names with other spaces",
        classes(lambda n, label: ("not  " if n == 7 else "not ") + label),
    ),
    for_bert(
        "SF235 missing label as minus one",
        classes(lambda n, label: -1 if n % 9 == 4 else n % 3),
        row=4,
        column="label",
    ),
    for_bert(
        "missing label as a question mark",
        classes(lambda n, label: "?" if n % 9 == 4 else label),
        column="label",
        also=("SF215",),
        note="is read as missing",
    ),
    for_bert(
        "SF237 misspelt class in one row",
        classes(lambda n, label: "goood" if n == 5 else label),
        "--set eval_share=0",
        row=5,
        column="label",
    ),
    for_vit(
        "SF237 class number that one image has",
        {
            "a.npz": {
                "image": np.random.default_rng(0).integers(0, 255, (60, 8, 8), dtype=np.uint8),
                "label": np.where(np.arange(60) == 11, 3, np.arange(60) % 3),
            }
        },
        "--set eval_share=0",
    ),
]
