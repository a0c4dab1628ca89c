"""Set-ups that people have, each tried on fresh data: works, is refused with its reason, or wrong.

Run it with `python bench/setups.py`, or with words of titles to try only those. The ten of
docs/examples.md are compared with their plain loops by `bench/own_examples.py` and not repeated.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F

import surefit

SETUPS: list[tuple[str, str, Callable[[], str]]] = []
RNG = np.random.default_rng(7)
FAST = {"lr": 0.01, "quiet": True}


def setup(title: str, source: str = "") -> Callable[[Callable[[], str]], None]:
    """Register a set-up: its function raises where something is wrong, and returns what to show."""
    return lambda function: SETUPS.append((title, source, function))


def train(**given: Any) -> Any:
    return surefit.train(**{**FAST, "output": tempfile.mkdtemp(dir=".") + "/run", **given})


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype("float32")


def mlp(*sizes: int) -> nn.Sequential:
    parts = [p for pair in itertools.pairwise(sizes) for p in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*parts[:-1])


def of_rows(count: int = 200) -> dict[str, Any]:
    x = normal(count, 8)
    return {"x": x, "label": (x[:, 0] > x[:, 1]).astype(int)}


def small_cnn(channels: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, 2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(128, outputs),
    )


def refused(**given: Any) -> str:
    """Return the reason for which a run does not start."""
    try:
        train(**given)
    except surefit.SurefitError as error:
        return str(error).strip().split("\n")[0]
    raise AssertionError("it ran")


def finding(plan: Any, code: str) -> Any:
    (found,) = [each for each in plan.findings if each.code == code]
    return found


@setup("Ordered classes", "")
def ordinal() -> str:
    x = normal(300, 4)
    grade = np.digitize(x.sum(1), [-2, 0, 2])
    names = np.array(["bad", "fair", "good", "best"])[grade]
    run = train(
        data={"x": x, "grade": names},
        model=mlp(4, 16, 3),
        task="ordinal",
        epochs=20,
        columns={"label": "grade"},
        label_order=["bad", "fair", "good", "best"],
    )
    assert run.metrics["accuracy"] > 0.6, run.metrics
    return f"accuracy {run.metrics['accuracy']:.2f}"


@setup("Patients with several rows: whole patients in one set, classes balanced", "")
def grouped() -> str:
    patient = np.repeat(np.arange(60), 10)
    frame = pd.DataFrame({"patient": patient, "ill": (patient % 5 == 0).astype(int)})
    for n in range(4):
        frame[f"v{n}"] = normal(600) + frame["ill"] * (n == 0)
    options = {"data": frame, "model": "tiny:mlp", "columns": {"label": "ill"}, "quiet": True}
    advice = [f.code for f in surefit.check(**options).findings if "split.by" in (f.fix or "")]
    assert advice, "no advice for split.by"
    plan = surefit.check(**options, split={"by": "patient"}, eval_share=0.2)
    held = set(frame["patient"].iloc[plan.job.validation.source_row])
    assert not held & set(frame["patient"].iloc[plan.job.train.source_row])
    share = np.mean([n % 5 == 0 for n in held])
    assert 0.1 <= share <= 0.35, share
    return f"{advice[0]} advises it; {share:.0%} ill among the validation patients, 20% of all"


@setup("The latest rows for validation, with a gap", "")
def by_time() -> str:
    day = pd.date_range("2024-01-01", periods=400)
    frame = pd.DataFrame(
        {"day": day, "a": normal(400), "b": normal(400), "y": normal(400).cumsum()}
    )
    options = {"data": frame, "model": "tiny:mlp", "columns": {"label": "y"}, "quiet": True}
    advice = [f.code for f in surefit.check(**options).findings if "split.time" in (f.fix or "")]
    assert advice, "no advice for split.time"
    plan = surefit.check(**options, split={"time": "day", "gap": "7d"})
    trained, held = (plan.job.train.source_row, plan.job.validation.source_row)
    assert held.min() - trained.max() == 7
    return f"{advice[0]} advises it; 7 days from the last training row to the first validation row"


@setup("A column `split` with train, validation and test", "")
def by_column() -> str:
    rows = {**of_rows(), "split": np.where(np.arange(200) % 10, "train", "validation")}
    plan = surefit.check(data=rows, model=mlp(8, 16, 2), quiet=True)
    assert sorted(plan.job.validation.source_row) == [*range(0, 200, 10)]
    return "used, and named in the plan"


@setup("Several validation sets", "")
def named_sets() -> str:
    run = train(
        data=of_rows(), eval_data={"near": of_rows(40), "far": of_rows(40)}, model=mlp(8, 16, 2)
    )
    assert {"near_accuracy", "far_accuracy"} <= run.metrics.keys(), run.metrics
    return "`near_accuracy`, `far_accuracy`"


@setup("A GAN whose generator alone is clipped", "Lightning-AI/pytorch-lightning#4667")
def clipped_generator() -> str:
    def step(modules: Any, batch: Any, step: int) -> Any:
        made = modules["g"](torch.randn(len(batch["x"]), 4))
        yield (
            "d",
            F.softplus(-modules["d"](batch["x"])).mean()
            + F.softplus(modules["d"](made.detach())).mean(),
        )
        yield "g", F.softplus(-modules["d"](made)).mean()

    run = train(
        data={"x": normal(100, 8)},
        model={"g": mlp(4, 8, 8), "d": mlp(8, 8, 1)},
        training_step=step,
        epochs=1,
        optimizer={"g": {"clip": 0.01}, "d": {"clip": 0}},
    )
    return f"losses {run.metrics['loss_d']:.2f} and {run.metrics['loss_g']:.2f}"


@setup(
    "WGAN: five critic steps for each generator step, gradient penalty",
    "eriklindernoren/PyTorch-GAN",
)
def wgan() -> str:
    def step(modules: Any, batch: Any, step: int) -> Any:
        real, made = batch["x"], modules["g"](torch.randn(len(batch["x"]), 4))
        if step % 6:
            mixed = real.lerp(made.detach(), torch.rand(len(real), 1)).requires_grad_()
            with torch.enable_grad():
                slope = torch.autograd.grad(modules["d"](mixed).sum(), mixed, create_graph=True)[0]
            penalty = (slope.norm(dim=1) - 1).square().mean()
            yield "d", modules["d"](made.detach()).mean() - modules["d"](real).mean() + 10 * penalty
        else:
            yield "g", -modules["d"](made).mean()

    run = train(
        data={"x": normal(200, 8)},
        model={"g": mlp(4, 8, 8), "d": mlp(8, 8, 1)},
        training_step=step,
        epochs=2,
    )
    return f"loss {run.metrics['loss']:.2f}"


@setup("A `collate_fn` that makes a PackedSequence", "Lightning-AI/pytorch-lightning#437")
def packed() -> str:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(3, 8), nn.Linear(8, 2)

        def forward(self, series: Any, label: Any = None) -> Any:
            return self.head(self.lstm(series)[1][0][-1])

    def collate(rows: Any) -> Any:
        series = nn.utils.rnn.pack_sequence([r["series"] for r in rows], enforce_sorted=False)
        return {"series": series, "label": torch.stack([r["label"] for r in rows])}

    rows = [{"series": normal(n, 3) + n % 2, "label": int(n % 2)} for n in RNG.integers(3, 9, 120)]
    run = train(
        data=rows,
        model=Reads(),
        collate_fn=collate,
        epochs=5,
        loss_fn=lambda outputs, batch: F.cross_entropy(outputs, batch["label"]),
    )
    assert run.metrics["loss"] < 0.6, run.metrics
    return f"loss {run.metrics['loss']:.2f}"


@setup("A number per image, where the module returns `(B, 1)`", "fastai/fastai#3193")
def image_number() -> str:
    images = RNG.integers(0, 60, (200, 24, 24)).astype("uint8")
    level = RNG.uniform(0, 150, 200)
    images = (images + level[:, None, None]).astype("uint8")
    run = train(data={"image": images, "label": level}, model=small_cnn(1, 1), epochs=10)
    assert run.metrics["r2"] > 0.8, run.metrics
    return f"R² {run.metrics['r2']:.2f}"


class Found(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.there, self.box = nn.Linear(8, 16), nn.Linear(16, 1), nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        hidden = self.body(x).relu()
        return {"there": self.there(hidden)[:, 0], "box": self.box(hidden)}


@setup("A box that counts only where there is an object", "keras-team/keras#9679")
def conditional() -> str:
    def loss(outputs: Any, batch: Any) -> Any:
        there = batch["there"].float()
        apart = ((outputs["box"] - batch["box"]).square().mean(1) * there).sum()
        found = F.binary_cross_entropy_with_logits(outputs["there"], there, reduction="sum")
        return {
            "loss": (found + apart, len(there)),
            "box": (apart, there.sum()),
            "there": (found, len(there)),
        }

    x = normal(200, 8)
    run = train(
        data={"x": x, "there": (x[:, 0] > 0).astype(int), "box": x[:, :4]},
        model=Found(),
        loss_fn=loss,
        epochs=20,
    )
    assert run.metrics["loss_box"] < 0.6, run.metrics
    return f"`loss_box` {run.metrics['loss_box']:.2f}, a mean over the boxes that are there"


@setup("A weight for each output of each row", "keras-team/keras#549")
def weighted() -> str:
    x, weight = normal(200, 8), RNG.random((200, 5)).astype("float32")
    run = train(
        data={"x": x, "y": x[:, :5] * 2, "weight": weight},
        model=mlp(8, 32, 5),
        epochs=20,
        loss_fn=lambda o, b: (((o - b["y"]).square() * b["weight"]).sum(), b["weight"].sum()),
    )
    assert run.metrics["loss"] < 2, run.metrics
    return f"loss {run.metrics['loss']:.2f}, divided by the weights"


@setup("Reading words off images with CTC", "keras-team/keras#3436")
def ctc() -> str:
    def loss(outputs: Any, batch: Any) -> Any:
        lengths = batch["word_mask"].sum(1)
        steps = torch.full((len(lengths),), outputs.shape[1])
        return F.ctc_loss(outputs.log_softmax(2).transpose(0, 1), batch["word"], steps, lengths)

    rows = []
    for _ in range(120):
        word = RNG.integers(1, 4, RNG.integers(1, 5))
        image = np.zeros((8, 32), "float32")
        for place, letter in enumerate(word):
            image[letter * 2, place * 8 : place * 8 + 5] = 1
        rows.append({"image": image, "word": word})
    net = nn.Sequential(nn.Conv1d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv1d(16, 4, 3, padding=1))

    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, image: Any) -> Any:
            return self.net(image).transpose(1, 2)

    run = train(data=rows, model=Reads(), task="custom", loss_fn=loss, epochs=15)
    assert run.metrics["loss"] < 1.5, run.metrics
    return f"loss {run.metrics['loss']:.2f}"


@setup("An LSTM on sequences of different lengths", "keras-team/keras#4624")
def ragged_lstm() -> str:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(3, 8, batch_first=True), nn.Linear(8, 2)

        def forward(self, x: Any, attention_mask: Any) -> Any:
            last = attention_mask.sum(1).long() - 1
            return self.head(self.lstm(x)[0][torch.arange(len(x)), last])

    rows = [{"x": normal(n, 3) + (k := n % 2), "label": int(k)} for n in RNG.integers(3, 9, 200)]
    run = train(data=rows, model=Reads(), epochs=5)
    assert run.metrics["accuracy"] > 0.8, run.metrics
    return f"accuracy {run.metrics['accuracy']:.2f}"


@setup("Keypoints of which some are hidden", "pytorch/vision#8371")
def keypoints() -> str:
    images, points = (
        RNG.integers(0, 40, (200, 24, 24)).astype("uint8"),
        RNG.integers(2, 22, (200, 2, 2)),
    )
    seen = (RNG.random((200, 2)) < 0.8).astype("float32")
    for image, pair in zip(images, points, strict=False):
        for (y, x), level in zip(pair, (160, 250), strict=False):
            image[y - 1 : y + 2, x - 1 : x + 2] = level

    def loss(outputs: Any, batch: Any) -> Any:
        apart = (outputs.view(-1, 2, 2) - batch["points"] / 24).abs().sum(2) * batch["seen"]
        return apart.sum(), batch["seen"].sum()

    net = nn.Sequential(nn.Flatten(), nn.Linear(576, 32), nn.ReLU(), nn.Linear(32, 4))
    data = {
        "image": (images / 255).astype("float32"),
        "points": points.astype("float32"),
        "seen": seen,
    }
    run = train(data=data, model=net, task="custom", loss_fn=loss, epochs=15, lr=0.003)
    assert run.metrics["loss"] < 0.6, run.metrics
    return f"loss {run.metrics['loss']:.2f} by points that are seen"


@setup(
    "Gray images in RGB files, for a module of one channel", "huggingface/pytorch-image-models#976"
)
def one_channel() -> str:
    images, labels = RNG.integers(0, 60, (200, 24, 24, 3)).astype("uint8"), np.arange(200) % 2
    images[labels == 1, :, 10:14] = 240
    run = train(data={"image": images, "label": labels}, model=small_cnn(1, 2), epochs=8)
    assert run.metrics["accuracy"] > 0.9, run.metrics
    return f"accuracy {run.metrics['accuracy']:.2f}; converted, as the plan says"


@setup("Several labels per image, rare ones weighted", "huggingface/pytorch-image-models#2793")
def several_labels() -> str:
    images = RNG.integers(0, 60, (300, 3, 24, 24)).astype("uint8")
    labels = (RNG.random((300, 3)) < [0.5, 0.3, 0.2]).astype(int)
    for image, row in zip(images, labels, strict=False):
        image[row > 0] += 120
    run = train(
        data={"image": images, "label": labels},
        model=small_cnn(3, 3),
        epochs=10,
        loss={"class_weights": "balanced"},
    )
    assert run.metrics["macro_f1"] > 0.9, run.metrics
    return f"macro F1 {run.metrics['macro_f1']:.2f}"


@setup("A slow body, a fast head, frozen first layers", "facebookresearch/ClassyVision#289")
def by_layer() -> str:
    net = mlp(8, 16, 16, 2)
    before = net[0].weight.clone()
    run = train(data=of_rows(), model=net, lr=1e-4, lr_by={"4": 0.05}, freeze=["0"], epochs=10)
    assert torch.equal(run.model[0].weight.cpu(), before)
    assert run.metrics["accuracy"] > 0.8, run.metrics
    return f"accuracy {run.metrics['accuracy']:.2f}; the frozen layer is bit for bit the same"


@setup("A moving average of the weights", "Lightning-AI/pytorch-lightning#10914")
def average() -> str:
    run = train(data=of_rows(), model=mlp(8, 16, 2), ema=0.9, epochs=10)
    assert run.metrics["accuracy"] > 0.8, run.metrics
    return f"accuracy {run.metrics['accuracy']:.2f} of the average"


@setup(
    "A trained teacher with batch norm, which must stay as it is",
    "Lightning-AI/pytorch-lightning#17592",
)
def teacher() -> str:
    old = nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2)
    )
    taught = train(data=of_rows(), model=old, epochs=8).model.requires_grad_(False)
    before = {name: value.clone() for name, value in taught.state_dict().items()}

    def step(modules: Any, batch: Any, step: int) -> Any:
        soft = F.softmax(modules["teacher"](batch["x"]), 1)
        yield "student", F.cross_entropy(modules["student"](batch["x"]), soft)

    run = train(
        data={"x": normal(100, 8)},
        model={"teacher": taught.eval(), "student": mlp(8, 16, 2)},
        training_step=step,
    )
    after = run.model["teacher"].state_dict()
    changed = [name for name, value in before.items() if not torch.equal(value, after[name].cpu())]
    assert not changed, f"changed: {changed}"
    return "its running statistics are the same, without dropout"


@setup("An image and numbers about it", "fastai/fastai2#46")
def image_and_numbers() -> str:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image, self.head = small_cnn(1, 4), mlp(6, 16, 2)

        def forward(self, image: Any, age: Any, dose: Any) -> Any:
            return self.head(torch.cat([self.image(image), torch.stack([age, dose], 1)], 1))

    age, dose = normal(200), normal(200)
    images = RNG.integers(0, 255, (200, 16, 16)).astype("uint8")
    data = {"image": images, "age": age, "dose": dose, "label": (age > dose).astype(int)}
    run = train(data=data, model=Both(), epochs=10)
    assert run.metrics["accuracy"] > 0.8, run.metrics
    return f"accuracy {run.metrics['accuracy']:.2f}"


@setup("LBFGS, which needs a closure", "Lightning-AI/pytorch-lightning#4083")
def lbfgs() -> str:
    reason = refused(
        data=of_rows(), model=mlp(8, 2), optimizer=lambda params: torch.optim.LBFGS(params)
    )
    assert "closure" in reason or "LBFGS" in reason, reason
    return f"refused: {reason}"


@setup("Labelled and unlabelled rows in one batch", "CombinedLoader of Lightning")
def half_labelled() -> str:
    data = of_rows()
    data["label"] = np.where(np.arange(200) % 2, data["label"], -1)

    def loss(outputs: Any, batch: Any) -> Any:
        known = batch["label"] >= 0
        right = F.cross_entropy(outputs[known], batch["label"][known], reduction="sum")
        chances = outputs[~known].softmax(1)
        sure = -(chances * chances.log()).sum()
        return {"loss": (right + 0.1 * sure, len(known)), "right": (right, known.sum())}

    run = train(data=data, model=mlp(8, 16, 2), loss_fn=loss, task="custom", epochs=15)
    assert run.metrics["loss_right"] < 0.5, run.metrics
    return f"`loss_right` {run.metrics['loss_right']:.2f} by labelled rows"


@setup("A loss of gradients with respect to inputs (PINN)", "Lightning-AI/pytorch-lightning#15765")
def pinn() -> str:
    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

        def forward(self, t: Any) -> Any:
            with torch.enable_grad():
                t = t.requires_grad_()
                made = self.net(t)
                slope = torch.autograd.grad(made.sum(), t, create_graph=True)[0]
            return made, slope

    def loss(outputs: Any, batch: Any) -> Any:
        made, slope = outputs
        return (slope + made).square().mean() + (made - torch.exp(-batch["t"])).square().mean()

    t = RNG.uniform(0, 2, (200, 1)).astype("float32")
    run = train(data={"t": t}, model=Field(), loss_fn=loss, epochs=30)
    assert run.metrics["loss"] < 0.05, run.metrics
    return f"loss {run.metrics['loss']:.4f}"


@setup("A DataLoader with a WeightedRandomSampler", "pytorch/ignite#1080")
def sampler() -> str:
    data = of_rows()
    rows = torch.utils.data.TensorDataset(
        torch.from_numpy(data["x"]), torch.from_numpy(data["label"])
    )
    chosen = torch.utils.data.WeightedRandomSampler(torch.ones(200) * 0.5, 200)
    loader = torch.utils.data.DataLoader(rows, batch_size=16, sampler=chosen)
    plan = surefit.check(data=loader, model=mlp(8, 16, 2), quiet=True)
    said = [f.message for f in plan.findings if "sampler" in f.message.lower()]
    said += [n for n in plan.as_dict()["notes"] if "sampler" in n.lower()]
    assert said, "nothing says that the sampler is not used"
    return f"works; the plan says: {said[0]}"


@setup("Factorised ratings with a negative item per row (BPR)", "benfred/implicit")
def bpr() -> str:
    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = nn.Embedding(20, 4), nn.Embedding(30, 4)

        def forward(self, user: Any, liked: Any, other: Any) -> Any:
            return ((self.items(liked) - self.items(other)) * self.users(user)).sum(1)

    user = RNG.integers(0, 20, 400)
    liked, other = (RNG.integers(0, 15, 400) * 2 + (user + n) % 2 for n in (0, 1))
    run = train(
        data={"user": user, "liked": liked, "other": other},
        model=Scores(),
        lr=0.05,
        epochs=20,
        loss_fn=lambda outputs, batch: -F.logsigmoid(outputs).mean(),
    )
    assert run.metrics["loss"] < 0.5, run.metrics
    return f"loss {run.metrics['loss']:.2f}"


@setup("An amount with its uncertainty: two outputs, Gaussian likelihood", "pytorch/pytorch#48520")
def uncertain() -> str:
    x = normal(300, 4)
    run = train(
        data={"x": x, "y": x[:, 0] + normal(300) * np.exp(x[:, 1])},
        model=mlp(4, 32, 2),
        epochs=20,
        loss_fn=lambda o, b: F.gaussian_nll_loss(o[:, 0], b["y"], o[:, 1].exp()),
        predict_fn=lambda o, b: torch.stack([o[:, 0], (o[:, 1] / 2).exp()], 1),
    )
    made = run.predictions({"x": x[:5]})
    assert len(made) == 5
    assert len(made["prediction"][0]) == 2
    return f"loss {run.metrics['loss']:.2f}; predictions are pairs"


@setup(
    "Clips of different lengths `[frames, channels, height, width]`",
    "facebookresearch/pytorchvideo",
)
def clips() -> str:
    class Clips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frame, self.head = small_cnn(3, 8), nn.Linear(8, 2)

        def forward(self, clip: Any, clip_mask: Any) -> Any:
            frames = self.frame(clip.flatten(0, 1)).view(*clip.shape[:2], -1) * clip_mask[..., None]
            return self.head(frames.sum(1) / clip_mask.sum(1, keepdim=True))

    rows = [
        {"clip": normal(n, 3, 12, 12) + n % 2, "label": int(n % 2)} for n in RNG.integers(2, 6, 80)
    ]
    run = train(
        data=rows, model=Clips(), loss_fn=lambda o, b: F.cross_entropy(o, b["label"]), epochs=5
    )
    assert run.metrics["loss"] < 0.5, run.metrics
    return f"loss {run.metrics['loss']:.2f}"


@setup("Volumes `[depth, height, width]` with a class per voxel", "Project-MONAI/MONAI")
def volumes() -> str:
    scan = normal(40, 1, 8, 8, 8)
    run = train(
        data={"scan": scan, "organ": (scan[:, 0] > 0).astype(int)},
        model=nn.Conv3d(1, 2, 3, padding=1),
        epochs=20,
        loss_fn=lambda o, b: F.cross_entropy(o, b["organ"]),
    )
    assert run.metrics["loss"] < 0.5, run.metrics
    return f"loss {run.metrics['loss']:.2f}"


@setup("MAML: inner steps in the loss, a row is an episode", "learnables/learn2learn")
def maml() -> str:
    def step(modules: Any, batch: Any, step: int) -> Any:
        net, total = modules["net"], 0.0
        for x, y in zip(batch["x"], batch["y"], strict=False):
            weights = dict(net.named_parameters())
            with torch.enable_grad():
                inner = (torch.func.functional_call(net, weights, x[:5]) - y[:5]).square().mean()
                slopes = torch.autograd.grad(inner, [*weights.values()], create_graph=True)
            moved = {n: w - 0.1 * s for (n, w), s in zip(weights.items(), slopes, strict=False)}
            total = total + (torch.func.functional_call(net, moved, x[5:]) - y[5:]).square().mean()
        yield "net", total / len(batch["x"])

    x = normal(64, 10, 1)
    run = train(
        data={"x": x, "y": x * normal(64, 1, 1)},
        model={"net": mlp(1, 16, 1)},
        training_step=step,
        epochs=5,
    )
    return f"loss {run.metrics['loss']:.2f}"


@setup("Mixup in a `collate_fn`, soft labels", "autogluon/autogluon#1730")
def mixup() -> str:
    def collate(rows: Any) -> Any:
        x = torch.stack([r["x"] for r in rows])
        y = F.one_hot(torch.stack([r["label"] for r in rows]), 2).float()
        return {"x": 0.8 * x + 0.2 * x.flip(0), "y": 0.8 * y + 0.2 * y.flip(0)}

    run = train(
        data=of_rows(),
        model=mlp(8, 16, 2),
        collate_fn=collate,
        loss_fn=lambda o, b: F.cross_entropy(o, b["y"]),
        epochs=15,
    )
    assert run.metrics["loss"] < 0.65, run.metrics
    return f"loss {run.metrics['loss']:.2f}"


@setup("First the head, then all layers", "fastai/fastai")
def two_stages() -> str:
    first = train(data=of_rows(), model=mlp(8, 16, 2), freeze=["0"], epochs=3)
    second = train(data=of_rows(), model=surefit.load(first), epochs=10)
    assert second.metrics["accuracy"] > 0.8, second.metrics
    return f"accuracy {first.metrics['accuracy']:.2f}, then {second.metrics['accuracy']:.2f}"


def try_all(words: list[str]) -> int:
    """Print a row for each set-up; return how many are wrong."""
    wrong = 0
    print("| set-up | from | result |\n| --- | --- | --- |")
    for title, source, function in SETUPS:
        if words and not any(word in title or word == function.__name__ for word in words):
            continue
        torch.manual_seed(0)
        try:
            said = function()
            result = said if said.startswith(("refused", "works")) else f"works: {said}"
        except Exception as error:
            wrong += 1
            result = f"WRONG: {type(error).__name__}: {str(error).strip()[:300]}".replace("\n", " ")
        print(f"| {title} | {source} | {result} |", flush=True)
    return wrong


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.exit(1 if try_all(sys.argv[1:]) else 0)
