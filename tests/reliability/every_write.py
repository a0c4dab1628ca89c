"""Strikes inside each file operation of a run: a kill, a full disk, a disk turned read-only.

    python tests/reliability/every_write.py [--action kill] [--every 1 | --places] [--scenario NAME]

The operations (open for writing, write, fsync, rename, mkdir, unlink, truncate …) of output, cache,
records and temporary folder are counted first. Then a run is started for each of them, which is
struck there: killed (inside a write, when half of it is written), or every write from there on
fails. A failing run must end with a message. The run is then continued on a sound disk, must equal
the undisturbed run, and must leave no temporary file.
"""

from __future__ import annotations

import argparse
import errno
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import children
from children import Fault
from configurations import (
    NET,
    OUTPUT,
    SHORT,
    Configuration,
    differences,
    finish,
    go_on,
    prepare,
    stray_files,
)

ACTIONS = {
    "kill": ("kill", 0, "killed"),
    "full": ("fail", errno.ENOSPC, "the disk is full from there on"),
    "full once": ("fail once", errno.ENOSPC, "the disk is full once"),
    "read-only": ("fail", errno.EROFS, "the disk is read-only from there on"),
    "broken": ("fail", errno.EIO, "input/output errors from there on"),
}
Operation = tuple[int, str, str]
"""Its number, its kind (open, write, …) and the file."""
Choice = Callable[[list[Operation]], list[Operation]]
SPACED = "--set save_every=2 --set eval_every=3 --set keep=1"


@dataclass(frozen=True)
class Scenario:
    """A run whose operations are struck, and what is done before it starts."""

    configuration: Configuration
    before: Callable[[Configuration, Path], None] = lambda configuration, folder: None


