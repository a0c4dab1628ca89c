"""Faults of models: what does not suit the data, cannot learn, or learns something else."""

from __future__ import annotations

from typing import Any

import numpy as np

from builders import MODULE_SOURCE, echo_rows
from faults.case import Case

NET = MODULE_SOURCE.format(width=4, dropout=0.0)
DATA = {
    "a.npz": {
        "features": np.random.default_rng(0).normal(size=(30, 5, 4)).astype(np.float32),
        "label": np.arange(30) % 3,
    }
}
TWO_CLASSES = {"a.npz": {**DATA["a.npz"], "label": np.arange(30) % 2}}
TEXT = {
    "a.jsonl": [
        {"input_ids": [5 + n, 6, 7, 8, 9 + n], "labels": [5 + n, 6, 7, 8, 9 + n]} for n in range(20)
    ]
}


def net(old: str, new: str) -> str:
    """The good module with one thing changed."""
    assert old in NET, old
    return NET.replace(old, new)


LM = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 16)
        self.body = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 64)

    def forward(self, input_ids, attention_mask, labels=None):
        logits = self.head(self.body(self.embed(input_ids))[0])
        RETURN


def make():
    return Net()
"""


def language_model(returns: str) -> str:
    """A small language model that ends as given."""
    return LM.replace("RETURN", returns)


LOSS = "return {{'loss': nn.functional.cross_entropy(logits{}.flatten(0, 1), labels{}.flatten())}}"
RETURNS = "return self.head((hidden * mask).sum(1) / mask.sum(1))"
MAKE = "return Net(num_classes)"
LEAKS = """if labels is not None:
            hidden = hidden + labels[:, None, None]
        {}"""
SECOND_OUTPUT = net(
    RETURNS,
    "latent = self.head((hidden * mask).sum(1) / mask.sum(1))\n"
    "        return latent, self.last(latent)",
).replace(
    "self.dropout =", "self.last = nn.Linear(num_classes, num_classes)\n        self.dropout ="
)


def own(name: str, code: str | None, module: str, **more: Any) -> Case:
    """A module of one's own for feature sequences of three classes."""
    return Case(name, code, DATA, module=module, **more)


def weighted(name: str, code: str, weights: Any) -> Case:
    """A column that forward names, as a function of the row's number; row 7 of it is odd."""
    rows = [
        {"features": [[1.0, 2.0, 3.0, n + 0.5]] * 2, "weights": weights(n), "label": n % 3}
        for n in range(30)
    ]
    module = net("attention_mask):", "attention_mask, weights):")
    options = "--set eval_share=0"
    return Case(name, code, rows, module=module, options=options, row=7, column="weights")


