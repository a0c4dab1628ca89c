"""What moves on a terminal while a run trains: a bar per epoch, the loss as a spark line, and the
last evaluations side by side. Where there is no terminal, nothing moves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from surefit.cli.summary_lines import NAMES, show_figure
from surefit.cli.terminal import as_line
from surefit.run.events import best_baseline

SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH, BAR_WIDTH = 16, 20
NARROW = 80
"""Columns of a terminal below which the bar is shorter."""
MOST_LOSSES = 512
"""Losses that are kept for the spark line."""
NAME_WIDTH, FIGURE_WIDTH = 16, 11
MOST_EVALUATIONS = 4


def spark_line(values: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """Return numbers as a line of blocks: the means of neighbours, between the least and the most.

    >>> spark_line([4.0, 3.0, 2.0, 1.0]), spark_line([8, 8, 4, 4, 1, 1], 3), spark_line([])
    ('█▆▃▁', '█▄▁', '')
    """
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return ""
    means = [part.mean() for part in np.array_split(np.array(known), min(width, len(known)))]
    low, span = min(means), (max(means) - min(means)) or 1.0
    return "".join(SPARKS[round((mean - low) / span * (len(SPARKS) - 1))] for mean in means)


def fitting(parts: Iterable[str], room: int) -> str:
    """Return the parts in their order; those that do not fit into the room are left out.

    >>> fitting(["loss 1.5", "12,345 tokens/s", "3 s left"], 20)
    'loss 1.5  3 s left'
    """
    chosen = ""
    for part in filter(None, parts):
        longer = f"{chosen}  {part}" if chosen else part
        chosen = longer if len(longer) <= room else chosen
    return chosen


class _About(ProgressColumn):
    """The text of a bar; of one without, the time left."""

    def __init__(self) -> None:
        super().__init__()
        self._left = TimeRemainingColumn()

    def render(self, task: Task) -> RenderableType:
        """Return the text."""
        about = task.fields.get("about", "")
        return Text(about, no_wrap=True) if about else self._left.render(task)


class LiveView(Progress):
    """Bars, and a table of the last evaluations below them."""

    def __init__(self, console: Console) -> None:
        self.table: list[Text] = []
        is_narrow = console.width < NARROW
        self._bar_width, self._num_sparks = (8, 8) if is_narrow else (BAR_WIDTH, SPARK_WIDTH)
        self._num_steps, self._num_epochs, self._epoch_steps = 0, 0, 0
        self._epoch: tuple[str, TaskID] | None = None
        self._losses, self._stride = list[float](), 1
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(self._bar_width),
            TextColumn("{task.completed}/{task.total}"),
            _About(),
            console=console,
            transient=True,
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the bars, then the table."""
        yield from super().get_renderables()
        yield from self.table

    def expect(self, num_steps: int, num_epochs: int, epoch_steps: int) -> None:
        """Note how long the run is, and an epoch of it."""
        self._num_steps, self._num_epochs = num_steps, num_epochs
        self._epoch_steps = epoch_steps

    def note_loss(self, step: int, loss: float) -> None:
        """Keep a loss for the spark line; of many, every second, fourth … is kept."""
        if step % self._stride == 0:
            self._losses.append(loss)
        if len(self._losses) == MOST_LOSSES:
            self._losses, self._stride = self._losses[1::2], 2 * self._stride

    def show_step(self, event: Mapping[str, Any], loss: str, left: str, speed: str) -> None:
        """Move the bar of the epoch to a step, with what fits beside it."""
        before = (event["epoch"] - 1) * self._epoch_steps
        done = event["step"] - before
        total = max(done, min(self._epoch_steps, self._num_steps - before))
        name = f"epoch {event['epoch']}/{self._num_epochs}"
        if self._epoch is None or self._epoch[0] != name:
            if self._epoch is not None:
                self.remove_task(self._epoch[1])
            self._epoch = name, self.add_task(name, total=total)
        used = len(name) + self._bar_width + 2 * len(str(total)) + 1 + 4
        sparks = "" if self.console.options.ascii_only else self._sparks
        about = fitting((loss, left, sparks, speed), self.console.width - used)
        self.update(self._epoch[1], completed=done, total=total, about=about)

    @property
    def _sparks(self) -> str:
        return spark_line(self._losses, self._num_sparks)

    def show_evaluations(
        self,
        evaluations: Sequence[Mapping[str, Any]],
        baselines: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Show the last evaluations side by side, as many as fit, and the best baseline."""
        self.table = evaluation_table(evaluations, baselines, self.console.width)


def evaluation_table(
    evaluations: Sequence[Mapping[str, Any]],
    baselines: Mapping[str, Mapping[str, Any]],
    width: int,
) -> list[Text]:
    """Return a line per metric and a column per evaluation, the last ones; the baseline is last."""
    figures = [
        {name: value for name, value in each["metrics"].items() if isinstance(value, int | float)}
        for each in evaluations
    ]
    names = list(dict.fromkeys(name for each in figures for name in each))
    best = {name: best_baseline(name, baselines) for name in names}
    has_baseline = any(best.values())
    fits = (width - NAME_WIDTH) // FIGURE_WIDTH - has_baseline
    shown = min(len(figures), max(1, fits), MOST_EVALUATIONS)
    heads = [f"step {each['step']:,}" for each in evaluations[-shown:]]
    lines = [_line("", [*heads, *(["baseline"] if has_baseline else [])], "dim")]
    for name in names:
        cells = [_cell(each.get(name)) for each in figures[-shown:]]
        found = best[name]
        cells += [_cell(found[1] if found is not None else None)] if has_baseline else []
        lines.append(_line(NAMES.get(name, name), cells))
    return lines


def _cell(value: float | None) -> str:
    return "" if value is None else show_figure(value)


def _line(name: str, cells: Sequence[str], style: str = "") -> Text:
    figures = "".join(f"{cell[: FIGURE_WIDTH - 1]:>{FIGURE_WIDTH}}" for cell in cells)
    return as_line(f"{name[:NAME_WIDTH]:<{NAME_WIDTH}}{figures}", style)
