"""The checkpoint that a run resumes from: chosen, reported, and put back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.errors import UsageError
from surefit.peers.process_names import host_name, name_process
from surefit.processes import OtherProcessError, from_main, gather, is_main, together
from surefit.run.checkpoint_state import State
from surefit.run.checkpoints import load_checkpoint
from surefit.run.choose_checkpoint import Chosen, choose_checkpoint, set_aside
from surefit.run.run_folder import Run

if TYPE_CHECKING:
    from torch import nn


def find_checkpoint(run: Run, notice: Callable[[str], None]) -> Chosen:
    """The checkpoint to resume from; what is damaged is renamed.

    The first process chooses for all, and reads each file once.
    """
    chosen: Chosen | None = None
    with together("choosing a checkpoint"):
        if is_main():
            chosen = choose_checkpoint(run.checkpoints)
            set_aside(run.checkpoints, chosen.path)
            for text in chosen.notices:
                notice(text)
    for_all = gather(chosen)[0]
    assert for_all is not None
    _refuse_missing(for_all, gather((host_name(), _has(for_all.path))))
    return for_all


def _has(path: Path | None) -> bool:
    return path is None or path.is_dir()


def _refuse_missing(chosen: Chosen, told: list[tuple[str, bool]]) -> None:
    """Refuse to resume where a host does not have the checkpoint in its folder of the run."""
    for rank, (host, has_it) in enumerate(told):
        if not has_it:
            raise OtherProcessError(
                f"{name_process(rank, host)} does not have the checkpoint {chosen.path}, which the "
                "run resumes from.",
                "Use a folder that all hosts share, or copy the run of the first host to each.",
                UsageError.exit_code,
            )


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
    extended = from_main(lambda: run.spans(0)[-1][0])
    if extended and state.step == extended:
        state.stale_evaluations, state.stopped_early = 0, False
    elif patience is None or state.stale_evaluations < patience:
        state.stopped_early = False
