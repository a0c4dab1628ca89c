"""Plans, findings and progress on a terminal or in a pipe."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from surefit.cli.live_view import LiveView
from surefit.cli.summary_lines import (
    evaluation_lines,
    fit_lines,
    outcome_lines,
    plan_blocks,
    result_line,
)
from surefit.cli.terminal import as_line, to_stderr
from surefit.errors import FindingError
from surefit.findings import Finding
from surefit.processes import is_main, num_processes
from surefit.progress import show_seconds
from surefit.run.events import outcomes

if TYPE_CHECKING:
    from surefit.checks.hf_trainer import Checkup
    from surefit.memory.predict_peak import Fit
    from surefit.plan.plan import Plan
    from surefit.run.run_folder import Run
    from surefit.training.folds import FoldRuns
    from surefit.training.work import Listeners


COLOURS = {"error": "bold red", "warning": "yellow", "fixed": "cyan", "info": "dim"}
PLAIN_SECONDS = 10.0
"""Between lines of progress where there is no terminal."""
SHORT_SECONDS = 2.0
"""Of a stage that nothing is printed about."""
NAME_WIDTH = 10
BAR_SECONDS = 0.1
"""Between movements of a bar."""


def print_json(value: Any) -> None:
    """Print one JSON object alone on stdout, escaped where the encoding of stdout requires it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, allow_nan=False)
    print(text)


def show_plan(plan: Plan, console: Console, quiet: bool = False, verbose: bool = False) -> None:
    """Show the verdict and what needs action, then the plan in blocks; if `quiet`, errors alone."""
    verdict, is_good = ("ready to train" if plan.ok else "cannot train"), plan.ok
    if plan.request.encodes_only and plan.is_encoded:
        verdict, is_good = "encoded", True
    if quiet:
        show_findings(errors_of(plan.findings), console)
        _show_verdict(verdict, is_good, console)
        return
    urgent = _needing_action(plan.findings)
    _show_verdict(verdict, is_good, console)
    show_findings(urgent, console)
    for title, lines in plan_blocks(plan, verbose):
        if lines:
            console.print(as_line(""), as_line(title, style="bold"), sep="\n")
        for name, value in lines:
            show_line(name, value, console)
    show_findings([found for found in plan.findings if found not in urgent], console)


def show_line(name: str, value: str, console: Console) -> None:
    """Show a value beside its name; on a terminal, further lines of it are below the first."""
    room = console.width - NAME_WIDTH
    parts = [as_line(value).plain]
    if console.is_terminal and room >= NAME_WIDTH:
        parts = textwrap.wrap(parts[0], room, break_on_hyphens=False) or [""]
    for number, part in enumerate(parts):
        console.print(as_line(f"{'' if number else name:<{NAME_WIDTH}}{part}"))


def show_checkup(checkup: Checkup, console: Console) -> None:
    """Show what was found in someone else's run: first the verdict and what needs action."""
    urgent = _needing_action(checkup.findings)
    _show_verdict("ready to train" if checkup.ok else "cannot train", checkup.ok, console)
    show_findings(urgent, console)
    for text in checkup.notes:
        show_line("note", text, console)
    show_findings([found for found in checkup.findings if found not in urgent], console)


def _show_verdict(verdict: str, is_good: bool, console: Console) -> None:
    console.print(as_line(verdict, style="bold green" if is_good else "bold red"))


def _needing_action(findings: Sequence[Finding]) -> list[Finding]:
    """Return errors, then warnings."""
    warnings = [found for found in findings if found.severity == "warning"]
    return [*errors_of(findings), *warnings]


def errors_of(findings: Sequence[Finding]) -> list[Finding]:
    """Return the errors among findings."""
    return [found for found in findings if found.severity == "error"]


def show_findings(findings: Sequence[Finding], console: Console) -> None:
    """Show each finding on two lines: what and where, then the fix. A note takes one line."""
    for found in findings:
        named = (f"{found.severity:<8}", f"{found.code}  ") if found.code else ("note", " " * 6)
        line = as_line(named[0], style=COLOURS[found.severity])
        line.append_text(as_line(f"{named[1]}{found.message}"))
        line.append_text(as_line(found.place, style="dim"))
        console.print(line)
        if found.severity in ("error", "warning"):
            console.print(as_line(f"        fix: {found.fix}", style="dim"))


def _show_parts(event: Mapping[str, Any]) -> str:
    """Return the parts of a loss that a step reports, in brackets.

    >>> _show_parts({"loss": 0.5, "loss_kl": 0.1, "loss_rows": 0.4})
    ' (kl 0.1000, rows 0.4000)'
    """
    parts = [f"{n.removeprefix('loss_')} {v:.4f}" for n, v in event.items() if n[:5] == "loss_"]
    return f" ({', '.join(parts)})" if parts else ""


