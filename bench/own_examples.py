"""The examples of docs/examples.md beside plain loops of the same modules: one table.

Run it with `python bench/own_examples.py`. A plain loop gets the arguments of the example and
nothing of surefit: it pads, computes losses and steps with AdamW itself.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

import surefit

PAGE = Path(__file__).resolve().parents[1] / "docs" / "examples.md"


def examples() -> dict[str, dict[str, Any]]:
    """Return the arguments of each example's `surefit.train`; its modules are not trained."""
    found: dict[str, dict[str, Any]] = {}
    state: dict[str, Any] = {}
    text = PAGE.read_text(encoding="utf-8").partition("\n## Beside")[0]
    for part in text.split("\n## "):
        (code,) = re.findall(r"```python\n(.*?)^```", part, re.M | re.S)
        exec(code, state)
        state["surefit"] = SimpleNamespace(train=lambda **given: state.update(given_=given))
        if "given_" in state:
            found[part.split("\n")[0]] = state.pop("given_")
    return found


def as_batch(data: Any) -> dict[str, torch.Tensor]:
    """Return all rows as one batch, padded with 0, with a mask where sizes differ."""
    columns = data if isinstance(data, Mapping) else {n: [row[n] for row in data] for n in data[0]}
    batch = {}
    for name, values in columns.items():
        arrays = [np.asarray(value) for value in values]
        sizes = np.max([each.shape for each in arrays], axis=0) if arrays[0].ndim else ()
        made = np.zeros((len(arrays), *map(int, sizes)), arrays[0].dtype)
        varying = [n for n in range(len(sizes)) if len({each.shape[n] for each in arrays}) > 1]
        mask = np.zeros((len(arrays), *(int(sizes[n]) for n in varying)), "int64")
        for row, each in enumerate(arrays):
            made[(row, *map(slice, each.shape))] = each
            mask[(row, *(slice(each.shape[n]) for n in varying))] = 1
        batch[name] = torch.from_numpy(made)
        if varying:
            batch[f"{name}_mask"] = torch.from_numpy(mask)
    return batch


def call(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Any:
    """Call a module with the columns that its forward names, or with the only one."""
    names = model.forward.__code__.co_varnames[1 : model.forward.__code__.co_argcount]
    known = [batch[name] for name in names if name in batch]
    return model(*known) if known else model(next(iter(batch.values())))


def plain_loop(given: Mapping[str, Any]) -> dict[str, float]:
    """Train and evaluate as anybody would write it; return the loss and the metrics."""
    if "forecast" in given:
        return plain_forecast(given)
    batch, held = as_batch(given["data"]), as_batch(given["eval_data"])
    step, metrics = given.get("training_step"), given.get("metrics", {})
    modules = given["model"] if step else {"model": given["model"]}
    weights = {n: [p for p in m.parameters() if p.requires_grad] for n, m in modules.items()}
    optimizers = {
        name: torch.optim.AdamW(held_by, lr=given["lr"], weight_decay=0)
        for name, held_by in weights.items()
        if held_by
    }
    for number in range(1, given["epochs"] + 1):
        losses = step(modules, batch, number) if step else iter([("model", loss_of(given, batch))])
        for name, loss in losses:
            gradients = torch.autograd.grad(loss, weights[name])
            for weight, gradient in zip(weights[name], gradients, strict=True):
                weight.grad = gradient
            optimizers[name].step()
    with torch.no_grad():
        if step:
            parts = [(name, float(loss)) for name, loss in step(modules, held, given["epochs"])]
            return {"loss": sum(v for _, v in parts), **{f"loss_{n}": v for n, v in parts}}
        outputs = call(given["model"], held)
        own = given["loss_fn"](outputs, held)
        own = own if isinstance(own, dict) else {"loss": own}
        named = {name if name == "loss" else f"loss_{name}": value for name, value in own.items()}
        named |= {name: metric(outputs, held) for name, metric in metrics.items()}
        return {name: float(value) for name, value in named.items()}


def loss_of(given: Mapping[str, Any], batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the loss of a batch."""
    loss = given["loss_fn"](call(given["model"], batch), batch)
    return loss["loss"] if isinstance(loss, dict) else loss


def plain_forecast(given: Mapping[str, Any]) -> dict[str, float]:
    """Cut, split by time, standardise, train and compute MASE by hand."""
    values, asked = given["data"]["sales"].to_numpy(), given["forecast"]
    history, horizon, season = asked["history"], asked["horizon"], asked["season"]
    starts = np.arange(history, len(values) - horizon + 1)
    held = starts[-round(0.1 * len(starts)) :]
    known = starts[starts <= held[0] - horizon]
    past, ahead = (
        lambda at: torch.tensor(values[at[:, None] + np.arange(-history, 0)]).float()[..., None],
        lambda at: torch.tensor(values[at[:, None] + np.arange(horizon)]),
    )
    mean, scale = ahead(known).mean(0), ahead(known).std(0, correction=0)
    optimizer = torch.optim.AdamW(given["model"].parameters(), lr=given["lr"], weight_decay=0)
    for _ in range(given["epochs"]):
        wanted = ((ahead(known) - mean) / scale).float()
        loss = (given["model"](past(known)) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        made = given["model"](past(held))
        errors = (made * scale + mean - ahead(held)).abs().mean(1)
        naive = [np.abs(values[season:at] - values[: at - season]).mean() for at in held]
        loss = (made - ((ahead(held) - mean) / scale)).square().mean()
        return {"loss": float(loss), "mase": float((errors / torch.tensor(np.array(naive))).mean())}


def compare(name: str, given: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return the figures of the plain loop and of surefit, by metric."""
    plain = plain_loop({**given, "model": deepcopy(given["model"])})
    with tempfile.TemporaryDirectory() as folder:
        run = surefit.train(**given, output=f"{folder}/run", quiet=True)
        event = [each for each in run.history if each["event"] == "eval"][-1]
    return {metric: (value, event["metrics"][metric]) for metric, value in plain.items()}


if __name__ == "__main__":
    print("| example | metric | plain loop | surefit |\n| --- | --- | --- | --- |")
    for title, given in examples().items():
        for metric, (plain, ours) in compare(title, given).items():
            print(f"| {title} | {metric} | {plain:.6f} | {ours:.6f} |")
