"""Faults of models: what does not suit the data, cannot learn, or learns something else."""

from __future__ import annotations

import numpy as np

from builders import MODULE_SOURCE, echo_rows, sentiment_rows
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
SPOILT = (
    "made = Net(num_classes)\n    nn.init.constant_(made.head.weight, float('nan'))\n"
    "    return made"
)
EMPTY = """
from torch import nn


class Net(nn.Module):
    def forward(self, inputs_embeds):
        return inputs_embeds.mean(1)


def make():
    return Net()
"""
CASES = [
    Case("too few outputs", "SF303", DATA, module=net(MAKE, "return Net(2)"), row=2),
    Case("one output for three classes", "SF303", DATA, module=net(MAKE, "return Net(1)"), row=1),
    Case("more outputs than classes", "SF316", DATA, module=net(MAKE, "return Net(5)"), exits=0),
    Case("function that makes no model", "SF301", DATA, module=net(MAKE, "return 'net'")),
    Case("function that raises", "SF305", DATA, module=net(MAKE, "return missing")),
    Case(
        "frozen model",
        "SF314",
        DATA,
        module=net(MAKE, "return Net(num_classes).requires_grad_(False)"),
    ),
    Case(
        "model without parameters",
        "SF314",
        DATA,
        module=EMPTY,
    ),
    Case("model that gives NaN", "SF315", DATA, module=net(RETURNS, RETURNS + " * float('nan')")),
    Case(
        "weights that are NaN",
        "SF315",
        DATA,
        module=net(
            "return Net(num_classes)",
            SPOILT,
        ),
    ),
    Case(
        "model that returns nothing",
        "SF301",
        DATA,
        module=net(RETURNS, RETURNS.replace("return", "result =")),
    ),
    Case(
        "layers in a plain list",
        "SF219",
        DATA,
        module=net("self.body = nn.Linear(4, 32)", "self.layers = [nn.Linear(4, 32)]").replace(
            "self.body(", "self.layers[0]("
        ),
        exits=0,
    ),
    Case(
        "weights that are no parameter",
        "SF219",
        DATA,
        module=net(
            "self.dropout =",
            "self.scale = torch.ones(32, requires_grad=True)\n        self.dropout =",
        ),
        exits=0,
    ),
    Case(
        "softmax before the loss",
        "SF220",
        DATA,
        module=net(RETURNS, RETURNS + ".softmax(-1)"),
        exits=0,
    ),
    Case(
        "sigmoid before the binary loss",
        "SF220",
        TWO_CLASSES,
        module=net(RETURNS, RETURNS + ".sigmoid()").replace(MAKE, "return Net(1)"),
        exits=0,
        also=("SF329",),
    ),
    Case(
        "sigmoid before the loss of several labels",
        "SF220",
        {"a.npz": {**DATA["a.npz"], "label": np.eye(3)[np.arange(30) % 3] + np.eye(3)[0] > 0}},
        module=net(RETURNS, RETURNS + ".sigmoid()"),
        exits=0,
    ),
    Case("function that ends the program", "SF305", DATA, module=net(MAKE, "raise SystemExit(3)")),
    Case(
        "forward without an end",
        "SF305",
        DATA,
        module=net(RETURNS, "return self.forward(inputs_embeds, attention_mask)"),
    ),
    Case(
        "model in half precision",
        "SF305",
        DATA,
        module=net(MAKE, "return Net(num_classes).half()"),
        needs="fp16",
    ),
    Case(
        "model without weights",
        "SF305",
        DATA,
        module=net(MAKE, "return Net(num_classes).to('meta')"),
    ),
    Case(
        "forward without gradients",
        "SF305",
        DATA,
        module=NET.replace("    def forward", "    @torch.no_grad()\n    def forward"),
    ),
    Case("classes instead of scores", "SF305", DATA, module=net(RETURNS, RETURNS + ".argmax(-1)")),
    Case("model that returns a text", "SF301", DATA, module=net(RETURNS, "return 'done'")),
    Case(
        "model that returns no logits",
        "SF305",
        DATA,
        module=net(RETURNS, "return {'hidden': hidden}"),
    ),
    Case(
        "model that forgets to pool", "SF305", DATA, module=net(RETURNS, "return self.head(hidden)")
    ),
    Case("model that returns one number", "SF305", DATA, module=net(RETURNS, RETURNS + ".mean()")),
    Case("forward that raises", "SF305", DATA, module=net(RETURNS, "return self.nothing")),
    Case(
        "layer of another width",
        "SF305",
        DATA,
        module=net("nn.Linear(32, num_classes)", "nn.Linear(31, num_classes)"),
    ),
    Case(
        "forward that takes other columns",
        "SF301",
        DATA,
        module=net("forward(self, inputs_embeds, attention_mask)", "forward(self, left, right)"),
    ),
    Case(
        "forward that needs labels",
        "SF317",
        DATA,
        module=net("attention_mask):", "attention_mask, labels):"),
        exits=0,
    ),
    Case(
        "outputs cut from the gradient", "SF305", DATA, module=net(RETURNS, RETURNS + ".detach()")
    ),
    Case(
        "batch statistics and a batch of one",
        "SF313",
        DATA,
        module=net(RETURNS, "return self.head(self.norm((hidden * mask).sum(1)))").replace(
            "self.dropout =", "self.norm = nn.BatchNorm1d(32)\n        self.dropout ="
        ),
        options="--batch-size 1",
    ),
    Case(
        "mean over padding",
        "SF701",
        {
            "a.jsonl": [
                {"features": [[float(n), 1.0, 2.0, 3.0]] * (2 + n % 3), "label": n % 2}
                for n in range(30)
            ]
        },
        module=net(RETURNS, "return self.head(hidden.mean(1))"),
        exits=0,
    ),
    Case(
        "rows that see each other",
        "SF702",
        DATA,
        module=net(RETURNS, "return self.head(hidden.mean(1) + hidden.mean((0, 1)))"),
        exits=0,
    ),
    Case("labels not shifted", "SF703", TEXT, module=language_model(LOSS.format("", ""))),
    Case(
        "labels shifted twice",
        "SF704",
        TEXT,
        module=language_model(LOSS.format("[:, :-2]", "[:, 2:]")),
    ),
    Case("encoder for instructions", "SF301", {"a.jsonl": echo_rows(20)}, "tiny:vit"),
    Case(
        "LoRA on layers that are not there",
        "SF321",
        {"a.jsonl": echo_rows(20)},
        options="--lora-r 4 --set lora.targets=[q_prjo]",
        process=True,
    ),
    Case(
        "LoRA on an embedding alone",
        "SF321",
        {"a.jsonl": echo_rows(20)},
        options="--lora-r 4 --set lora.targets=[norm]",
    ),
    Case(
        "LoRA where nothing can be adapted",
        "SF321",
        DATA,
        module=net("nn.Linear(4, 32)", "nn.Bilinear(4, 4, 32)")
        .replace("self.body(inputs_embeds)", "self.body(inputs_embeds, inputs_embeds)")
        .replace("nn.Linear(32, num_classes)", "nn.Bilinear(32, 32, num_classes)")
        .replace(
            "self.head((hidden * mask).sum(1) / mask.sum(1))",
            "self.head(hidden.mean(1), hidden.mean(1))",
        ),
        options="--lora-r 4",
    ),
    Case(
        "custom column with a missing value",
        "SF207",
        {
            "a.jsonl": [
                {
                    "features": [[1.0, 2.0, 3.0, n + 0.5]] * 2,
                    "weights": [1.0, None if n == 7 else 2.0],
                    "label": n % 3,
                }
                for n in range(30)
            ]
        },
        module=net("attention_mask):", "attention_mask, weights):"),
        options="--set eval_share=0",
        row=7,
        column="weights",
    ),
    Case(
        "custom column nested unevenly",
        "SF208",
        {
            "a.jsonl": [
                {
                    "features": [[1.0, 2.0, 3.0, n + 0.5]] * 2,
                    "weights": [[1.0], [2.0] * (1 + (n == 7))],
                    "label": n % 3,
                }
                for n in range(30)
            ]
        },
        module=net("attention_mask):", "attention_mask, weights):"),
        options="--set eval_share=0",
        row=7,
        column="weights",
    ),
    Case(
        "column of text that forward names",
        "SF301",
        {
            "a.jsonl": [
                {"features": [[1.0, 2.0, 3.0, n + 0.5]] * 2, "note": "x", "label": n % 3}
                for n in range(30)
            ]
        },
        module=net("attention_mask):", "attention_mask, note):"),
        options="--task feature-classification",
    ),
    Case(
        "architecture without a head for the task",
        "SF301",
        {"a.jsonl": sentiment_rows(30)},
        "tiny:vit",
        "--task text-classification",
    ),
    Case("too little memory", "SF400", {"a.jsonl": echo_rows(20)}, options="--max-memory-gb 0.001"),
    Case(
        "checkpointing of one's own module",
        "SF404",
        DATA,
        module=NET,
        options="--set checkpointing=on",
    ),
]
