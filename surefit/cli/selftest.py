"""`surefit selftest`: a few minutes of real runs on this machine, as a table and JSON."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from surefit.errors import UsageError

LIMIT_SECONDS = 600  # of one command
LOSS_TOLERANCE = 1e-4  # between one and two processes in float32, relative
PEAK_TOLERANCE = 0.25  # of the measured peak against the predicted one, relative
WORDS = ("apple", "bell", "boat", "book", "bread", "chair", "cloud", "coat", "door", "drum")
Outcome = tuple[dict[str, Any], bool]  # what was measured, and whether it is right


class CheckEndedError(Exception):
    """A check ended early, with a status and a message."""


@dataclass(frozen=True)
class Machine:
    """Runs commands of surefit on one device, in a folder with small data."""

    folder: Path
    device: str

    def surefit(self, *options: str) -> str:
        """Run a command; return what it printed, or raise with its last words."""
        hidden = {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
        try:
            return subprocess.run(
                [sys.executable, "-P", "-m", "surefit", *options],
                cwd=self.folder,
                env={**os.environ, **(hidden if self.device == "cpu" else {})},
                capture_output=True,
                text=True,
                timeout=LIMIT_SECONDS,
                check=True,
            ).stdout
        except subprocess.SubprocessError as error:
            last = " ".join(str(getattr(error, "stderr", None) or "").split()[-60:])
            raise CheckEndedError("failed", f"{error} {last}") from None

    def train(self, name: str, *options: str, rows: str = "words", steps: int = 12) -> list[float]:
        """Train for some steps; return the loss of each."""
        from surefit.run.events import read_events

        model = "tiny:llama" if rows == "words" else "tiny:bert"
        given = ["--data", f"{rows}.jsonl", "--model", model, "--batch-size", "8", "--lr", "3e-3"]
        self.surefit("train", *given, "--max-steps", str(steps), "--output", name, *options)
        events = read_events(self.folder / name / "events.jsonl")
        return [event["loss"] for event in events if event["event"] == "step"]


def _sft(machine: Machine) -> Outcome:
    """Instruction tuning of a small Llama: the loss halves."""
    losses = machine.train("sft", steps=40)
    first, last = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
    return {"first_loss": first, "last_loss": last}, last < first / 2


def _classification(machine: Machine) -> Outcome:
    """Text classification with a small BERT, where one word decides."""
    machine.train("classes", rows="labels", steps=120)
    found = json.loads(machine.surefit("evaluate", "classes", "--json"))["metrics"]
    return {"accuracy": found["accuracy"]}, found["accuracy"] >= 0.95


def _resume(machine: Machine, *options: str) -> Outcome:
    """A run that stops and resumes has the losses of an undisturbed one, to the bit."""
    options += ("--set", "deterministic=true", "--set", "schedule=constant")
    whole = machine.train("whole", *options)
    machine.train("resumed", *options, steps=6)
    resumed = machine.train("resumed", *options, "--resume", "resumed")
    return {"steps": len(whole), "equal": resumed == whole}, resumed == whole


def _qlora(machine: Machine) -> Outcome:
    """LoRA on weights in 4 bits, stopped and resumed."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise CheckEndedError("skipped", "bitsandbytes is not installed")
    machine.train("base")
    return _resume(machine, "--model", "base/model", "--lora-r", "8", "--set", "lora.quantize=4bit")


def _peak(machine: Machine) -> Outcome:
    """The peak memory of a real step is near the prediction."""
    options = ("--data", "words.jsonl", "--model", "tiny:llama", "--set", "fit=measured", "--json")
    memory = json.loads(machine.surefit("check", *options))["memory"]
    predicted, measured = memory["predicted_peak_bytes"], memory["measured_peak_bytes"]
    figures = {"predicted_peak_bytes": predicted, "measured_peak_bytes": measured}
    return figures, abs(measured - predicted) <= PEAK_TOLERANCE * predicted


