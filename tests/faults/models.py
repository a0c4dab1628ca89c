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


def own(title: str, module: str, **more: Any) -> Case:
    """A module of one's own for feature sequences of three classes."""
    return Case(title, DATA, module=module, **more)


def weighted(title: str, weights: Any) -> Case:
    """A column that forward names, as a function of the row's number; row 7 of it is odd."""
    rows = [
        {"features": [[1.0, 2.0, 3.0, n + 0.5]] * 2, "weights": weights(n), "label": n % 3}
        for n in range(30)
    ]
    module = net("attention_mask):", "attention_mask, weights):")
    options = "--set eval_share=0"
    return Case(title, rows, module=module, options=options, row=7, column="weights")


RAGGED = [
    {"features": [[float(n), 1.0, 2.0, 3.0]] * (2 + n % 3), "label": n % 2} for n in range(30)
]
NUMBERS = {"a.npz": {**DATA["a.npz"], "label": np.arange(30) * 7.5 - 90}}
POOLED = "(hidden * mask).sum(1) / mask.sum(1)"


def with_norm(returns: str) -> str:
    """The good module with a layer of batch statistics."""
    made = net(RETURNS, returns)
    return made.replace("self.dropout =", "self.norm = nn.BatchNorm1d(32)\n        self.dropout =")


