"""Trials: overfit a batch, save and reload, generate in batches, run on the training device."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.checks.probes.forward_watch import is_own_code
from surefit.checks.probes.model_profile import Batch, ModelProfile, differ, tolerance
from surefit.data.cache import scratch_in_cache
from surefit.errors import SurefitError, describe_error
from surefit.findings import Finding, note, rule
from surefit.pipeline.row_groups import Together
from surefit.pipeline.step import drop_gradients, forward_backward, trying_steps
from surefit.speed.numerics import preserved_state

if TYPE_CHECKING:
    import torch
    from torch import nn

    from surefit.pipeline.pipeline import Pipeline


CANNOT_OVERFIT = rule(
    "SF707",
    "warning",
    "the model cannot overfit one batch",
    why="A model that cannot fit a handful of rows will hardly learn from thousands.",
    fix="Check that the loss depends on the inputs, the rate, and which layers are frozen.",
    accept="The model is trained as it is.",
)


NUM_STEPS = 40
RATE = 1e-3
ENOUGH = 0.7


def check_overfit(profile: ModelProfile) -> list[Finding]:
    """Some steps on one batch must bring its loss well down; the weights are put back."""
    import torch

    trained = [p for p in profile.module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0)
    first = best = profile.loss_of(profile.batch)

    def call(module: nn.Module, batch: Batch) -> Any:
        return profile.forward(batch)

    with trying_steps(profile.module, optimizer):
        profile.module.eval()  # without dropout
        for _ in range(NUM_STEPS):
            found = forward_backward(call, profile.loss, profile.module, profile.batch)
            best = min(best, float(found.total))
            if best <= ENOUGH * first:
                return []
            optimizer.step()
            drop_gradients(profile.module)
    message = (
        f"{NUM_STEPS} steps on one batch of {profile.num_rows} rows brought its loss from "
        f"{first:.4g} to {best:.4g} only."
    )
    return [CANNOT_OVERFIT.finding(message)]


RELOAD_DIFFERS = rule(
    "SF706",
    "error",
    "what is saved is not what was trained",
    why="A part of the model is not in its saved weights, or comes back another.",
    fix="Register every part that learns as a submodule, parameter or persistent buffer.",
)


def check_reload(
    profile: ModelProfile,
    save: Callable[[Path], None],
    load: Callable[[Path], nn.Module],
    call: Callable[[nn.Module, Batch], Any],
) -> list[Finding]:
    """Return the model, saved and loaded again, must give the outputs that it gave before."""
    import torch

    before = profile.together
    with scratch_in_cache() as temporary:
        folder = temporary / "model"
        save(folder)
        try:
            other = load(folder)
        except SurefitError as error:
            return [
                RELOAD_DIFFERS.finding(f"The model was saved and cannot be loaded: {error.message}")
            ]
        with torch.no_grad(), preserved_state(other):
            after = call(other, profile.batch)
    for name in ("logits", "loss"):
        one, two = getattr(before, name, None), getattr(after, name, None)
        if one is not None and two is not None and differ(one, two) > tolerance(one):
            message = f"Saved and loaded again, its {name} differ by {differ(one, two):.2g}."
            return [RELOAD_DIFFERS.finding(message)]
    return []


LONG_PROMPT, SHORT_PROMPT, NEW_TOKENS = 24, 15, 2

Prompts = Sequence[Mapping[str, Any]]
Generate = Callable[[Prompts, int], Any]
"""Generates so many tokens for each prompt."""


def choose_generation(
    model: Any, generate: Generate, prompts: tuple[Any, Any]
) -> tuple[Together, list[Finding]]:
    """Return how prompts may be batched: padded, with prompts of equal length only, or not at all.

    `prompts` are the token ids of two rows. The next-token logits of a few steps are compared.
    """
    long = np.asarray(prompts[0])[:LONG_PROMPT]
    short = np.asarray(prompts[1])[: min(SHORT_PROMPT, len(long) - 1)]
    if not len(short):
        return "padded", []
    alone = _steps(model, generate, [short])
    change = _change(_steps(model, generate, [short, long]), alone)
    if change <= tolerance(next(model.parameters())):
        return "padded", []
    cut = long[: len(short)]
    equal = _change(_steps(model, generate, [short, cut]), alone)
    together: Together = "equal_length"
    if equal > tolerance(next(model.parameters())):
        together = "single"
    how = "prompts of equal length" if together == "equal_length" else "one prompt at a time"
    message = (
        f"A shorter prompt's logits change by {change:.2g} of their size in a padded batch. "
        f"Evaluation and prediction generate for {how}."
    )
    return together, [note(message)]


def _steps(model: Any, generate: Generate, prompts: Sequence[Any]) -> list[Any]:
    """Return the next-token logits of the first prompt at each step of generation."""
    with _recorded(model) as steps:
        generate([{"input_ids": ids} for ids in prompts], NEW_TOKENS)
    return steps


@contextmanager
def _recorded(model: Any) -> Iterator[list[Any]]:
    steps: list[Any] = []

    def keep(_: Any, __: Any, outputs: Any) -> None:
        logits = getattr(outputs, "logits", None)
        if logits is not None:
            steps.append(logits[0, -1].detach().clone())

    inner = getattr(model, "get_base_model", lambda: model)()  # without the peft wrapper
    hook = inner.register_forward_hook(keep)
    try:
        yield steps
    finally:
        hook.remove()


def _change(batched: list[Any], alone: list[Any]) -> float:
    """Return the largest change of the logits, up to the step at which another token is chosen."""
    largest = 0.0
    for one, other in zip(batched, alone, strict=False):
        largest = max(largest, differ(one, other))
        if int(one.argmax()) != int(other.argmax()):
            break
    return largest


FAILS_ON_DEVICE = rule(
    "SF735",
    "error",
    "the first batch fails on the training device",
    why="The model computes this batch on the CPU in float32; training would fail at step 1.",
    fix="Make tensors where the data is, torch.zeros(…, device=x.device), or keep them as buffers: "
    "self.register_buffer(name, tensor). In mixed precision, cast where dtypes meet: "
    "value.to(other.dtype); or train in float32: --set precision=fp32.",
)


def check_on_device(
    pipeline: Pipeline,
    batch: Mapping[str, torch.Tensor],
    device: torch.device,
    dtype: torch.dtype | None,
) -> list[Finding]:
    """Run forward and backward as training does; name the line of the user's code that fails."""
    import torch

    module, home = pipeline.module, torch.device(pipeline.device)
    if device == home and dtype is None:
        return []  # the batch has been computed so
    trained = [weight for weight in module.parameters() if weight.requires_grad]
    try:
        module.to(device)
        moved = {n: v.to(device) if hasattr(v, "to") else v for n, v in batch.items()}
        autocast = torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None)
        with preserved_state(module), autocast:
            total, _ = pipeline.loss(pipeline.call(module.train(), moved), moved)
            torch.autograd.grad(total, trained, allow_unused=True)
    except torch.OutOfMemoryError:  # the prediction of memory is a finding of its own
        return []
    except Exception as error:  # the module's own code may fail in any way
        precision = "float32" if dtype is None else str(dtype).removeprefix("torch.")
        place = own_line(error)
        code = linecache.getline(place["file"], place["line"]).strip() if place else ""
        at = f"{place['file']}:{place['line']}: {code!r} fails" if place else "It fails"
        message = f"{at} on {device.type} in {precision}: {describe_error(error)[:200]}"
        return [FAILS_ON_DEVICE.finding(message, place)]
    finally:
        module.to(home)
    return []


def own_line(error: BaseException) -> dict[str, Any]:
    """Return file and line of the last frame of a traceback that is no library's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_own_code(frame.filename):
            return {"file": frame.filename, "line": frame.lineno or 0}
    return {}
