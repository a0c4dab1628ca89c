"""Fuzzing of every parser of foreign text and bytes, in this process and without commands.

    python tests/reliability/fuzz.py --minutes 60            # all targets in turn
    python tests/reliability/fuzz.py --cases 20 --seed 1     # so many cases of each target
    python tests/reliability/fuzz.py --only encoder.json --first 1234 --cases 1 --debug

A case is a good file after a few changes, which its target and its number alone decide: bytes are
cut, overwritten and repeated, values of JSON and YAML replaced, dropped and renamed. The target
reads it as commands do. Anything but a result or an error of surefit is a failure: another
exception, a crash, more than 20 s of CPU. Cases run in forks under a limit of memory.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import mmap
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reliability.children import scratch_folder
from reliability.fuzz_targets import Target, make_targets

from surefit.errors import SurefitError
from surefit.printable import printable

CASE_SECONDS = 20
"""Of CPU time; a case that waits may take six times as long."""
MEMORY_BYTES = 3 << 30
"""How much a batch may allocate beyond what the imports hold."""
TIMERS = (
    (signal.SIGPROF, signal.ITIMER_PROF, CASE_SECONDS),
    (signal.SIGALRM, signal.ITIMER_REAL, 6 * CASE_SECONDS),
)
BATCH_SECONDS = 6.0
"""Of one target in its turn, with --minutes."""
PIECES = (
    *(b"\0", b"\n", b"\r", b'"', b",", b"[", b"{", b"}", b"]", b":", b"\\", b"-", b"\x1b[2J"),
    *(b"\xff", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"9" * 30, b"1e999"),
    *(b"NaN", b"null", b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"[" * 200, b"../" * 9),
    *(b"{{", b"{%", b"%}", b"(?:a+)+$", b"\x1f\x8b", b"://", b"@", b"?", b"#", b"%00", b"  "),
)
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 7, 2**31, 2**63, 10**30, 1.5, 1e308, float("nan"), float("inf")),
    *("", "x", "\x1b[2J\n", "__class__", "../../x", "os:getcwd", "\0", "\ud800", "a" * 5000, "[(*"),
    *("(.*.*.*.*.*.*.*.*.*.*.*)*x$", "{{ 7 ** 9 }}", "file:///etc/passwd", "no/such", "float8"),
    *([], [[]], [None], {}, {"": {}}, {"step": "x"}, ["a", 1, None], [[0] * 50] * 2, {"x": [{}]}),
)
NAMES = ("", "step", "\x1b[2J", "format_version", "__proto__", "x" * 300, "0", "a.b", "\ud800")


def damaged(rng: random.Random, good: bytes) -> bytes:
    """The bytes after one to four changes: cut, overwritten, repeated, or with a piece inside."""
    data = bytearray(good)
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, min(len(data), rng.choice((64, 1024, len(data)))))
        end = min(len(data), at + rng.randint(0, 12))
        kind = rng.choice(("cut", "set", "flip", "drop", "repeat", "insert", "insert"))
        if kind == "cut":
            del data[at:]
        elif kind == "set":
            data[at:end] = rng.randbytes(end - at)
        elif kind == "flip" and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == "drop":
            del data[at:end]
        elif kind == "repeat":
            data[at:at] = data[at:end] * rng.randint(1, 20)
        else:
            data[at:at] = rng.choice(PIECES)
    return bytes(data)


def altered(rng: random.Random, value: Any) -> Any:
    """The value with some parts replaced, removed or renamed."""
    value = copy.deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        value = _alter(rng, value)
    return value


def _alter(rng: random.Random, value: Any) -> Any:
    inside = isinstance(value, dict | list) and len(value) > 0
    if not inside or rng.random() < 0.1:
        return copy.deepcopy(rng.choice(ODD))
    keys = [*value] if isinstance(value, dict) else range(len(value))
    key = rng.choice(keys)
    kind = rng.choice(("inside", "inside", "inside", "drop", "rename", "add"))
    if kind == "inside" or isinstance(value, list):
        value[key] = _alter(rng, value[key])
    elif kind == "drop":
        del value[key]
    elif kind == "rename":
        value[rng.choice(NAMES)] = value.pop(key)
    else:
        value[rng.choice((*keys, *NAMES))] = copy.deepcopy(rng.choice(ODD))
    return value


def made_by(target: Target, number: int, seed: int) -> bytes:
    """The input of a case."""
    rng = random.Random(f"{seed} {target.name} {number}")
    if target.form == "bytes" or rng.random() < 0.3:
        return damaged(rng, target.good)
    if target.form == "yaml":
        return yaml.safe_dump(_plain(altered(rng, yaml.safe_load(target.good)))).encode()
    lines = target.good.splitlines() if target.form == "jsonl" else [target.good]
    chosen = rng.randrange(len(lines))
    lines[chosen] = json.dumps(altered(rng, json.loads(lines[chosen]))).encode()
    return b"\n".join(lines)


def _plain(value: Any) -> Any:
    """The value without what YAML cannot be written with."""
    if isinstance(value, dict):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


class HangError(BaseException):
    """A case that takes too long; no handler of `Exception` may catch it."""


def _hang(number: int, frame: FrameType | None) -> None:
    raise HangError


def _disarm() -> None:
    for _, timer, _ in TIMERS:
        signal.setitimer(timer, 0)


def failure_of(target: Target, number: int, seed: int) -> str | None:
    """What is wrong with a case: type, message and where it was raised; None if nothing is."""
    content = made_by(target, number, seed)
    for sent, timer, seconds in TIMERS:
        signal.signal(sent, _hang)
        signal.setitimer(timer, seconds)
    try:
        target.read(content)
    except SurefitError as error:
        _disarm()
        return None if error.message else "an error without a message"
    except BaseException as error:
        _disarm()
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if f"{os.sep}surefit{os.sep}" in frame.filename]
        inside = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in own[:-4:-1])
        text = (str(error).strip() or "-").splitlines()[0]
        return f"{type(error).__name__}: {text:.200} [{inside}]"
    finally:
        _disarm()
    return None


@dataclass
class Batch:
    """What a batch of one target found."""

    done: int
    failures: dict[int, str]


def run_batch(
    target: Target, numbers: Sequence[int], seed: int, until: float, debug: bool = False
) -> Batch:
    """Run cases in a fork, until a time; a crash is a failure of the case that it befell."""
    shared = mmap.mmap(-1, 8)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _bound(debug)
        with os.fdopen(writing, "w") as out:
            for number in numbers:
                if time.monotonic() > until:
                    break
                shared[:] = number.to_bytes(8, "little")
                fault = failure_of(target, number, seed)
                out.write(json.dumps([number, fault]) + "\n")
                out.flush()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answers:
        results = dict(json.loads(line) for line in answers if line.endswith("]\n"))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    failures = {number: fault for number, fault in results.items() if fault}
    if code:
        last = int.from_bytes(shared[:], "little")
        failures[last] = f"the process ended with {code}"
        results[last] = failures[last]
    shutil.rmtree(target.folder / "cache", ignore_errors=True)
    return Batch(len(results), failures)


def _bound(debug: bool) -> None:
    """In the fork: take on limits, and print nothing."""
    if not debug:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def rounds(
    targets: Sequence[Target], options: argparse.Namespace
) -> Iterator[tuple[Target, Batch]]:
    """Run the targets in turn: so many cases of each, or for so many minutes."""
    first, started = dict.fromkeys(targets, options.first), time.monotonic()
    while True:
        for target in targets:
            spent = time.monotonic() - started
            if options.minutes and spent > options.minutes * 60:
                return
            until = time.monotonic() + (BATCH_SECONDS if options.minutes else 1e9)
            count = 100_000 if options.minutes else options.cases
            numbers = range(first[target], first[target] + count)
            batch = run_batch(target, numbers, options.seed, until, options.debug)
            first[target] += batch.done
            yield target, batch
        if not options.minutes:
            return


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz every parser of foreign text.")
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--cases", type=int, default=20, help="of each target, without --minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--only", nargs="*", default=[""], help="targets whose name contains one")
    parser.add_argument("--debug", action="store_true", help="show what is printed and the inputs")
    options = parser.parse_args()
    with scratch_folder("fuzz", in_memory=True) as folder, contextlib.ExitStack():
        targets = [t for t in make_targets(folder) if any(word in t.name for word in options.only)]
        counts = dict.fromkeys((target.name for target in targets), 0)
        known: dict[str, int] = {}
        started = time.monotonic()
        for target, batch in rounds(targets, options):
            counts[target.name] += batch.done
            for number, fault in batch.failures.items():
                place = f"{target.name}: {fault.partition(':')[0]} {fault.rpartition('[')[2]}"
                known[place] = known.get(place, 0) + 1
                if known[place] == 1:
                    print(f"FAILED  {target.name} --first {number}: {printable(fault)}", flush=True)
                if options.debug:
                    print(made_by(target, number, options.seed)[:2000])
        minutes = (time.monotonic() - started) / 60
        for name, count in counts.items():
            print(f"{name:<40}{count:>9,}")
    total = sum(counts.values())
    print(
        f"{total:,} cases of {len(targets)} targets in {minutes:.1f} minutes, {len(known)} kinds "
        f"of failure (seed {options.seed})"
    )
    return 1 if known else 0


if __name__ == "__main__":
    sys.exit(main())
