"""Faults of disks, files, workers, data and clocks in real runs, one at a time.

    python tests/reliability/injected_faults.py [--only WORDS] [--seed 0] [--share 1.0]

Each fault ends with a message, or the run goes on; there is never a traceback. When its cause is
gone, the run is continued and must equal the undisturbed run. `--share` takes a seeded part.
"""

from __future__ import annotations

import argparse
import errno
import os
import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import children
from cache_damage import KINDS, damage
from children import Child, Fault
from configurations import CONFIGURATIONS, OUTPUT, Configuration, continued, finish, prepare

FEATURES, TEXT, WORKERS = (CONFIGURATIONS[name] for name in ("features", "lora", "workers"))
YEAR = 365 * 24 * 3600


@dataclass
class Case:
    """A folder with a run, and what is wrong so far."""

    configuration: Configuration
    folder: Path
    seed: int
    wrong: list[str] = field(default_factory=list)

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return self.folder / OUTPUT

    def require(self, child: Child, *codes: int, words: str = "") -> None:
        """The command ended with one of these codes, with a message, and without a traceback."""
        said = child.said
        self.wrong += children.unfit_messages(child, *codes)
        if words and not re.search(words, said):
            self.wrong.append(f"{words!r} is not in: {said[-1500:]}")

    def half_trained(self) -> None:
        """The run, killed after step 8: step 3 is saved, and step 6 is being saved."""
        killed = Fault("kill", after_events=9)
        child = children.run(self.folder, self.configuration.arguments, killed)
        if child.code != -9:
            self.wrong.append(f"was not killed: {child.code}: {child.said[-1500:]}")

    def begin(self) -> Child:
        """The run, in the middle of training; it waits for `go_on`."""
        waits = Fault(after_events=3)
        child = children.start(self.folder, self.configuration.arguments, waits)
        events = self.run / "events.jsonl"
        while child.poll() is None:
            if events.exists() and events.read_bytes().count(b"\n") >= 3:
                break
            time.sleep(0.01)
        return child


def damaged_checkpoint(name: str, kind: str, case: Case) -> None:
    case.half_trained()
    newest = max((case.run / "checkpoints").glob("step-????????"))
    damage(newest / name, kind, case.seed)
    case.require(finish(case.configuration, case.folder), 0, words=f"{newest.name} is damaged")
    for left in (case.run / "checkpoints").glob("*.damaged"):
        shutil.rmtree(left)


def damaged_cache(kind: str, case: Case) -> None:
    case.half_trained()
    files = sorted(path for path in (case.folder / "cache").rglob("*") if path.is_file())
    damage(random.Random(case.seed).choice(files), kind, case.seed)
    case.require(finish(case.configuration, case.folder), 0)


def damaged_shard(kind: str, case: Case) -> None:
    case.half_trained()
    files = sorted((case.folder / "cache" / "encoded").glob("*/*.values"))
    damage(random.Random(case.seed).choice(files), kind, case.seed)
    case.require(finish(case.configuration, case.folder), 0, words="was damaged")


def truncated_while_training(case: Case) -> None:
    child = case.begin()
    for path in (case.folder / "cache" / "encoded").rglob("*.values"):
        os.truncate(path, 0)
    child.go_on()
    case.require(child, 0, 1)
    case.require(finish(case.configuration, case.folder), 0)


def vanished_data_while_training(case: Case) -> None:
    child = case.begin()
    data = case.folder / "data.npz"
    data.rename(case.folder / "elsewhere.npz")
    child.go_on()
    case.require(child, 0, 1)
    (case.folder / "elsewhere.npz").rename(data)


def vanished_data_before_resuming(case: Case) -> None:
    case.half_trained()
    data = case.folder / "data.npz"
    aside = data.rename(case.folder.with_name("aside.npz"))
    case.require(finish(case.configuration, case.folder), 1, 2, words=re.escape("data.npz"))
    shutil.move(aside, data)


def vanished_cache_while_training(case: Case) -> None:
    child = case.begin()
    shutil.rmtree(case.folder / "cache")
    child.go_on()
    case.require(child, 0, 1)


def vanished_cache_before_resuming(case: Case) -> None:
    case.half_trained()
    shutil.rmtree(case.folder / "cache")


def killed_worker(case: Case) -> None:
    child = case.begin()
    listed = Path(f"/proc/{child.pids[0]}/task/{child.pids[0]}/children").read_text().split()
    os.kill(int(listed[-1]), signal.SIGKILL)
    child.go_on()
    case.require(child, 0, words="worker process that makes batches has ended")


