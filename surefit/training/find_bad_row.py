"""Finds the row that made a step non-finite: replays the step without each row in turn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from surefit.batches.order import Share
from surefit.data.cache import use_cache
from surefit.errors import UsageError
from surefit.kernels.clipping import make_clipper
from surefit.kernels.deterministic import deterministic_algorithms
from surefit.progress import Progress, silent
from surefit.request import PythonObjects
from surefit.run.run_folder import Run
from surefit.training.last_buffers import LastBuffers
from surefit.training.loop import seed_step
from surefit.training.nonfinite import find_nonfinite, show_rows
from surefit.training.replay import NO_OBJECTS, Replay, open_replay
from surefit.training.schedule import Place, places
from surefit.training.step_gradients import Rows, StepBatches, add_gradients, split_share


@dataclass(frozen=True)
class BadRows:
    """The step that failed, the rows that did it (of the training data, from 0), and how."""

    step: int
    rows: list[int]
    step_rows: list[int]
    fault: str
    alone: bool = False
    """Whether each of the rows fails by itself, since leaving out one of them is not enough."""

    def __str__(self) -> str:
        if not self.fault:
            return (
                f"Step {self.step} is finite when it is computed again, with its rows "
                f"{show_rows(self.step_rows)}. The cause is not a row: look at the hardware, "
                "overclocking and drivers, and resume the run."
            )
        if not self.rows:
            return (
                f"{self.fault} at step {self.step} also without any single one of its rows "
                f"{show_rows(self.step_rows)}, and no row fails by itself: the cause is in the "
                "weights or the model. Lower --lr, keep clip above 0, or use precision=fp32."
            )
        which = f"row {self.rows[0]}" if len(self.rows) == 1 else f"rows {show_rows(self.rows)}"
        how = "each fails by itself" if self.alone else "without it the step is finite"
        return (
            f"{self.fault} at step {self.step}: {which} of the training data (from 0) did it; "
            f"{how}. The step had the rows {show_rows(self.step_rows)}."
        )

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "message": str(self)}


def failed_step(run: Run) -> dict[str, Any] | None:
    """The latest bundle of a step that was not finite, if the run has one."""
    found = []
    for path in sorted((run.path / "failures").glob("step-*/failure.json")):
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise UsageError(f"{path} is damaged.", "Resume the run to see its failure.") from None
        if about.get("nonfinite"):
            found.append(about)
    return max(found, key=lambda about: int(about["step"]), default=None)


def find_bad_rows(
    run: Run,
    step: int,
    objects: PythonObjects = NO_OBJECTS,
    progress: Progress = silent,
) -> BadRows:
    """Compute the step again: with all of its rows, without each in turn, then each by itself."""
    replay = open_replay(run, step, objects, progress)
    config = replay.plan.config
    if replay.state.step < step - 1:
        replay.train_to(step - 1)
    place = next(places(replay.job.batches, step - 1, step))
    share = replay.job.batches.share(place.epoch, place.index, 0)
    share = split_share(share, replay.state.splits)
    rows = np.concatenate(share.micro_batches)
    numbers = [int(row) for row in replay.job.train.source_row[rows]]
    with use_cache(config.cache), deterministic_algorithms(config.deterministic):
        trial = _Trial(replay, place)
        fault = trial(share.micro_batches)
        if not fault:
            return BadRows(step, [], numbers, "")
        suspects = [batch for batch in share.micro_batches if trial([batch])] or [rows]
        guilty: list[int] = []
        if len(suspects) == 1:
            guilty = _without_each(trial, suspects[0], progress)
        alone = not guilty
        if alone:
            each = [row for batch in suspects for row in batch]
            guilty = [int(row) for row in each if trial([np.array([row])])]
    named = sorted({int(replay.job.train.source_row[row]) for row in guilty})
    return BadRows(step, named, numbers, fault, alone and bool(named))


def _without_each(trial: _Trial, rows: Rows, progress: Progress) -> list[int]:
    """The rows without which a micro-batch is finite."""
    guilty = []
    for index, row in enumerate(rows):
        progress("replaying the step without each row", index + 1, len(rows))
        left = np.delete(rows, index)
        if len(left) == 0 or not trial([left]):
            guilty.append(int(row))
    return guilty


class _Trial:
    """Computes the step on some of its rows; what is not finite about it, or nothing."""

    def __init__(self, replay: Replay, place: Place) -> None:
        self._replay, self._place = replay, place
        model = replay.engine.model
        model.train()
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._norm = make_clipper(replay.engine.accelerator, None, self._parameters, 0.0)
        self._buffers = LastBuffers(replay.job.pipeline.module)

    def __call__(self, micro_batches: Sequence[Rows]) -> str:
        import torch

        replay, place = self._replay, self._place
        pipeline, accelerator = replay.job.pipeline, replay.engine.accelerator
        seed_step(pipeline.seed, place.step, accelerator.process_index)
        loaded = (replay.job.batch(rows, place.epoch) for rows in micro_batches)
        step = StepBatches(place, Share(tuple(micro_batches), 1.0), loaded)
        backward = torch.Tensor.backward
        sums = add_gradients(replay.engine, replay.job, step, backward, lambda rows: None)
        fault = find_nonfinite(sums.loss + (sums.added or 0.0), self._norm())
        for parameter in self._parameters:
            parameter.grad = None
        self._buffers.restore()
        return fault
