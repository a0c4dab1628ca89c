"""Healthy models and labels that look as if nothing could be learned from them."""

from __future__ import annotations

import numpy as np

from faults.case import Case, for_bert, for_mlp, for_vit
from faults.learning import classes
from faults.misread import measured
from faults.models import DATA, MAKE, TEXT, language_model, net, own
from faults.splits import TO_KIND, images

ZERO_HEAD = (
    "made = Net(num_classes)\n    nn.init.zeros_(made.head.weight)\n"
    "    nn.init.zeros_(made.head.bias)\n    return made"
)
CASES = [
    own("not SF730 SF733: head that starts at zero", net(MAKE, ZERO_HEAD)),
    Case("logits that are scaled down", TEXT, module=language_model("return logits * 1e-3")),
    for_bert("classes minus one and one", classes(lambda n, label: 2 * (n % 2) - 1)),
    for_bert("classes minus one, zero and one", classes(lambda n, label: n % 3 - 1)),
    for_bert(
        "not SF234: letters in both cases as classes", classes(lambda n, label: "aAbB"[n % 4])
    ),
    for_bert("not SF235: class named none", classes(lambda n, label: "none" if n % 3 else label)),
    for_bert(
        "not SF234: frequent classes that differ in case",
        classes(lambda n, label: ("hid", "hId")[n % 2]),
    ),
    for_bert("class numbers of a subset", classes(lambda n, label: (3, 5, 8)[n % 3])),
    for_vit("image classes of a subset", {"a.npz": images(60, lambda n: (0, 2, 5)[n % 3])}),
    for_vit(
        "rare image classes",
        {
            "a.npz": images(80, lambda n: n % 24 if n < 72 else 100 + n),
            "e.npz": images(20, lambda n: n, 1),
        },
        "--eval-data e.npz",
        also=("have one ",),
    ),
    for_mlp(
        "table with one class in nine tenths of the rows",
        [{**r, "kind": "x" if n % 10 else "y"} for n, r in enumerate(measured())],
        TO_KIND,
        also=("The best step goes by",),
    ),
    Case(
        "argument of forward that it does not use",
        {"a.npz": {**DATA["a.npz"], "extra": np.arange(30, dtype=np.float32) % 7}},
        module=net("attention_mask):", "attention_mask, extra):"),
        also=("stay the same whatever",),
    ),
    for_mlp("not SF740 SF741: high rate for a small table", measured(), f"{TO_KIND} --lr 0.02"),
    for_bert(
        "not SF237: many rare classes",
        {
            **classes(lambda n, label: f"c{n % 24}" if n < 72 else f"r{n}", 80),
            "e.jsonl": [{"text": f"new {n}", "label": f"c{n}"} for n in range(20)],
        },
        "--eval-data e.jsonl",
        also=("have one ",),
    ),
    for_bert(
        "one class with nine tenths of the rows",
        classes(lambda n, label: "rare" if n % 10 == 0 else "usual", 100),
        also=("The best step goes by",),
    ),
]