CASES = [
    own("SF303 too few outputs", net(MAKE, "return Net(2)"), row=2),
    own("SF303 one output for three classes", net(MAKE, "return Net(1)"), row=1),
    own("SF316 more outputs than classes", net(MAKE, "return Net(5)")),
    own("SF301 function that makes no model", net(MAKE, "return 'net'")),
    own("SF305 function that raises", net(MAKE, "return missing")),
    own("SF314 frozen model", net(MAKE, "return Net(num_classes).requires_grad_(False)")),
    own("SF315 model that gives NaN", net(RETURNS, RETURNS + " * float('nan')")),
    own("SF301 model that returns nothing", net(RETURNS, RETURNS.replace("return", "result ="))),
    own(
        "SF219 layers in a plain list",
        net("self.body = nn.Linear(4, 32)", "self.layers = [nn.Linear(4, 32)]").replace(
            "self.body(", "self.layers[0]("
        ),
    ),
    own(
        "SF219 weights that are no parameter",
        net(
            "self.dropout =",
            "self.scale = torch.ones(32, requires_grad=True)\n        self.dropout =",
        ),
    ),
    own("SF220 softmax before the loss", net(RETURNS, RETURNS + ".softmax(-1)")),
    Case(
        "SF220 sigmoid before the binary loss",
        TWO_CLASSES,
        module=net(RETURNS, RETURNS + ".sigmoid()").replace(MAKE, "return Net(1)"),
        also=("one output for two classes",),
    ),
    Case(
        "SF220 sigmoid before the loss of several labels",
        {"a.npz": {**DATA["a.npz"], "label": np.eye(3)[np.arange(30) % 3] + np.eye(3)[0] > 0}},
        module=net(RETURNS, RETURNS + ".sigmoid()"),
    ),
    own("SF305 function that ends the program", net(MAKE, "raise SystemExit(3)")),
    own(
        "SF305 forward without an end",
        net(RETURNS, "return self.forward(inputs_embeds, attention_mask)"),
    ),
    own("SF305 model in half precision", net(MAKE, "return Net(num_classes).half()"), needs="fp16"),
    own("SF305 model without weights", net(MAKE, "return Net(num_classes).to('meta')")),
    own(
        "SF305 forward without gradients",
        NET.replace("    def forward", "    @torch.no_grad()\n    def forward"),
    ),
    own("SF305 classes instead of scores", net(RETURNS, RETURNS + ".argmax(-1)")),
    own("SF305 model that returns no logits", net(RETURNS, "return {'hidden': hidden}")),
    own("SF305 model that forgets to pool", net(RETURNS, "return self.head(hidden)")),
    own("SF305 model that returns one number", net(RETURNS, RETURNS + ".mean()")),
    own(
        "SF301 forward that takes other columns",
        net("forward(self, inputs_embeds, attention_mask)", "forward(self, left, right)"),
    ),
    own("SF317 forward that needs labels", net("attention_mask):", "attention_mask, labels):")),
    own(
        "SF751 labels that reach the logits",
        net("attention_mask):", "attention_mask, labels=None):").replace(
            RETURNS, LEAKS.format(RETURNS)
        ),
        column="labels",
    ),
    own("SF752 two outputs, the head in the second", SECOND_OUTPUT),
    own(
        "SF753 two outputs that fit",
        net(RETURNS, RETURNS.replace("return", "made =") + "\n        return made, -made"),
    ),
    own(
        "SF753 two named outputs that fit",
        net(RETURNS, RETURNS.replace("return", "a =") + "\n        return {'a': a, 'b': -a}"),
    ),
    own(
        "SF313 batch statistics and a batch of one",
        net(RETURNS, "return self.head(self.norm((hidden * mask).sum(1)))").replace(
            "self.dropout =", "self.norm = nn.BatchNorm1d(32)\n        self.dropout ="
        ),
        options="--batch-size 1",
    ),
    Case(
        "SF701 mean over padding",
        [
            {"features": [[float(n), 1.0, 2.0, 3.0]] * (2 + n % 3), "label": n % 2}
            for n in range(30)
        ],
        module=net(RETURNS, "return self.head(hidden.mean(1))"),
    ),
    own(
        "SF701 rows that see each other",
        net(RETURNS, "return self.head(hidden.mean(1) + hidden.mean((0, 1)))"),
    ),
    Case(
        "SF701 batch statistics over padding",
        RAGGED,
        module=with_norm(
            f"hidden = self.norm(hidden.transpose(1, 2)).transpose(1, 2)\n        {RETURNS}"
        ),
    ),
    own(
        "SF701 rows that see the row before",
        net(
            RETURNS,
            f"pooled = {POOLED}\n        return self.head("
            "torch.cat([pooled[:1], pooled[1:] + pooled[:-1]]))",
        ),
    ),
    own(
        "SF736 reshape in place of transpose",
        net(RETURNS, "return self.head(hidden.reshape(-1, 32, hidden.shape[1]).mean(2))"),
    ),
    own("SF700 noise on the outputs", net(RETURNS, RETURNS + " + torch.rand(())")),
    own(
        "SF736 reshape of steps and features",
        net("hidden * mask).sum(1)", "hidden.view(-1, 32, hidden.shape[1]).sum(2) * mask[:, 0])"),
    ),
    own("SF702 inputs changed in place", net("mask =", "attention_mask[:, 0] = 0\n        mask =")),
    own(
        "SF700 dropout in evaluation",
        net(RETURNS, RETURNS.replace(POOLED, f"nn.functional.dropout({POOLED})")),
    ),
    own(
        "SF219 layer made in forward",
        net(RETURNS, RETURNS.replace("self.head", "nn.Linear(32, 3)")),
    ),
    Case(
        "SF220 tanh before numbers",
        NUMBERS,
        module=net(RETURNS, RETURNS + ".tanh()"),
        options="--task regression",
    ),
    own("SF220 ReLU before the loss", net(RETURNS, RETURNS + ".relu()")),
    Case("SF703 labels not shifted", TEXT, module=language_model(LOSS.format("", ""))),
    Case(
        "SF703 labels shifted twice",
        TEXT,
        module=language_model(LOSS.format("[:, :-2]", "[:, 2:]")),
    ),
    Case(
        "SF321 LoRA on layers that are not there",
        echo_rows(20),
        options="--lora-r 4 --set lora.targets=[q_prjo]",
    ),
    own(
        "SF321 LoRA where nothing can be adapted",
        net("nn.Linear(4, 32)", "nn.Bilinear(4, 4, 32)")
        .replace("self.body(inputs_embeds)", "self.body(inputs_embeds, inputs_embeds)")
        .replace("nn.Linear(32, num_classes)", "nn.Bilinear(32, 32, num_classes)")
        .replace(
            "self.head((hidden * mask).sum(1) / mask.sum(1))",
            "self.head(hidden.mean(1), hidden.mean(1))",
        ),
        options="--lora-r 4",
    ),
    weighted("SF207 custom column with a missing value", lambda n: [1.0, None if n == 7 else 2.0]),
    weighted("SF208 custom column nested unevenly", lambda n: [[1.0], [2.0] * (1 + (n == 7))]),
    Case(
        "SF301 column of text that forward names",
        [
            {"features": [[1.0, 2.0, 3.0, n + 0.5]] * 2, "note": "x", "label": n % 3}
            for n in range(30)
        ],
        module=net("attention_mask):", "attention_mask, note):"),
        options="--task feature-classification",
    ),
    Case("SF400 too little memory", echo_rows(20), options="--max-memory-gb 0.001"),
    own("SF404 checkpointing of one's own module", NET, options="--set checkpointing=on"),
]