def killed_group(number: int, case: Case) -> None:
    child = case.begin()
    os.killpg(child.pids[0], number)
    child.go_on()
    if child.code != 130 or "Traceback" in child.said:
        case.wrong.append(f"exit {child.code}: {child.said[-1500:]}")


def jumping_clock(case: Case) -> None:
    fault = Fault(clock_seconds=YEAR)
    case.require(finish(case.configuration, case.folder, fault), 0)


def jumping_clock_after_a_kill(case: Case) -> None:
    case.half_trained()
    jumping_clock(case)


def times_in_the_future(years: float, case: Case) -> None:
    case.half_trained()
    when = time.time() + years * YEAR
    for path in case.folder.rglob("*"):
        os.utime(path, (when, when))


def forbidden(inside: str, number: int, case: Case) -> None:
    fault = Fault("fail", 1, number, inside=inside)
    case.require(finish(case.configuration, case.folder, fault), 1, 2)


def forbidden_on_resume(inside: str, number: int, case: Case) -> None:
    case.half_trained()
    forbidden(inside, number, case)


FILES = ("model-00001-of-00001.safetensors", "optimizer-00001-of-00001.safetensors")
FILES += ("index.json", "state.json", "digests.json")
ERRORS = {"read-only": errno.EROFS, "full": errno.ENOSPC, "not permitted": errno.EACCES}


def faults() -> Iterator[tuple[str, Configuration, Callable[[Case], None]]]:
    """Every fault: its name, the run it befalls, and what is done."""
    for kind in KINDS:
        for name in FILES:
            yield f"checkpoint: {kind} in {name}", FEATURES, partial(damaged_checkpoint, name, kind)
        for number in (1, 2, 3):
            yield f"cache, file {number}: {kind}", TEXT, partial(damaged_cache, kind)
        yield f"encoded rows: {kind}", FEATURES, partial(damaged_shard, kind)
    yield "encoded rows truncated while training", FEATURES, truncated_while_training
    yield "data vanish while training", FEATURES, vanished_data_while_training
    yield "data vanish before resuming", FEATURES, vanished_data_before_resuming
    yield "cache vanishes while training", TEXT, vanished_cache_while_training
    yield "cache vanishes before resuming", TEXT, vanished_cache_before_resuming
    yield "a worker is killed", WORKERS, killed_worker
    yield "SIGTERM to all processes", WORKERS, partial(killed_group, signal.SIGTERM)
    yield "SIGINT to all processes", WORKERS, partial(killed_group, signal.SIGINT)
    yield "the clock jumps by a year", FEATURES, jumping_clock
    yield "the clock jumps by a year after a kill", TEXT, jumping_clock_after_a_kill
    for years in (1, -5):
        yield f"files are {years} years in the future", TEXT, partial(times_in_the_future, years)
    for words, number in ERRORS.items():
        for inside in (OUTPUT, "cache"):
            yield f"{inside}: {words} from the start", FEATURES, partial(forbidden, inside, number)
            on_resume = partial(forbidden_on_resume, inside, number)
            yield f"{inside}: {words} on resume", FEATURES, on_resume


def main() -> int:
    """Inject, continue, compare; 1 if anything was wrong."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--only", default="", help="faults whose name has these words")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--share", type=float, default=1.0)
    given = arguments.parse_args()
    children.enter()
    chosen = [each for each in faults() if given.only in each[0]]
    draw = random.Random(given.seed)
    chosen = [each for each in chosen if given.share >= 1 or draw.random() < given.share]
    done: dict[str, list[str]] = {}
    with children.scratch_folder("faults") as place:
        for number, (name, configuration, inject) in enumerate(chosen):
            done[name] = injected(configuration, place, inject, given.seed * 1000 + number)
            print(f"{'wrong' if done[name] else 'ok':6}{name}", *done[name], sep="\n  ", flush=True)
    wrong = sum(bool(each) for each in done.values())
    print(f"{len(done)} faults, seed {given.seed}: {wrong} wrong")
    return min(wrong, 1)


def injected(
    configuration: Configuration, place: Path, inject: Callable[[Case], None], seed: int
) -> list[str]:
    """What was wrong with a run that a fault befell, and that was then continued."""
    folder, undisturbed = place / "run", place / f"undisturbed-{hash(configuration)}"
    if not undisturbed.exists():
        child = children.run(prepare(folder), configuration.arguments)
        assert child.code == 0, child.said
        folder.rename(undisturbed)
    case = Case(configuration, prepare(folder), seed)
    inject(case)
    case.wrong += continued(configuration, folder, undisturbed)
    shutil.rmtree(folder)
    return case.wrong


if __name__ == "__main__":
    sys.exit(main())