def _half_trained(configuration: Configuration, folder: Path) -> None:
    """The run is killed in the middle, inside the write of a checkpoint."""
    saved = [
        number
        for number, kind, path in _enumerate(configuration, folder.with_name("counted"))
        if kind == "write" and "checkpoints/.step-00000004" in path
    ]
    child = children.run(folder, configuration.arguments, Fault("kill", saved[len(saved) // 2]))
    assert child.code == -9, child.said


SCENARIOS = {
    "features": Scenario(
        Configuration(
            "features", "features, own module", f"{NET} --max-tokens 64 --max-steps 6 {SPACED}"
        )
    ),
    "lora": Scenario(
        Configuration(
            "lora",
            "text, LoRA, generation",
            "--data rows.jsonl --model tiny:llama --lora-r 4 --batch-size 4 --max-steps 5"
            f" {SHORT} {SPACED}",
        )
    ),
    "resume": Scenario(
        Configuration(
            "resume", "a killed run is resumed", f"{NET} --max-tokens 64 --max-steps 8 {SPACED}"
        ),
        _half_trained,
    ),
}


@dataclass
class Tally:
    """What came of the strikes of one scenario."""

    about: str
    operations: int = 0
    struck: int = 0
    places: int = 0
    """Distinct operations by kind and file, with numbers and random names left out."""
    kinds: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def main() -> int:
    """Strike, continue, compare; 1 if anything was wrong."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--action", choices=ACTIONS, action="append")
    arguments.add_argument("--scenario", choices=SCENARIOS, action="append")
    arguments.add_argument("--every", type=int, default=1, help="strike each n-th operation")
    arguments.add_argument("--first", type=int, default=1, help="the first operation to strike")
    arguments.add_argument(
        "--places", action="store_true", help="strike the first and last operation of each place"
    )
    given = arguments.parse_args()
    children.enter()
    wrong = 0
    for action in given.action or ["kill"]:
        for name in given.scenario or SCENARIOS:
            with children.scratch_folder("writes") as place:
                spaced = slice(given.first - 1, None, given.every)
                choose = _of_each_place if given.places else itemgetter(spaced)
                tally = strike_all(SCENARIOS[name], place, action, choose)
            show(action, name, tally)
            wrong += len(tally.wrong)
    return min(wrong, 1)


def show(action: str, name: str, tally: Tally) -> None:
    """Print what came of one scenario."""
    outcomes = ", ".join(f"{count} {what}" for what, count in sorted(tally.outcomes.items()))
    print(
        f"{action}, {name}: {tally.struck} of {tally.operations} operations struck, "
        f"{tally.places} distinct places; {outcomes}; {len(tally.wrong)} wrong"
    )
    print("".join(f"  {each}\n" for each in tally.wrong), flush=True)


def _of_each_place(operations: list[Operation]) -> list[Operation]:
    """The first and the last operation of each distinct place, in their order."""
    first, last = {}, {}
    for operation in operations:
        _, kind, path = operation
        first.setdefault((kind, _general(path)), operation)
        last[kind, _general(path)] = operation
    return sorted({*first.values(), *last.values()})


def _enumerate(configuration: Configuration, folder: Path) -> list[Operation]:
    """All file operations of an undisturbed run, in order."""
    child = children.run(prepare(folder), configuration.arguments, Fault(log=True))
    assert child.code == 0, child.said
    return list(children.operations(folder))


def strike_all(scenario: Scenario, place: Path, action: str, choose: Choice) -> Tally:
    """Strike the chosen operations of a scenario."""
    configuration = scenario.configuration
    _enumerate(configuration, place / "run")
    (place / "run").rename(place / "undisturbed")  # made where the others are: names are recorded
    scenario.before(configuration, prepare(place / "run"))
    begun = (place / "run").rename(place / "begun")
    shutil.copytree(begun, place / "run")
    child = finish(configuration, place / "run", Fault(log=True))
    assert child.code == 0, child.said
    operations = list(children.operations(place / "run"))
    tally, places = Tally(configuration.about, operations=len(operations)), set()
    for number, _, _ in choose(operations):
        shutil.rmtree(place / "run")
        shutil.copytree(begun, place / "run")
        struck, wrong = strike(configuration, place, action, number, tally)
        if struck is not None:
            tally.struck += 1
            tally.kinds[struck.split(" ")[0]] += 1
            places.add(struck)
        tally.wrong += [f"operation {number}, {struck}: {each}" for each in wrong]
    tally.places = len(places)
    return tally


def strike(
    configuration: Configuration, place: Path, action: str, number: int, tally: Tally
) -> tuple[str | None, list[str]]:
    """Run until the operation that is struck, then continue; the operation and what is wrong."""
    what, error_number, _ = ACTIONS[action]
    folder, begun = place / "run", bool(go_on(place / "run"))
    child = finish(configuration, folder, Fault(what, number, error_number, log=True))
    struck = next(
        (f"{kind} {_general(path)}" for _, kind, path in children.operations(folder)), None
    )
    wrong = _ended_badly(child, action) if struck is not None else []
    resumed = bool(go_on(folder))
    again = finish(configuration, folder)
    if struck is not None:
        done = (
            "finished all the same"
            if child.code == 0
            else "resumed"
            if resumed
            else "started again"
        )
        tally.outcomes[done] += 1
    if again.code != 0:
        wrong.append(f"continued: exit {again.code}: {again.said[-1200:]}")
    else:
        wrong += differences(folder / OUTPUT, place / "undisturbed" / OUTPUT)
        wrong += [f"{name} is left over" for name in stray_files(folder)]
    if begun and not resumed:
        wrong.append("the run was lost")
    return struck, wrong


def _ended_badly(child: children.Child, action: str) -> list[str]:
    """What is wrong with the end of a run that was struck."""
    said = child.said
    if action == "kill":
        return [] if child.code == -9 else [f"not killed, but exit {child.code}"]
    wrong = [f"printed {words!r}: {said[-1500:]}" for words in BAD_WORDS if words in said]
    if child.code not in (0, 1, 2):
        wrong.append(f"exit {child.code}: {said[-1500:]}")
    if child.code and not (re.search("^error[: ]", said, re.M) and "fix: " in said):
        wrong.append(f"no message with a fix: {said[-1500:]}")
    if child.code and action.startswith("full") and not re.search("full|No space left", said):
        wrong.append(f"the message does not name the full disk: {said[-1500:]}")
    return wrong


BAD_WORDS = ("Traceback", "internal error")


def _general(path: str) -> str:
    """A path without what differs from run to run."""
    path = re.sub(r"\.[0-9a-f]{8}\.tmp", ".tmp", path)
    path = re.sub(r"[0-9a-f]{32}", "ID", path)
    return re.sub(r"\d+-[0-9a-f]{8}|step-\d+", "N", path)


if __name__ == "__main__":
    sys.exit(main())
