"""Healthy features, pictures and models that look odd: neither error nor warning may come."""

from __future__ import annotations

import numpy as np
from pictures import draw

from builders import echo_rows
from faults.case import Bert, Case, for_vit
from faults.files import ARRAY
from faults.labels import texts
from faults.models import (
    NET,
    RETURNS,
    SECOND_OUTPUT,
    TEXT,
    TWO_CLASSES,
    language_model,
    net,
    own,
    with_norm,
)
from faults.models import RAGGED as RAGGED_ROWS
from faults.sequences import CLASSES, MLP, convolution, pictures, steps, values

ARGS = "forward(self, inputs_embeds, attention_mask, *more, **others)"
GREY = {f"d/{s}/{n}.png": draw(s, n)[:, :, 0] for s in ("disc", "frame") for n in range(10)}
SIZES = {f"d/{s}/{n}.png": draw(s, n, 24 + n, 40 - n) for s in ("disc", "frame") for n in range(10)}
RAGGED = [
    {"features": [[1.0, 2.0, 3.0, n + 0.5]] * 2, "weights": [1.0] * (n % 3 + 1), "label": n % 3}
    for n in range(30)
]
LOSS_BESIDE = (
    RETURNS.replace("return", "logits =")
    + """
        if labels is None:
            return logits
        return nn.functional.cross_entropy(logits, labels), logits"""
)
CASES = [
    own(
        "not SF751: labels for a loss beside the logits",
        net("attention_mask):", "attention_mask, labels=None):").replace(RETURNS, LOSS_BESIDE),
    ),
    own(
        "labels for a loss alone",
        net("attention_mask):", "attention_mask, labels=None):").replace(
            RETURNS, LOSS_BESIDE.replace("labels), logits", "labels)")
        ),
        also=("a loss of its own",),
    ),
    own("not SF752: two outputs, one of them named", SECOND_OUTPUT, options="--set outputs=1"),
    own(
        "not SF753: two outputs of different shapes",
        net(RETURNS, RETURNS.replace("return", "return hidden,")),
    ),
    own(
        "batch statistics and a row that is left over",
        net(RETURNS, "return self.head(self.norm((hidden * mask).sum(1)))").replace(
            "self.dropout =", "self.norm = nn.BatchNorm1d(32)\n        self.dropout ="
        ),
        options="--batch-size 2 --set eval_share=0.1",
    ),
    Case(
        "one output for two classes",
        TWO_CLASSES,
        module=net("return Net(num_classes)", "return Net(1)"),
        also=("one output for two classes",),
    ),
    Case(
        "one output that begins between 0 and 1",
        TWO_CLASSES,
        module=net(RETURNS, RETURNS + " * 0.01 + 0.5").replace(
            "return Net(num_classes)", "return Net(1)"
        ),
        also=("one output for two classes",),
    ),
    Case(
        "batch size to be chosen",
        echo_rows(20),
        options="--batch-size auto",
        also=("micro-batch that fits",),
    ),
    Case(
        "features of different lengths",
        steps(),
        module=NET,
        also=("SF209", "have sequence lengths of"),
    ),
    Case(
        "features in half precision",
        {"a.npz": {"features": ARRAY.astype(np.float16), "label": CLASSES}},
        module=NET,
    ),
    Case(
        "features in columns first order",
        {"a.npz": {"features": np.asfortranarray(ARRAY), "label": CLASSES}},
        module=NET,
    ),
    Case(
        "vectors for a module that reads them",
        {"a.npz": {"x": values(30, 8), "y": CLASSES}},
        module=MLP,
        also=("read as vectors",),
    ),
    Case(
        "vectors with classes as lists of 0 and 1",
        {"x.npy": values(30, 8), "y.npy": np.eye(3)[CLASSES]},
        module=MLP,
        data="x.npy",
        also=("read as vectors", "label"),
    ),
    Case(
        "color images for a gray module",
        pictures(),
        module=convolution(1),
        data="d",
        also=("are read as [",),
    ),
    Case(
        "gray arrays under a name that is no image's",
        {"a.npz": {"x": np.abs(values(30, 8, 8)) / 9, "y": CLASSES}},
        module=convolution(1),
        also=("are read as [",),
    ),
    Case(
        "features of one step",
        {"a.npz": {"features": values(30, 1, 4), "label": CLASSES}},
        module=NET,
    ),
    Case(
        "labels in a file beside",
        {"features.npy": ARRAY, "labels.npy": CLASSES},
        module=NET,
        also=("label",),
    ),
    own("forward with any arguments", net("forward(self, inputs_embeds, attention_mask)", ARGS)),
    own(
        "forward with a name of its own",
        net("forward(self, inputs_embeds, attention_mask)", "forward(self, x)")
        .replace("inputs_embeds", "x")
        .replace(
            "mask = attention_mask.unsqueeze(-1).float()", "mask = torch.ones_like(x[..., :1])"
        ),
        also=("forward's argument",),
    ),
    own("class as the function that makes it", NET + "\nmake = Net\n"),
    own(
        "list of layers that are registered",
        net("self.dropout =", "self.named = [self.body]\n        self.dropout ="),
    ),
    own("layer whose width is open", net("nn.Linear(4, 32)", "nn.LazyLinear(32)")),
    own(
        "not SF734: layer that is never used",
        net("self.dropout =", "self.spare = nn.Linear(3, 3)\n        self.dropout ="),
    ),
    Case(
        "batch statistics of real positions",
        RAGGED_ROWS,
        module=with_norm(
            "kept = mask[..., 0] > 0\n        hidden = hidden * mask\n"
            f"        hidden[kept] = self.norm(hidden[kept])\n        {RETURNS}"
        ),
    ),
    own(
        "logits that are capped",
        net(RETURNS, "return 30 * torch.tanh(" + RETURNS[7:] + ")"),
    ),
    own("logarithms of probabilities", net(RETURNS, RETURNS + ".log_softmax(-1)")),
    own(
        "not SF736: heads that are viewed apart",
        net(
            RETURNS,
            "heads = hidden.view(len(hidden), hidden.shape[1], 4, 8).transpose(1, 2)\n"
            "        hidden = heads.transpose(1, 2).reshape(len(hidden), -1, 32)\n"
            f"        {RETURNS}",
        ),
    ),
    own(
        "layers that are left out in training",
        net(
            RETURNS,
            "hidden = hidden if self.training and torch.rand(()) < 0.5 else 2 * hidden\n"
            f"        {RETURNS}",
        ),
    ),
    own(
        "inputs that are changed in a copy",
        net("mask =", "inputs_embeds = inputs_embeds.clone().mul_(0.5)\n        mask ="),
    ),
    own("model that returns a tuple", net(RETURNS, RETURNS + ", hidden")),
    own(
        "model that returns a dict",
        net(RETURNS, RETURNS.replace("return ", "return {'logits': ") + "}"),
    ),
    Case(
        "column of different lengths for forward",
        RAGGED,
        module=net("attention_mask):", "attention_mask, weights):"),
        also=("stay the same whatever",),
    ),
    Case(
        "language model of one's own",
        TEXT,
        module=language_model("return logits"),
        options="--set compile=on",
    ),
    for_vit("images in grey", GREY, data="d"),
    for_vit("images of different sizes", SIZES, data="d"),
    for_vit("images beside a hidden file", {**pictures(), "d/.DS_Store": b"\0\1"}, data="d"),
    Case(
        "weights without a head",
        {"a.jsonl": texts(), "bert": Bert(400)},
        "./bert",
        also=("weights start untrained",),
    ),
    Case(
        "tokenizer larger than the model",
        {"a.jsonl": texts(), "bert": Bert(100)},
        "./bert",
        also=("SF307",),
    ),
    Case("rows that cannot be batched padding-free", echo_rows(20), "tiny:bloom"),
    Case("LoRA of a high rank", echo_rows(20), options="--lora-r 64"),
    Case(
        "sample of the rows",
        echo_rows(40),
        options="--set scan=20",
        also=("are checked, drawn by the seed",),
    ),
]
