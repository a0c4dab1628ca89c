"""The checkpoint that a run resumes from: chosen, reported, and put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from surefit.processes import is_main, main_first
from surefit.run.checkpoint_state import State
from surefit.run.checkpoints import load_checkpoint
from surefit.run.choose_checkpoint import Chosen, choose_checkpoint, set_aside
from surefit.run.run_folder import Run

if TYPE_CHECKING:
    from torch import nn


def find_checkpoint(run: Run, notice: Callable[[str], None]) -> Chosen:
    """The checkpoint to resume from; what is damaged is renamed.

    The first process does this alone, so that all processes choose the same one.
    """
    with main_first():
        chosen = choose_checkpoint(run.checkpoints)
        if is_main():
            set_aside(run.checkpoints, chosen.path)
            for text in chosen.notices:
                notice(text)
    return chosen


def restore(
    chosen: Chosen, module: nn.Module, optimizer: Any, lr: float
) -> tuple[State, dict[str, Any]]:
    """Put the checkpoint's weights and optimizer state back; its State, and that of the scaler."""
    if chosen.path is None:
        return State(), {}
    state, scaler = load_checkpoint(chosen.path, module, optimizer)
    for group in optimizer.param_groups:
        group["lr"] = group.get("initial_lr", lr)
    if chosen.forgets_best:
        state.best = state.best_loss = state.best_step = None
        state.stale_evaluations = 0
    return state, scaler


def go_on(state: State, run: Run, patience: int | None) -> None:
    """Let a run that had stopped early go on, if it was extended or given more patience."""
    extended = run.spans(0)[-1][0]
    if extended and state.step == extended:
        state.stale_evaluations, state.stopped_early = 0, False
    elif patience is None or state.stale_evaluations < patience:
        state.stopped_early = False
