"""Kills runs with SIGKILL at random moments, resumes them, and requires the undisturbed run.

    python tests/reliability/kills.py --kills 60 --seed 0 [--config NAME]

The undisturbed run of each configuration is a process of its own interpreter (with `torchrun` for
two processes); the killed ones are forked from a process that has done the imports. A kill is aimed
at a random time, or at a random delay after a phase begins. Each run is killed, resumed, perhaps
killed again, and finished; then its events, weights, checkpoints and file names are compared.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import children
from configurations import (
    CONFIGURATIONS,
    OUTPUT,
    Configuration,
    differences,
    finish,
    go_on,
    prepare,
    run_undisturbed,
    stray_files,
)

AIMS = ("any", "planning", "saving", "evaluation", "end")
AGAIN = 0.4
"""How often a run that was killed is killed again after it was resumed."""
MOST_KILLS = 4


@dataclass
class Tally:
    """What came of the kills of one configuration."""

    about: str
    kills: int = 0
    runs: int = 0
    started_again: int = 0
    phases: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def main() -> int:
    """Kill, resume, compare; the number of runs that were not as they should."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--kills", type=int, default=60)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--config", choices=CONFIGURATIONS, action="append")
    given = arguments.parse_args()
    children.enter()
    names = given.config or list(CONFIGURATIONS)
    tallies = {}
    with children.scratch_folder("kills") as place:
        for number, name in enumerate(names):
            share = given.kills // len(names) + (number < given.kills % len(names))
            choose = random.Random(f"{given.seed} {name}")
            tallies[name] = disturb(CONFIGURATIONS[name], place / name, share, choose)
            show(name, tallies[name])
    wrong = [f"{name}: {each}" for name, tally in tallies.items() for each in tally.wrong]
    total = sum(tally.kills for tally in tallies.values())
    print(f"{total} kills, seed {given.seed}: {len(wrong)} runs differ from the undisturbed run")
    print("\n".join(wrong))
    return min(len(wrong), 1)


def show(name: str, tally: Tally) -> None:
    """Print the line of a configuration."""
    phases = ", ".join(f"{phase} {count}" for phase, count in sorted(tally.phases.items()))
    print(
        f"{name:10}{tally.kills:>4} kills of {tally.runs} runs ({phases}); "
        f"{tally.started_again} started again, the others resumed; {len(tally.wrong)} wrong",
        flush=True,
    )


def disturb(configuration: Configuration, place: Path, kills: int, choose: random.Random) -> Tally:
    """Kill runs of a configuration so many times in all."""
    folder, tally = place / "run", Tally(configuration.about)  # one name for all: it is recorded
    run_undisturbed(configuration, prepare(folder))
    reference = folder.rename(place / "undisturbed") / OUTPUT
    began = time.monotonic()
    child = finish(configuration, prepare(folder))
    seconds = time.monotonic() - began
    if child.code != 0:
        raise SystemExit(f"{configuration.name}, forked: {child.said[-3000:]}")
    tally.wrong += differences(folder / OUTPUT, reference)
    shutil.rmtree(folder)
    aims = [AIMS[n % len(AIMS)] for n in range(kills)]
    choose.shuffle(aims)
    while aims and tally.runs < 5 * kills:
        tally.runs += 1
        wrong = kill_a_run(configuration, folder, aims, (seconds, choose), tally)
        wrong = wrong or differences(folder / OUTPUT, reference)
        tally.wrong += [f"run {tally.runs}: {each}" for each in wrong]
        shutil.rmtree(folder)
    if aims:
        tally.wrong.append(f"{len(aims)} kills came too late each time")
    shutil.rmtree(place)
    return tally


def kill_a_run(
    configuration: Configuration,
    folder: Path,
    aims: list[str],
    moments: tuple[float, random.Random],
    tally: Tally,
) -> list[str]:
    """Start a run, kill it, continue it until it ends; what went wrong. Takes from `aims`."""
    seconds, choose = moments
    prepare(folder)
    for number in range(MOST_KILLS):
        if not aims or (number and choose.random() > AGAIN):
            break
        arguments = go_on(folder)
        tally.started_again += not arguments and number > 0
        child = children.start(
            folder, arguments or configuration.arguments, processes=configuration.processes
        )
        phase = strike(child, aims[-1], seconds, choose)
        code = child.wait()
        if code == 0:  # it ended before it was hit
            break
        if -9 not in child.codes.values():
            return [f"exit {code}: {child.said[-1500:]}"]
        tally.phases[phase] += 1
        tally.kills += 1
        aims.pop()
    tally.started_again += not go_on(folder)
    child = finish(configuration, folder)
    if child.code != 0:
        return [f"continued: exit {child.code}: {child.said[-1500:]}"]
    return [f"{name} is left over" for name in stray_files(folder)]


def strike(child: children.Child, aim: str, seconds: float, choose: random.Random) -> str:
    """Kill a run, if it does not end first; the phase in which it was hit."""
    occurrence = choose.randint(1, 3 if aim in ("saving", "evaluation") else 1)
    delay = choose.random() * (seconds if aim == "any" else seconds * 0.02)
    if aim == "planning":
        delay = choose.random() * seconds * 0.4
    while aim != "any" and child.times[children.PHASES.index(aim)] < occurrence:
        if child.poll() is not None:
            return ""
        time.sleep(0.0005)
    time.sleep(delay)
    phase = child.phase
    # One of two processes dies, and the launcher ends the other; or the machine fails.
    one: Any = choose.randrange(len(child.pids)) if choose.random() < 0.7 else None
    if child.poll() is None:
        child.kill(one)
    return phase


if __name__ == "__main__":
    sys.exit(main())
