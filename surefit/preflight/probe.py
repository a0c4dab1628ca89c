"""One real batch through the real model, before any training: the layer that fails is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from surefit.findings import Finding, fail, finding
from surefit.models.call import Call
from surefit.tasks.spec import Loss

if TYPE_CHECKING:
    import torch
    from torch import nn


def probe(
    module: nn.Module,
    call: Call,
    batch: Mapping[str, torch.Tensor],
    loss: Loss,
    num_targets: int,
    num_outputs: int | None,
) -> list[Finding]:
    """Send `batch` through model and loss, without gradients; raise what keeps it from working."""
    with _undisturbed(module):
        outputs = _forward(module, call, batch)
        if outputs.logits is None and outputs.loss is None:
            raise fail("SF305", "The model returned neither logits nor a loss.")
        if num_outputs is not None and outputs.logits is not None:
            _check_outputs(outputs.logits, batch, num_outputs)
        try:
            _, count = loss(outputs, batch)
        except Exception as error:
            shown = _shapes({"logits": outputs.logits, **batch})
            raise fail(
                "SF305", f"The loss raised {type(error).__name__}: {error} (shapes: {shown})"
            ) from error
    found = []
    if outputs.logits is None:
        found.append(finding("SF310", "The model returns a loss of its own and no logits."))
    elif int(count) != num_targets:
        message = f"The loss counts {int(count)} targets in a batch that has {num_targets}."
        raise fail("SF312", message)
    return found


def _forward(module: nn.Module, call: Call, batch: Mapping[str, torch.Tensor]) -> Any:
    entered: list[str] = []
    names = {part: name for name, part in module.named_modules()}
    hooks = [
        part.register_forward_pre_hook(lambda part, _: entered.append(_describe(names, part)))
        for part in module.modules()
    ]
    try:
        return call(module, batch)
    except Exception as error:
        layer = entered[-1] if entered else type(module).__name__
        message = f"{layer} raised {type(error).__name__}: {error} (shapes: {_shapes(batch)})"
        if _works_transposed(module, call, batch):
            raise fail(
                "SF308",
                f"The model fails on inputs_embeds {list(batch['inputs_embeds'].shape)} and works "
                "with its last two axes exchanged: the rows are [width, steps].",
            ) from error
        raise fail("SF305", message) from error
    finally:
        for hook in hooks:
            hook.remove()


def _describe(names: Mapping[nn.Module, str], part: nn.Module) -> str:
    text = str(part)
    return f"layer {names[part] or 'itself'!r} ({text if len(text) < 80 else type(part).__name__})"


def _works_transposed(module: nn.Module, call: Call, batch: Mapping[str, torch.Tensor]) -> bool:
    embeds = batch.get("inputs_embeds")
    if embeds is None or embeds.shape[1] == embeds.shape[2]:
        return False
    turned = {**batch, "inputs_embeds": embeds.transpose(1, 2)}
    if "attention_mask" in batch:
        turned["attention_mask"] = batch["attention_mask"].new_ones(
            turned["inputs_embeds"].shape[:2]
        )
    try:
        call(module, turned)
    except Exception:
        return False
    return True


def _check_outputs(
    logits: torch.Tensor, batch: Mapping[str, torch.Tensor], num_outputs: int
) -> None:
    labels = batch["labels"]
    targets = labels.shape[:1] if labels.is_floating_point() else labels.shape
    if num_outputs == 1 and logits.shape == targets:
        return
    if logits.shape[:-1] != targets:
        raise fail(
            "SF305",
            f"The model returned logits of shape {list(logits.shape)}; expected "
            f"{[*targets, num_outputs]}: one row of scores per target.",
            fix="Pool the steps, so that the model gives one vector per row."
            if len(targets) == 1
            else "Let the model give one vector per token.",
        )
    if logits.shape[-1] < num_outputs:
        raise fail(
            "SF303",
            f"The model has {logits.shape[-1]} outputs, but the data has {num_outputs} classes: "
            f"labels {logits.shape[-1]} to {num_outputs - 1} have none.",
        )


def _shapes(batch: Mapping[str, Any]) -> str:
    shown = {name: list(v.shape) for name, v in batch.items() if hasattr(v, "shape")}
    return ", ".join(f"{name} {shape}" for name, shape in shown.items())


@contextmanager
def _undisturbed(module: nn.Module) -> Iterator[None]:
    """No gradients, evaluation mode, and the random state and mode put back afterwards."""
    import torch

    training = module.training
    with torch.no_grad(), torch.random.fork_rng():
        module.eval()
        try:
            yield
        finally:
            module.train(training)
