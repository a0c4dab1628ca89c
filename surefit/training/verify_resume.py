"""Proves on a user's own run that resuming is exact: one child process is killed, another is not.

Both train the first steps of the planned run in a scratch folder beside its output. The killed one
is resumed; events, weights and optimizer of the two are then compared to the bit.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import surefit
from surefit.digests import hash_file
from surefit.errors import UsageError
from surefit.findings import Finding, accept_findings, rule
from surefit.plan.plan import Plan
from surefit.processes import num_processes
from surefit.progress import Progress
from surefit.request import Request
from surefit.run.choose_checkpoint import list_checkpoints, step_of
from surefit.run.events import read_events
from surefit.run.run_folder import Run
from surefit.run.scratch_folder import scratch_folder
from surefit.training.begin_run import begin_run
from surefit.training.remember_code import remember_code
from surefit.user_code.code_records import forget

RESUME_DIFFERS = rule(
    "SF865",
    "error",
    "a resumed run differs from an undisturbed one",
    why="Something that training depends on is neither in the checkpoint nor a function of the "
    "step: state of a module outside its parameters and buffers, or randomness of its own.",
    fix="Keep such state in buffers (register_buffer), and draw random numbers from torch.",
    accept="The run starts. If it is killed and resumed, its result is another one.",
)

CHILD_FAILED = rule(
    "SF866",
    "error",
    "the run that was to verify resuming failed",
    why="The first steps of the run were tried in a process of their own, which did not finish.",
    fix="Run it with --set verify_resume=false to see where it fails.",
)

RESUME_VERIFIED = rule(
    "SF867",
    "info",
    "resuming was verified",
    why="verify_resume is on: the first steps were trained twice, once with a kill in between.",
    fix="Nothing to do.",
)

MOST_STEPS = 8
MODULE = "surefit.training.resume_child"


@dataclass(frozen=True)
class Trial:
    """How many steps are trained, how often they are saved, and after which one is killed."""

    num_steps: int
    save_every: int
    kill_at: int


def refuse_unverifiable(request: Request) -> None:
    """Refuse what a child process cannot be given, before any work."""
    if not request.config.verify_resume:
        return
    passed = request.objects.names()
    if passed:
        shown = ", ".join(f"{name} ({value})" for name, value in passed.items())
        raise UsageError(
            f"verify_resume starts the run in other processes, which cannot get {shown}.",
            "Name files, and code as module:function; or leave verify_resume out.",
        )
    if num_processes() > 1:
        raise UsageError(
            f"verify_resume needs a run of one process, not {num_processes()}.",
            "Verify it with one process first.",
        )


def choose_trial(num_steps: int, seed: int) -> Trial | None:
    """The trial of a run; None for one that is too short to be killed and resumed.

    >>> choose_trial(500, seed=0)
    Trial(num_steps=8, save_every=2, kill_at=6)
    >>> choose_trial(1, seed=0) is None
    True
    """
    steps = min(num_steps, MOST_STEPS)
    if steps < 3:
        return None
    save_every = 2 if steps >= 5 else 1
    return Trial(steps, save_every, random.Random(seed).randint(save_every + 1, steps - 1))


def verify_resume(plan: Plan, folder: Path, progress: Progress) -> list[Finding]:
    """Train the first steps twice, once with a kill and a resume, and compare the two."""
    assert plan.job is not None
    trial = choose_trial(plan.job.num_steps, plan.config.seed)
    if trial is None:
        steps = f"the run has only {plan.job.num_steps} steps"
        return [RESUME_VERIFIED.finding(f"Resuming was not verified: {steps}.")]
    with (
        scratch_folder(folder) as scratch,
        _child_run(plan, trial, scratch / "whole") as whole,
        _child_run(plan, trial, scratch / "killed") as killed,
    ):
        found = _compare_runs(whole, killed, trial, plan, progress)
    return list(accept_findings(found, plan.config.accept))


def _compare_runs(
    whole: Run, killed: Run, trial: Trial, plan: Plan, progress: Progress
) -> list[Finding]:
    progress("verifying resume", 0, 3)
    failed = _train(whole, plan)
    progress("verifying resume", 1, 3)
    if not failed:
        failed = _train(killed, plan, trial.kill_at)
        saved = list_checkpoints(killed.checkpoints)
        progress("verifying resume", 2, 3)
    if not failed:
        failed = _train(killed, plan)
    progress("verifying resume", 3, 3)
    if failed:
        return [CHILD_FAILED.finding(f"A child process of verify_resume failed: {failed}")]
    resumed = step_of(saved[-1]) if saved else 0
    how = f"killed at step {trial.kill_at} and resumed from step {resumed}"
    wrong = _first_difference(whole, killed)
    if wrong:
        return [RESUME_DIFFERS.finding(f"A run {how} differs from an undisturbed one: {wrong}.")]
    return [
        RESUME_VERIFIED.finding(
            f"A run {how} equals an undisturbed one to the bit: events, weights and optimizer of "
            f"{trial.num_steps} steps."
        )
    ]


@contextmanager
def _child_run(plan: Plan, trial: Trial, folder: Path) -> Iterator[Run]:
    """A run of the first steps that has not begun; it keeps every checkpoint."""
    assert plan.job is not None
    shorter = {
        "max_steps": trial.num_steps,
        "save_every": trial.save_every,
        "keep": trial.num_steps,
        "trackers": (),
        "rehearse": False,
        "verify_resume": False,
    }
    config = plan.config.model_copy(update=shorter)
    job = replace(plan.job, num_steps=trial.num_steps)
    short = replace(plan, request=replace(plan.request, config=config), job=job)
    run_id = uuid.uuid4().hex
    remember_code(short, run_id, folder)  # the child may run the code that this command named
    try:
        yield begin_run(short, run_id, folder)
    finally:
        forget(run_id)


def _train(run: Run, plan: Plan, kill_at: int | None = None) -> str:
    """Resume a run in a process of its own; what went wrong, empty if nothing did."""
    package = str(Path(surefit.__file__).parents[1])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    trusted = {"SUREFIT_TRUST_REMOTE_CODE": "1"} if plan.config.trust_remote_code else {}
    step = [] if kill_at is None else [str(kill_at)]
    done = subprocess.run(
        [sys.executable, "-P", "-m", MODULE, str(run.path.resolve()), *step],
        env={**os.environ, "PYTHONPATH": path, **trusted},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == (0 if kill_at is None else -signal.SIGKILL):
        return ""
    last = [line for line in done.stderr.split("\n") if line.strip()][-3:]
    return f"exit code {done.returncode}. {' '.join(last)}"


def _first_difference(whole: Run, killed: Run) -> str:
    """The first event, weight or optimizer state that differs; empty if none does."""
    one, two = ([_plain(event) for event in read_events(r.events_path)] for r in (whole, killed))
    for first, second in zip(one, two, strict=False):
        if first != second:
            key = next(k for k in {**first, **second} if first.get(k) != second.get(k))
            where = f"{'the evaluation of ' * (first.get('event') == 'eval')}step {first['step']}"
            return f"{key} of {where} is {first.get(key)!r}, and {second.get(key)!r} after resuming"
    if len(one) != len(two):
        return f"it has {len(two)} events instead of {len(one)}"
    for file in ("model.safetensors", "optimizer.safetensors"):
        wrong = _first_tensor(whole, killed, file)
        if wrong:
            return wrong
    return ""


def _plain(event: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key != "seconds"}


def _first_tensor(whole: Run, killed: Run, file: str) -> str:
    """The first tensor of the last checkpoints that differs."""
    from safetensors.torch import load_file

    paths = [list_checkpoints(run.checkpoints)[-1] / file for run in (whole, killed)]
    if hash_file(paths[0]) == hash_file(paths[1]):
        return ""
    one, two = (load_file(str(path)) for path in paths)
    name = next(
        (n for n in one if n not in two or one[n].numpy().tobytes() != two[n].numpy().tobytes()),
        None,
    )
    step = step_of(paths[0].parent)
    return f"{name or file} of {file} differs after step {step}"
