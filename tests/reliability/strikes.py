"""Strikes runs inside their file operations: a kill, a full disk, a disk turned read-only.

    python tests/reliability/strikes.py [--action kill] [--scenario NAME]
                                        [--every 1 | --places | --random 10 --seed 0]

The operations (open for writing, write, fsync, rename, mkdir, unlink, truncate …) of output, cache,
records and temporary folder are counted first. Then a run is started for each of them, which is
struck there: killed (inside a write, when half of it is written), or every write from there on
fails. What a kill between two operations leaves on the disk is what a kill at the second leaves.
A failing run must end with a message. The run is then continued on a sound disk, must equal the
undisturbed run, and must leave no temporary file. `--random` also strikes runs that were continued.
"""

from __future__ import annotations

import argparse
import errno
import random
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import children
from children import Fault
from configurations import CONFIGURATIONS, Configuration, continued, finish, go_on, prepare

ACTIONS = {
    "kill": ("kill", 0),
    "full": ("fail", errno.ENOSPC),
    "full once": ("fail once", errno.ENOSPC),
    "read-only": ("fail", errno.EROFS),
    "broken": ("fail", errno.EIO),
}
Operation = tuple[int, str, str]
"""Its number, its kind (open, write, …) and the file."""
Choice = Callable[[list[Operation]], list[list[int]]]
"""The runs that are to be struck: for each, the operations in turn."""
AGAIN = 0.4
"""How often a run that `--random` struck is struck again after it was continued."""


def _nothing(configuration: Configuration, folder: Path) -> None:
    """The run begins at its beginning."""


def _half_trained(configuration: Configuration, folder: Path) -> None:
    """The run is killed in the middle, inside the write of a checkpoint."""
    saved = [
        number
        for number, kind, path in _enumerate(configuration, folder.with_name("counted"))
        if kind == "write" and "checkpoints/.step-00000006" in path
    ]
    child = children.run(folder, configuration.arguments, Fault("kill", saved[len(saved) // 2]))
    assert child.code == -9, child.said


SCENARIOS = {
    **{name: (each, _nothing) for name, each in CONFIGURATIONS.items()},
    "resume": (CONFIGURATIONS["features"], _half_trained),
}
"""A run whose operations are struck, and what is done before it starts."""


@dataclass
class Tally:
    """What came of the strikes of one scenario."""

    operations: int
    struck: int = 0
    places: set[str] = field(default_factory=set)
    """Distinct operations by kind and file, with numbers and random names left out."""
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def main() -> int:
    """Strike, continue, compare; 1 if anything was wrong."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--action", choices=ACTIONS, action="append")
    arguments.add_argument("--scenario", choices=SCENARIOS, action="append")
    arguments.add_argument("--every", type=int, default=1, help="strike each n-th operation")
    arguments.add_argument("--random", type=int, help="strike so many runs of each scenario")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument(
        "--places", action="store_true", help="strike the first and last operation of each place"
    )
    given = arguments.parse_args()
    children.enter()
    wrong = 0
    for action in given.action or ["kill"]:
        for name in given.scenario or SCENARIOS:
            choose = _of_each_place if given.places else _each(given.every)
            if given.random is not None:
                choose = _drawn(given.random, random.Random(f"{given.seed} {action} {name}"))
            with children.scratch_folder("strikes") as place:
                tally = strike_all(name, place, action, choose)
            outcomes = ", ".join(
                f"{count} {what}" for what, count in sorted(tally.outcomes.items())
            )
            print(
                f"{action}, {name}: {tally.struck} runs of {tally.operations} operations struck, "
                f"{len(tally.places)} distinct places; {outcomes}; {len(tally.wrong)} wrong"
            )
            print("".join(f"  {each}\n" for each in tally.wrong), flush=True)
            wrong += len(tally.wrong)
    return min(wrong, 1)


def _each(every: int) -> Choice:
    return lambda operations: [[number] for number, _, _ in operations[::every]]


def _drawn(count: int, draw: random.Random) -> Choice:
    """Random operations; some runs are struck again in the first half of what is left."""

    def choose(operations: list[Operation]) -> list[list[int]]:
        again = [[draw.randrange(1, len(operations) // 2)] for _ in range(count)]
        return [
            [draw.randint(1, len(operations)), *(later if draw.random() < AGAIN else [])]
            for later in again
        ]

    return choose


def _of_each_place(operations: list[Operation]) -> list[list[int]]:
    """The first and the last operation of each distinct place, in their order."""
    first, last = {}, {}
    for number, kind, path in operations:
        first.setdefault((kind, _general(path)), number)
        last[kind, _general(path)] = number
    return [[number] for number in sorted({*first.values(), *last.values()})]


def _enumerate(configuration: Configuration, folder: Path) -> list[Operation]:
    """All file operations of an undisturbed run, in order."""
    child = finish(configuration, prepare(folder), Fault(log=True))
    assert child.code == 0, child.said
    return list(children.operations(folder))


def strike_all(name: str, place: Path, action: str, choose: Choice) -> Tally:
    """Strike the chosen operations of a scenario."""
    configuration, before = SCENARIOS[name]
    _enumerate(configuration, place / "run")
    (place / "run").rename(place / "undisturbed")  # made where the others are: names are recorded
    before(configuration, prepare(place / "run"))
    begun = (place / "run").rename(place / "begun")
    shutil.copytree(begun, place / "run")
    child = finish(configuration, place / "run", Fault(log=True))
    assert child.code == 0, child.said
    operations = list(children.operations(place / "run"))
    tally = Tally(len(operations))
    for numbers in choose(operations):
        shutil.rmtree(place / "run")
        shutil.copytree(begun, place / "run")
        wrong = strike(configuration, place, action, numbers, tally)
        tally.wrong += [f"operations {numbers}: {each}" for each in wrong]
    return tally


def strike(
    configuration: Configuration, place: Path, action: str, numbers: list[int], tally: Tally
) -> list[str]:
    """Run until the operation that is struck, in turn, then to the end; what is wrong."""
    what, error_number = ACTIONS[action]
    folder, begun = place / "run", bool(go_on(place / "run"))
    wrong, done = [], "finished all the same"
    for number in numbers:
        child = finish(configuration, folder, Fault(what, number, error_number, log=True))
        struck = [f"{kind} {_general(path)}" for _, kind, path in children.operations(folder)]
        if not struck:  # it ended before
            break
        tally.struck += number == numbers[0]
        tally.places.add(struck[0])
        wrong += [f"{struck[0]}: {each}" for each in _ended_badly(child, action)]
        if child.code != 0:
            done = "resumed" if go_on(folder) else "started again"
    if begun and not go_on(folder):
        wrong.append("the run was lost")
    tally.outcomes[done] += 1
    return wrong + continued(configuration, folder, place / "undisturbed")


def _ended_badly(child: children.Child, action: str) -> list[str]:
    """What is wrong with the end of a run that was struck."""
    if action == "kill":
        return [] if -9 in child.codes.values() else [f"not killed, but exit {child.code}"]
    wrong = children.unfit_messages(child, 0, 1, 2)
    if child.code and action.startswith("full") and not re.search("full|No space", child.said):
        wrong.append(f"the message does not name the full disk: {child.said[-1500:]}")
    return wrong


def _general(path: str) -> str:
    """A path without what differs from run to run."""
    path = re.sub(r"\.[0-9a-f]{8}\.tmp", ".tmp", path)
    path = re.sub(r"[0-9a-f]{32}", "ID", path)
    return re.sub(r"\d+-[0-9a-f]{8}|step-\d+", "N", path)


if __name__ == "__main__":
    sys.exit(main())
