"""Hostile inputs, each given to a real command under limits of memory and time.

    python tests/reliability/hostile_inputs.py            # all cases, with counts
    python tests/reliability/hostile_inputs.py --count 12 --seed 7
    python tests/reliability/hostile_inputs.py --only npz

Every case must end in exit code 0, 1 or 2 as the table says, with a message free of control
characters, no traceback and no internal error, without running code of the input (a canary file)
and without writing outside of output, cache and state. One process imports everything once; each
case is a fork of it, with its own home, working folder and limits.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reliability.children import become, scratch_folder
from reliability.hostile_case import Case, Scene
from reliability.hostile_data import data_cases
from reliability.hostile_files import HUGE_BYTES, file_cases
from reliability.hostile_runs import make_run, run_cases
from reliability.hostile_values import value_cases

from surefit.printable import printable

MEMORY_BYTES = 3 << 30
"""How much a case may allocate beyond what the imports hold."""
CPU_SECONDS = 300
"""Of a case without end; the others take a few, on any machine."""
WALL_SECONDS = 600
SLOW_SECONDS = 60
"""CPU time beyond which a case counts as hanging; the clock depends on what else is running."""
OWN = ("out", "cache", "state")
FORBIDDEN = ("Traceback (most recent call last)", "internal error", "fault of surefit")


@dataclass(frozen=True)
class Outcome:
    """What became of one case; `faults` is empty if it ended as it should."""

    name: str
    code: int
    said: str
    seconds: float
    peak_bytes: int
    faults: tuple[str, ...]


def all_cases() -> list[Case]:
    """The table: every opener, the config, models, runs, logs, names, settings, and every file."""
    return [*data_cases(), *run_cases(), *file_cases(), *value_cases()]


def warm_up() -> None:
    """Import what commands use, so that each case starts at once."""
    import peft  # noqa: F401
    import torch
    import transformers  # noqa: F401
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer  # noqa: F401

    from surefit.cli import main  # noqa: F401
    from surefit.findings import load_rules

    load_rules()
    torch.set_num_threads(1)


def run_all(cases: Sequence[Case], folder: Path) -> Iterator[Outcome]:
    """Run the cases one after the other."""
    warm_up()
    run = make_run(folder / "trained")
    for number, case in enumerate(cases):
        yield run_case(case, folder / f"case-{number}", run)


def run_case(case: Case, root: Path, run: Path) -> Outcome:
    """Prepare a scratch home, run one command in it, and judge what happened."""
    scene = Scene(root, run)
    for name in ("home", "work", "tmp", "out", "cache", "state", "victim"):
        (root / name).mkdir(parents=True)
    (root / "victim" / "kept.txt").write_text("kept")
    case.prepare(scene)
    before, victim = listing(root), digests_of(root / "victim")
    code, seconds, peak = _execute(case, scene)
    said = (root / "said").read_bytes().decode("utf-8", "replace")
    faults = [*_judge(case, scene, code, said, before)]
    if digests_of(root / "victim") != victim:
        faults.append("a file that a link leads to was changed")
    if seconds > SLOW_SECONDS:
        faults.append(f"it took {seconds:.0f} s of CPU")
    shutil.rmtree(root, ignore_errors=True)
    return Outcome(case.name, code, said, seconds, peak, tuple(faults))


def digests_of(folder: Path) -> dict[str, str]:
    """The digests of the files that links of a case lead to."""
    files = [path for path in folder.iterdir() if path.stat().st_size < HUGE_BYTES]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def listing(root: Path) -> dict[str, tuple[int, int]]:
    """Every file outside of a command's own folders, with size and time."""
    found = {}
    for place, folders, names in os.walk(root):
        if Path(place) == root:
            folders[:] = [name for name in folders if name not in OWN]
            names = [name for name in names if name != "said"]
        for name in (*names, *folders):
            about = os.lstat(os.path.join(place, name))
            size = about.st_size if name in names else 0
            found[os.path.join(place, name)] = (size, about.st_mtime_ns if name in names else 0)
    return found


def _judge(
    case: Case, scene: Scene, code: int, said: str, before: dict[str, tuple[int, int]]
) -> Iterator[str]:
    if code not in case.codes:
        yield f"exit {code}, expected {case.codes}"
    if any(word in said for word in FORBIDDEN):
        yield "traceback or internal error"
    if printable(said) != said:
        yield "control characters in the output"
    if code and not said.strip():
        yield "no message"
    if case.says and case.says not in said:
        yield f"does not say {case.says!r}"
    if scene.canary.exists():
        yield "code of the input ran"
    after = listing(scene.root)
    changed = sorted(
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    )
    if changed and not case.may_write:
        yield f"changed outside of output and cache: {', '.join(changed[:3])}"


def _execute(case: Case, scene: Scene) -> tuple[int, float, int]:
    """Exit code (negative: the signal), CPU time and peak memory of a fork or new interpreter."""
    if case.own_process:
        return _execute_anew(case, scene), 0, 0
    child = os.fork()
    if child == 0:
        environment = {**scene.environment, **case.environment}
        become(scene.work, case.command, environment, scene.root / "said", _bound)
    deadline = time.monotonic() + WALL_SECONDS
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            seconds = usage.ru_utime + usage.ru_stime
            return os.waitstatus_to_exitcode(status), seconds, usage.ru_maxrss * 1024
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.02)


def _execute_anew(case: Case, scene: Scene) -> int:
    with (scene.root / "said").open("wb") as said:
        command = [sys.executable, "-m", "surefit", *case.command]
        package = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, **scene.environment, "PYTHONPATH": path, **case.environment}
        try:
            return subprocess.run(
                command,
                cwd=scene.work,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                timeout=WALL_SECONDS,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL


def _bound() -> None:
    """In the fork: take on limits; what is printed is written at once."""
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), write_through=True)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY_BYTES,) * 2)


def main() -> int:
    parser = argparse.ArgumentParser(description="Give hostile inputs to real commands.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, help="a seeded sample of so many cases")
    parser.add_argument("--only", nargs="*", default=[""], help="cases whose name contains one")
    parser.add_argument("--show", action="store_true", help="print what every command said")
    options = parser.parse_args()
    cases = [case for case in all_cases() if any(word in case.name for word in options.only)]
    if options.count:
        cases = random.Random(options.seed).sample(cases, min(options.count, len(cases)))
    failed = 0
    slowest = largest = 0.0
    with scratch_folder("hostile", in_memory=False) as folder:
        for outcome in run_all(cases, folder):
            failed += bool(outcome.faults)
            slowest, largest = max(slowest, outcome.seconds), max(largest, outcome.peak_bytes)
            word = "FAILED" if outcome.faults else "ok"
            figures = (
                f"exit {outcome.code}, {outcome.seconds:.1f} s, {outcome.peak_bytes / 1e9:.2f} GB"
            )
            print(f"{word:<8}{printable(outcome.name):<44}{figures}", flush=True)
            for fault in outcome.faults:
                print(f"        {fault}")
            if outcome.faults or options.show:
                print("        | " + printable(outcome.said[-1500:]).replace("\n", "\n        | "))
    print(
        f"{len(cases) - failed} of {len(cases)} cases ended as they should (seed {options.seed}); "
        f"slowest {slowest:.1f} s, largest peak {largest / 1e9:.2f} GB"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