CASES = [
    own("too few outputs", "SF303", net(MAKE, "return Net(2)"), row=2),
    own("one output for three classes", "SF303", net(MAKE, "return Net(1)"), row=1),
    own("more outputs than classes", "SF316", net(MAKE, "return Net(5)")),
    own("function that makes no model", "SF301", net(MAKE, "return 'net'")),
    own("function that raises", "SF305", net(MAKE, "return missing")),
    own("frozen model", "SF314", net(MAKE, "return Net(num_classes).requires_grad_(False)")),
    own("model that gives NaN", "SF315", net(RETURNS, RETURNS + " * float('nan')")),
    own("model that returns nothing", "SF301", net(RETURNS, RETURNS.replace("return", "result ="))),
    own(
        "layers in a plain list",
        "SF219",
        net("self.body = nn.Linear(4, 32)", "self.layers = [nn.Linear(4, 32)]").replace(
            "self.body(", "self.layers[0]("
        ),
    ),
    own(
        "weights that are no parameter",
        "SF219",
        net(
            "self.dropout =",
            "self.scale = torch.ones(32, requires_grad=True)\n        self.dropout =",
        ),
    ),
    own("softmax before the loss", "SF220", net(RETURNS, RETURNS + ".softmax(-1)")),
    Case(
        "sigmoid before the binary loss",
        "SF220",
        TWO_CLASSES,
        module=net(RETURNS, RETURNS + ".sigmoid()").replace(MAKE, "return Net(1)"),
        also=("one output for two classes",),
    ),
    Case(
        "sigmoid before the loss of several labels",
        "SF220",
        {"a.npz": {**DATA["a.npz"], "label": np.eye(3)[np.arange(30) % 3] + np.eye(3)[0] > 0}},
        module=net(RETURNS, RETURNS + ".sigmoid()"),
    ),
    own("function that ends the program", "SF305", net(MAKE, "raise SystemExit(3)")),
    own(
        "forward without an end",
        "SF305",
        net(RETURNS, "return self.forward(inputs_embeds, attention_mask)"),
    ),
    own(
        "model in half precision",
        "SF305",
        net(MAKE, "return Net(num_classes).half()"),
        needs="fp16",
    ),
    own("model without weights", "SF305", net(MAKE, "return Net(num_classes).to('meta')")),
    own(
        "forward without gradients",
        "SF305",
        NET.replace("    def forward", "    @torch.no_grad()\n    def forward"),
    ),
    own("classes instead of scores", "SF305", net(RETURNS, RETURNS + ".argmax(-1)")),
    own("model that returns no logits", "SF305", net(RETURNS, "return {'hidden': hidden}")),
    own("model that forgets to pool", "SF305", net(RETURNS, "return self.head(hidden)")),
    own("model that returns one number", "SF305", net(RETURNS, RETURNS + ".mean()")),
    own(
        "forward that takes other columns",
        "SF301",
        net("forward(self, inputs_embeds, attention_mask)", "forward(self, left, right)"),
    ),
    own("forward that needs labels", "SF317", net("attention_mask):", "attention_mask, labels):")),
    own(
        "labels that reach the logits",
        "SF751",
        net("attention_mask):", "attention_mask, labels=None):").replace(
            RETURNS, LEAKS.format(RETURNS)
        ),
        column="labels",
    ),
    own("two outputs, the head in the second", "SF752", SECOND_OUTPUT),
    own(
        "two outputs that fit",
        "SF753",
        net(RETURNS, RETURNS.replace("return", "made =") + "\n        return made, -made"),
    ),
    own(
        "two named outputs that fit",
        "SF753",
        net(RETURNS, RETURNS.replace("return", "a =") + "\n        return {'a': a, 'b': -a}"),
    ),
    own(
        "batch statistics and a batch of one",
        "SF313",
        net(RETURNS, "return self.head(self.norm((hidden * mask).sum(1)))").replace(
            "self.dropout =", "self.norm = nn.BatchNorm1d(32)\n        self.dropout ="
        ),
        options="--batch-size 1",
    ),
    Case(
        "mean over padding",
        "SF701",
        [
            {"features": [[float(n), 1.0, 2.0, 3.0]] * (2 + n % 3), "label": n % 2}
            for n in range(30)
        ],
        module=net(RETURNS, "return self.head(hidden.mean(1))"),
    ),
    own(
        "rows that see each other",
        "SF702",
        net(RETURNS, "return self.head(hidden.mean(1) + hidden.mean((0, 1)))"),
    ),
    Case("labels not shifted", "SF703", TEXT, module=language_model(LOSS.format("", ""))),
    Case(
        "labels shifted twice",
        "SF704",
        TEXT,
        module=language_model(LOSS.format("[:, :-2]", "[:, 2:]")),
    ),
    Case(
        "LoRA on layers that are not there",
        "SF321",
        echo_rows(20),
        options="--lora-r 4 --set lora.targets=[q_prjo]",
        process=True,
    ),
    own(
        "LoRA where nothing can be adapted",
        "SF321",
        net("nn.Linear(4, 32)", "nn.Bilinear(4, 4, 32)")
        .replace("self.body(inputs_embeds)", "self.body(inputs_embeds, inputs_embeds)")
        .replace("nn.Linear(32, num_classes)", "nn.Bilinear(32, 32, num_classes)")
        .replace(
            "self.head((hidden * mask).sum(1) / mask.sum(1))",
            "self.head(hidden.mean(1), hidden.mean(1))",
        ),
        options="--lora-r 4",
    ),
    weighted(
        "custom column with a missing value", "SF207", lambda n: [1.0, None if n == 7 else 2.0]
    ),
    weighted("custom column nested unevenly", "SF208", lambda n: [[1.0], [2.0] * (1 + (n == 7))]),
    Case(
        "column of text that forward names",
        "SF301",
        [
            {"features": [[1.0, 2.0, 3.0, n + 0.5]] * 2, "note": "x", "label": n % 3}
            for n in range(30)
        ],
        module=net("attention_mask):", "attention_mask, note):"),
        options="--task feature-classification",
    ),
    Case("too little memory", "SF400", echo_rows(20), options="--max-memory-gb 0.001"),
    own("checkpointing of one's own module", "SF404", NET, options="--set checkpointing=on"),
]