def _processes(machine: Machine) -> Outcome:
    """Two processes have the losses of one: data parallel (DDP) and sharded (FSDP2)."""
    import torch

    if machine.device != "cpu" and torch.accelerator.device_count() < 2:
        raise CheckEndedError("skipped", f"this check needs two {machine.device} devices")
    exact = ("--set", "precision=fp32")
    one, figures = machine.train("one", *exact, "--grad-accum", "2"), {}
    for kind in ("ddp", "fsdp"):
        two = machine.train(kind, *exact, "--processes", "2", "--set", f"parallel={kind}")
        differences = [abs(a - b) / abs(a) for a, b in zip(one, two, strict=True)]
        figures[f"{kind}_largest_difference"] = max(differences)
    return figures, max(figures.values()) <= LOSS_TOLERANCE


_ALL = (_sft, _classification, _resume, _qlora, _peak, _processes)
CHECKS: dict[str, Callable[[Machine], Outcome]] = {each.__name__[1:]: each for each in _ALL}


def run_check(name: str, device: str) -> dict[str, Any]:
    """Run one check in a folder of its own; return what came of it, as the JSON has it."""
    began, figures, message = time.perf_counter(), dict[str, Any](), ""
    with tempfile.TemporaryDirectory(prefix="surefit-selftest-") as folder:
        _write_rows(Path(folder))
        try:
            figures, is_right = CHECKS[name](Machine(Path(folder), device))
            status = "passed" if is_right else "failed"
        except CheckEndedError as reason:
            status, message = reason.args
    shown = {"name": name, "shows": CHECKS[name].__doc__, "status": status, "message": message}
    return {**shown, "figures": figures, "seconds": round(time.perf_counter() - began, 1)}


def _write_rows(folder: Path) -> None:
    """Write rows whose answer is their first word, and rows whose class is their last one."""
    rng = random.Random(0)
    with open(folder / "words.jsonl", "w") as words, open(folder / "labels.jsonl", "w") as labels:
        for _ in range(400):
            text, sign = rng.choices(WORDS, k=rng.randint(1, 12)), rng.choice(("up", "down"))
            print(json.dumps({"prompt": " ".join(text), "completion": text[0]}), file=words)
            print(json.dumps({"text": " ".join([*text, sign]), "label": sign}), file=labels)


def _describe_machine(wanted: str | None) -> dict[str, Any]:
    """Return the device, GPUs and versions, but neither names of people nor of hosts."""
    import torch

    from surefit.training.guards import versions

    found = torch.accelerator.current_accelerator(check_available=True)
    device = wanted or ("cpu" if found is None else found.type)
    if device != "cpu" and (found is None or device != found.type):
        raise UsageError(
            f"This machine has no device {device!r}.",
            "Leave --device out, or install a build of torch for the device.",
        )
    gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    system = f"{platform.platform()}, {os.cpu_count()} cores"
    return {"device": device, "gpus": gpus, "system": system, "packages": versions()}


def selftest(
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or mps; the accelerator if there is one.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this check; may be given several times.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Where to write the outcomes as JSON.")] = Path(
        "surefit-selftest.json"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Train small models on this machine, and check that what comes out is right."""
    from surefit.cli.display import print_json
    from surefit.cli.terminal import as_line, to_stderr, to_stdout
    from surefit.core import files
    from surefit.run.run_folder import check_writable

    if unknown := [name for name in only or () if name not in CHECKS]:
        raise UsageError(f"There is no check {unknown[0]!r}.", f"Checks are {', '.join(CHECKS)}.")
    machine = _describe_machine(device)
    check_writable(output.parent)
    console, checks = (to_stderr() if as_json else to_stdout()), []
    for name in [name for name in CHECKS if not only or name in only]:
        checks.append(check := run_check(name, machine["device"]))
        told = ", ".join(f"{key} {value:.4g}" for key, value in check["figures"].items())
        line = f"{check['status']:<8} {name:<15} {check['seconds']:6.1f} s  "
        console.print(as_line(line + (check["message"] or told)))
    ok = all(check["status"] != "failed" for check in checks)
    found = {"ok": ok, "machine": machine, "checks": checks}
    files.write_json(output, found)
    print_json(found) if as_json else console.print(as_line(f"written to {output}"))
    return 0 if ok else 1