class Display:
    """Progress of stages and of training: bars on a terminal, a line every few seconds in a pipe.

    The speed is in tokens per second, or in rows per second for tasks without tokens. `quiet`
    shows nothing, `verbose` all notes of a plan.
    """

    def __init__(self, quiet: bool = False, verbose: bool = False) -> None:
        self.console = to_stderr()
        self.console.quiet = quiet
        self.verbose = verbose
        self.num_steps: int | None = None
        self.num_epochs: int | None = None
        self._unit, self._units_per_token = "tokens", 1.0
        self._losses: list[float] = []
        self._bars: LiveView | None = None
        self._tasks: dict[str, Any] = {}
        self._began: dict[str, float] = {}
        self._said = time.monotonic()
        self._ended = threading.Event()
        self._stages: dict[str, tuple[int, int]] = {}
        self._step_began: float | None = None
        self._tokens_began = 0
        self._first_step = 1
        self._shown: tuple[Finding, ...] = ()
        self._baselines: Mapping[str, Mapping[str, Any]] = {}
        self._evaluations = list[Mapping[str, Any]]()
        self._answers: dict[str, str] = {}

    def __enter__(self) -> Display:
        if self.console.is_terminal and not self.console.quiet:
            self._bars = LiveView(self.console)
            self._bars.start()
        elif not self.console.quiet:
            threading.Thread(target=self._say_while_waiting, daemon=True).start()
        return self

    def expect(self, plan: Plan) -> None:
        """Note the length of the planned run, and its unit."""
        self.num_steps = plan.job.num_steps if plan.job else None
        self.num_epochs = plan.config.epochs
        self._baselines = plan.baselines
        if self._bars is not None and plan.job is not None:
            epoch_steps = plan.job.batches.steps_per_epoch
            self._bars.expect(plan.job.num_steps, plan.config.epochs, epoch_steps)
        ledger = plan.ledger
        if ledger is not None and ledger.unit != "tokens":
            self._unit, self._units_per_token = "rows", ledger.train_views / max(ledger.tokens, 1)

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._bars is not None:
            self._bars.stop()

    def progress(self, stage: str, done: int, total: int) -> None:
        """Show the progress of a stage."""
        if self._bars is not None:
            self._move_bar(stage, done, total, remove=done >= total)
            return
        self._began.setdefault(stage, time.monotonic())
        self._stages.pop(stage, None)
        if done < total:
            self._stages[stage] = done, total  # the innermost stage is the last
            self._say_stage()
        else:
            self._began.pop(stage)

    def _say_while_waiting(self) -> None:
        """Report the stage in work also where it reports nothing itself."""
        while not self._ended.wait(1.0):
            self._say_stage()

    def _say_stage(self) -> None:
        """Print how far the stage is and the time left, if nothing was printed for some time."""
        now, stages = time.monotonic(), [*self._stages.items()]
        if not stages or now - self._said < PLAIN_SECONDS:
            return
        stage, (done, total) = stages[-1]
        spent = now - self._began.get(stage, now)
        if spent < SHORT_SECONDS:
            return
        self._said = now
        far = f"{show_seconds(spent)} so far"
        if done:
            far = f"{done:,} of {total:,}, {show_seconds(spent / done * (total - done))} left"
        self.console.print(as_line(f"{stage}: {far}"))

    def show_plan(self, plan: Plan) -> None:
        """Show the plan of a run that is about to begin."""
        self._shown = plan.findings
        if not self.console.quiet:
            show_plan(plan, self.console, verbose=self.verbose)

    def show_lines(self, lines: Iterable[str]) -> None:
        """Show lines as they are, such as the result of a run."""
        if not self.console.quiet:
            for line in lines:
                self.console.print(as_line(line))

    def show_fit(self, fit: Fit) -> None:
        """Show the peak and the time that the measured step gave."""
        for name, value in fit_lines(fit):
            show_line(name, value, self.console)

    def notice(self, text: str) -> None:
        """Show something that happened to the run."""
        self.console.print(as_line(f"note      {text}", style="yellow"))

    def show_new(self, findings: Sequence[Finding]) -> None:
        """Show the findings that the plan did not have."""
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
            shown = {**event, "samples": self._changed(event.get("samples") or ())}
            lines = evaluation_lines(shown, self.num_epochs, self._losses, self._baselines)
            for line in lines:
                self.console.print(line)
            self._losses.clear()
            if self._bars is not None:
                self._evaluations.append(event)
                self._bars.show_evaluations(self._evaluations, self._baselines)

    def _changed(self, samples: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the samples whose answer is another than in the evaluation before."""
        known, self._answers = self._answers, {each["prompt"]: each["got"] for each in samples}
        return [each for each in samples if known.get(each["prompt"]) != each["got"]]

    def _show_step(self, event: Mapping[str, Any]) -> None:
        now, step = time.monotonic(), event["step"]
        if self._step_began is None:
            tokens = event["tokens"] if step > 1 else 0
            self._step_began, self._tokens_began = now - event["seconds"], tokens
            self._first_step = step
        spent = max(now - self._step_began, 1e-9)
        tokens = event["tokens"] - self._tokens_began
        speed = f"{tokens * self._units_per_token / spent:,.0f} {self._unit}/s"
        loss = f"{event['loss']:.4f}{_show_parts(event)}"
        done = step - self._first_step + 1
        left = (self.num_steps - step) * spent / done if self.num_steps else 0.0
        if self._bars is not None:
            self._bars.note_loss(step, event["loss"])
            if now - self._said > BAR_SECONDS or step == self.num_steps:
                self._said = now
                self._bars.show_step(event, f"loss {loss}", f"{show_seconds(left)} left", speed)
            return
        last = step == self.num_steps
        if step == 1 or last or now - self._said > PLAIN_SECONDS:
            self._said = now
            total = f" of {self.num_steps}" if self.num_steps else ""
            self.console.print(
                as_line(
                    f"step {step}{total}: loss {loss}, lr {event['lr']:.3g}, "
                    f"{speed}, {left:.0f} s left"
                )
            )

    def _move_bar(self, stage: str, done: int, total: int, remove: bool = False) -> None:
        assert self._bars is not None
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=total)
        self._bars.update(self._tasks[stage], completed=done, total=total)
        if remove:
            self._bars.remove_task(self._tasks.pop(stage))


def make_display(quiet: bool = False, verbose: bool = False) -> Display:
    """Return a display of the first process, which speaks for all; it shows nothing if `quiet`."""
    return Display(quiet or not is_main(), verbose)


@contextmanager
def shown_run(title: str = "", quiet: bool = False, verbose: bool = False) -> Iterator[Listeners]:
    """Show a run, and the findings that end it; a title is shown first."""
    from surefit.training.work import SILENT, Listeners

    with make_display(quiet, verbose) as display:
        if display.console.quiet:
            yield SILENT
            return

        def on_plan(plan: Plan, folder: Path) -> None:
            display.expect(plan)
            if title:
                display.notice(f"{title}: {folder}")
            display.show_plan(plan)

        try:
            yield Listeners(
                (display.observe,),
                display.progress,
                on_plan,
                display.show_fit,
                display.notice,
                announce_stop,
            )
        except FindingError as error:
            display.show_new(error.findings)  # on_plan has shown what planning found
            raise


def announce_stop(number: int) -> None:
    """Say what a signal does; written past all buffers, because a signal handler calls it."""
    if number == signal.SIGINT:
        text = "stopping after this step, which is then saved; Ctrl-C again stops at once"
    elif num_processes() == 1:
        name = signal.Signals(number).name
        text = f"{name}: stopping after this step, which is then saved"
    else:  # torchrun also ends processes with it that have lost one of them
        text = "SIGTERM: stopping; if all processes can finish this step, it is saved"
    with suppress(OSError):
        os.write(2, f"{text}\n".encode())


def result_lines(result: Run | FoldRuns) -> Iterator[str]:
    """Return the result of a run: its metrics, beside the best baseline's, and its folder.

    Of several folds: the mean and the spread of each metric.
    """
    from surefit.training.folds import FoldRuns

    return _fold_lines(result) if isinstance(result, FoldRuns) else _run_lines(result)


def _run_lines(run: Run) -> Iterator[str]:
    if run.best_step is not None:
        yield result_line("best step", run.best_step)
    yield from outcome_lines(outcomes(run.history, run.metrics, run.plan.get("baselines", {})))
    yield result_line("run", run.path)
    yield result_line("report", run.path / "report.html")


def _fold_lines(folds: FoldRuns) -> Iterator[str]:
    for name, figures in folds.metrics.items():
        mean, spread = figures["mean"], figures["spread"]
        shown = "-" if mean is None else f"{mean:.6g}"
        shown += f" ± {spread:.4g}" if spread is not None else ""
        each = ", ".join("-" if v is None else f"{v:.4g}" for v in figures["values"])
        yield result_line(name, f"{shown}  ({each})")
    yield result_line("folds", folds.path / "folds.json")
