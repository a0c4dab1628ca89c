"""Plans, findings and progress on a terminal or in a pipe."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from surefit.cli.guarded_console import as_line, to_stderr
from surefit.cli.summary_lines import evaluation_lines, fit_lines, plan_lines
from surefit.findings import Finding

if TYPE_CHECKING:
    from surefit.batches.order import Batches
    from surefit.memory.predict_peak import Fit
    from surefit.plan.plan import Plan

COLOURS = {"error": "bold red", "warning": "yellow", "fixed": "cyan", "info": "dim"}
PLAIN_SECONDS = 5.0


def print_json(value: Any) -> None:
    """One JSON object alone on stdout, escaped where the encoding of stdout requires it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, allow_nan=False)
    print(text)


def show_plan(plan: Plan, console: Console) -> None:
    """The plan in a few lines, and every finding with its fix."""
    for name, value in plan_lines(plan):
        console.print(as_line(f"{name:<10}{value}"))
    show_findings(plan.findings, console)
    verdict, is_good = ("ready to train" if plan.ok else "cannot train"), plan.ok
    if plan.request.encodes_only and plan.is_encoded:
        verdict, is_good = "encoded", True
    console.print(as_line(verdict, style="bold green" if is_good else "bold red"))


def show_findings(findings: Sequence[Finding], console: Console) -> None:
    """Each finding on two lines: what and where, then the fix."""
    for found in findings:
        place = ", ".join(f"{key} {value}" for key, value in found.where.items())
        line = as_line(f"{found.severity:<8}", style=COLOURS[found.severity])
        line.append_text(as_line(f"{found.code}  {found.message}"))
        if place:
            line.append_text(as_line(f"  [{place}]", style="dim"))
        console.print(line)
        if found.severity in ("error", "warning"):
            console.print(as_line(f"        fix: {found.fix}", style="dim"))


class Display:
    """Progress of stages and of training: bars on a terminal, a line every few seconds in a pipe.

    The speed is in tokens per second, or in rows per second for tasks without tokens.
    """

    def __init__(self, num_steps: int | None = None) -> None:
        self.console = to_stderr()
        self.num_steps = num_steps
        self.num_epochs: int | None = None
        self._batches: Batches | None = None
        self._epoch_ends: list[int] = []
        self._unit, self._units_per_token = "tokens", 1.0
        self._losses: list[float] = []
        self._bars: Progress | None = None
        self._tasks: dict[str, Any] = {}
        self._began: dict[str, float] = {}
        self._said = time.monotonic()
        self._step_began: float | None = None
        self._tokens_began = 0
        self._first_step = 1
        self._shown: tuple[Finding, ...] = ()
        self._baselines: Mapping[str, Mapping[str, Any]] = {}

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed}/{task.total}"),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
            )
            self._bars.start()
        return self

    def expect(self, plan: Plan) -> None:
        """Note the length of the planned run, and its unit."""
        self.num_steps = plan.job.num_steps if plan.job else None
        self.num_epochs = plan.config.epochs
        self._baselines = plan.baselines
        self._batches = plan.job.batches if plan.job else None
        ledger = plan.ledger
        if ledger is not None and ledger.unit != "tokens":
            self._unit, self._units_per_token = "rows", ledger.train_views / max(ledger.tokens, 1)

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def progress(self, stage: str, done: int, total: int) -> None:
        """Show the progress of a stage."""
        if self._bars is not None:
            self._move_bar(stage, done, total, remove=done >= total)
            return
        began = self._began.setdefault(stage, time.monotonic())
        if done >= total:
            self._began.pop(stage)
        now = time.monotonic()
        if now - began > 2 and now - self._said > PLAIN_SECONDS:
            self._said = now
            far = f"{done:,} of {total:,}" if total > 1 else "done"
            self.console.print(as_line(f"{stage}: {far}"))

    def show_plan(self, plan: Plan) -> None:
        """The plan of a run that is about to begin."""
        self._shown = plan.findings
        show_plan(plan, self.console)

    def show_fit(self, fit: Fit) -> None:
        """The peak and the time that the measured step gave."""
        for name, value in fit_lines(fit):
            self.console.print(as_line(f"{name:<10}{value}"))

    def notice(self, text: str) -> None:
        """Something that happened to the run."""
        self.console.print(as_line(f"note      {text}", style="yellow"))

    def show_new(self, findings: Sequence[Finding]) -> None:
        """Findings that the plan did not have."""
        show_findings([found for found in findings if found not in self._shown], self.console)

    def observe(self, event: Mapping[str, Any]) -> None:
        """Show one event of the run."""
        if event["event"] == "step":
            self._show_step(event)
            self._losses.append(event["loss"])
        elif event["event"] == "warning":
            found = Finding(event["code"], "warning", event["message"], fix=event["fix"])
            show_findings([found], self.console)
        else:
            ends_epoch = self._ends_epoch(event["epoch"], event["step"])
            for line in evaluation_lines(
                event, self.num_epochs, self._losses, ends_epoch, self._baselines
            ):
                self.console.print(line)
            self._losses.clear()

    def _ends_epoch(self, epoch: int, step: int) -> bool:
        """Whether a step is the last of its epoch, or of the run; step 0 is before training."""
        if step == 0:
            return False
        if self._batches is None or step == self.num_steps:
            return True
        while len(self._epoch_ends) < epoch:
            before = self._epoch_ends[-1] if self._epoch_ends else 0
            self._epoch_ends.append(before + self._batches.num_steps(len(self._epoch_ends)))
        return step == self._epoch_ends[epoch - 1]

    def _show_step(self, event: Mapping[str, Any]) -> None:
        now, step = time.monotonic(), event["step"]
        if self._step_began is None:
            tokens = event["tokens"] if step > 1 else 0
            self._step_began, self._tokens_began = now - event["seconds"], tokens
            self._first_step = step
        spent = max(now - self._step_began, 1e-9)
        tokens = event["tokens"] - self._tokens_began
        speed = f"{tokens * self._units_per_token / spent:,.0f} {self._unit}/s"
        text = f"step {step} loss {event['loss']:.4f} {speed}"
        if self._bars is not None:
            self._move_bar("training", step, self.num_steps or step, text)
            return
        last = step == self.num_steps
        if step == 1 or last or now - self._said > PLAIN_SECONDS:
            self._said = now
            done = step - self._first_step + 1
            left = (self.num_steps - step) * spent / done if self.num_steps else 0
            total = f" of {self.num_steps}" if self.num_steps else ""
            self.console.print(
                as_line(
                    f"step {step}{total}: loss {event['loss']:.4f}, lr {event['lr']:.3g}, "
                    f"{speed}, {left:.0f} s left"
                )
            )

    def _move_bar(
        self, stage: str, done: int, total: int, text: str = "", remove: bool = False
    ) -> None:
        assert self._bars is not None
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=total)
        self._bars.update(
            self._tasks[stage], completed=done, total=total, description=text or stage
        )
        if remove:
            self._bars.remove_task(self._tasks.pop(stage))
