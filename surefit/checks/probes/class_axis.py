"""Which axis of a module's outputs has the classes, where each time step has one: (B, T, C) or
(B, C, T)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from surefit.errors import FindingError
from surefit.findings import Finding, note
from surefit.models.module_outputs import StepScores, covers
from surefit.models.transformers_models import MODEL_FAILED

if TYPE_CHECKING:
    import torch

Batch = Mapping[str, Any]
Run = Callable[[Batch], "torch.Tensor | None"]


def find_step_scores(run: Run, batch: Batch, stride: int) -> StepScores | None:
    """How the scores that `run` gives for a batch become (B, T, C).

    None where it returns no scores (B, ·, ·); the probe of the first batch reports these.
    """
    num_rows, num_steps = batch["inputs_embeds"].shape[:2]
    scores = run(batch)
    if scores is None or scores.ndim != 3 or scores.shape[0] != num_rows:
        return None
    fits = [covers(size, num_steps, stride) for size in scores.shape[1:]]
    if not any(fits):
        raise _other_length(list(scores.shape), num_steps, stride)
    first, second = fits if not all(fits) else _told_apart(run, batch, scores, stride)
    if first == second:
        raise MODEL_FAILED.error(
            f"The model returned logits of shape {list(scores.shape)} for {num_steps} time steps, "
            "and it runs on no other sequence length: time and classes cannot be told apart.",
            fix="Give the module's last layer one more output than there are time steps: "
            f"{scores.shape[1] + 1}, the last one is ignored.",
        )
    return StepScores(second, stride)


def describe_axes(found: StepScores) -> Finding:
    """What was found out about the module's axes."""
    parts = [
        "takes features (B, W, T)" if found.reads_time_last else "",
        "returns scores (B, C, T)" if found.classes_second else "",
        f"returns one output for {found.stride} time steps" if found.stride > 1 else "",
    ]
    return note(f"The module {' and '.join(filter(None, parts))}.")


def _told_apart(run: Run, batch: Batch, scores: torch.Tensor, stride: int) -> tuple[bool, bool]:
    """Which of two axes of one size is the time: the one that follows the length of the input,
    else the one along which a changed step changes some outputs and not all."""
    num_steps = batch["inputs_embeds"].shape[1]
    shorter = {
        name: value[:, :-stride] if getattr(value, "shape", ())[1:2] == (num_steps,) else value
        for name, value in batch.items()
    }
    found = run(shorter) if num_steps > stride else None
    if found is not None and found.ndim == 3:
        sizes = zip(found.shape[1:], scores.shape[1:], strict=True)
        follows = [size != full for size, full in sizes]
        if follows[0] != follows[1]:
            return follows[0], follows[1]
    changed = batch["inputs_embeds"].clone()
    changed[:, 0] += 1
    found = run({**batch, "inputs_embeds": changed})
    if found is None or found.shape != scores.shape:
        return True, True
    moved = (found - scores).abs() > 1e-6 * scores.abs().max()
    partly = [not bool(moved.any(axis).any(0).all()) for axis in (2, 1)]
    return partly[0], partly[1]


def _other_length(shape: list[int], num_steps: int, stride: int) -> FindingError:
    expected = f"one vector of scores for each of the {num_steps} time steps"
    if stride > 1:
        expected = f"one for every {stride} of the {num_steps} time steps (features.stride)"
    found = next((size for size in sorted(shape[1:], reverse=True) if size < num_steps), 0)
    factor = round(num_steps / found) if found else 0
    fix = "Let forward return (B, T, C) or (B, C, T), with T as in its input."
    if factor > 1 and covers(found, num_steps, factor):
        fix += f" If {found} outputs stand for {factor} steps each: --set features.stride={factor}."
    return MODEL_FAILED.error(
        f"The model returned logits of shape {shape}; expected {expected}.", fix=fix
    )
