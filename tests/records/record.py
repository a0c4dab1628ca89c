"""Records of what must not change: `check` of every fault, a run per task, commands of the pages.

    python tests/records/record.py --write      # all of them anew: minutes
    python tests/records/record.py --compare    # print each difference; exit 1 if there is one

`--only checks|runs|commands`, `--sample N` (a fixed sample of the checks) and `--name WORDS` (those
checks) narrow either. A check must also come out as its case in tests/faults says. A commit that
changes a record says so, and why. Weights and metrics are compared where CPU, torch and
transformers are those of the record, losses everywhere.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import math
import os
import platform
import random
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zlib import crc32

HERE = Path(__file__).parent
RELATIVE = 5e-3
"""Four digits are kept; CPUs add in different orders."""
Record = dict[str, Any]
Chosen = int | str | None
"""Of the checks: the size of a fixed sample, or words of the name."""


def check_record(outcome: Any) -> Record:
    """What `check --json` found: no prose, no notes."""
    found = [
        [each["code"], each["severity"], *(each["where"].get(k) for k in ("row", "line", "column"))]
        for each in outcome.findings
        if each["severity"] != "info"
    ]
    answer = outcome.answer
    return {
        "exit": outcome.exit_code,
        "findings": sorted(found, key=json.dumps),
        "ledger": answer.get("ledger"),
        "columns": answer.get("columns"),
    }


def run_record(run: Path) -> Record:
    """The losses, metrics and weights of a run's folder."""
    events = [json.loads(line) for line in (run / "events.jsonl").open(encoding="utf-8")]
    return {
        "losses": [_rounded(each["loss"]) for each in events if each["event"] == "step"],
        "metrics": [_rounded(each["metrics"]) for each in events if each["event"] == "eval"],
        "weights": _digest(run / "model"),
        "machine": machine(),
    }


def _rounded(value: Any) -> Any:
    """Numbers with four digits, in whatever holds them."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


def _digest(model: Path) -> str:
    """One digest of all tensors in a folder, by name."""
    from safetensors import safe_open

    digest = hashlib.sha256()
    for path in sorted(model.rglob("*.safetensors")):
        with safe_open(path, "pt") as tensors:
            for name in sorted(tensors.keys()):
                digest.update(name.encode() + tensors.get_tensor(name).numpy().tobytes())
    return digest.hexdigest()[:16]


@cache
def machine() -> str:
    """What decides the last bits of a result: the CPU, torch and transformers."""
    try:
        cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        cpu = [platform.machine(), platform.processor()]
    known = [line for line in cpu if line.startswith(("model name", "flags", "Features"))]
    parts = [*known, version("torch"), version("transformers")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def make_checks(chosen: Chosen) -> Iterator[tuple[str, Record]]:
    """`check` of every fault and healthy case, each in a folder of its own; what of it is wrong."""
    import torch

    from faults.case import run
    from faults.every import FAULTS, HEALTHY, USAGE
    from faults.pasted import wrong_options
    from surefit.checks.half_precision_trial import why_not
    from surefit.plan import rate_test

    rate_test.FREE_SECONDS = 120.0  # the rate is tried however slow the machine is
    with tempfile.TemporaryDirectory() as cache_folder:
        os.environ["SUREFIT_CACHE"] = os.environ["XDG_STATE_HOME"] = cache_folder
        cases = [case for cases in (*FAULTS.values(), USAGE, HEALTHY) for case in cases]
        for case in _chosen(cases, chosen):
            if case.needs is not None and why_not(case.needs) is not None:
                continue
            random.seed(12345)
            torch.manual_seed(12345)
            with tempfile.TemporaryDirectory() as folder:
                outcome = run(case, Path(folder))
            unknown = [each for found in outcome.findings for each in wrong_options(found["fix"])]
            wrong = {"wrong": outcome.complaint(case), "unknown options": unknown}
            yield (
                case.name,
                check_record(outcome) | {key: each for key, each in wrong.items() if each},
            )


def _chosen(cases: list[Any], chosen: Chosen) -> list[Any]:
    """Cases by name, or a fixed sample that does not depend on their order."""
    if isinstance(chosen, str):
        return [case for case in cases if chosen in case.name]
    return sorted(cases, key=lambda case: crc32(case.name.encode()))[:chosen]


def make_runs(chosen: Chosen) -> Iterator[tuple[str, Record]]:
    """Train each task for a few steps, as tests/tasks/test_after_training.py does."""
    from task_runs import RUNS, train_custom

    from surefit.cli import run as command

    before = Path.cwd()
    with tempfile.TemporaryDirectory() as base:
        os.environ["SUREFIT_CACHE"] = os.environ["XDG_STATE_HOME"] = f"{base}/cache"
        for each in RUNS:
            folder = Path(base, each.task)
            folder.mkdir()
            each.write(folder)
            os.chdir(folder)
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                code = command(["train", *each.arguments(), "--output", "run"])
            os.chdir(before)
            if code != 0:
                raise SystemExit(f"the run of {each.task} failed: {printed.getvalue()}")
            yield each.task, run_record(folder / "run")
        train_custom(f"{base}/custom")
        yield "custom", run_record(Path(base, "custom"))


def make_commands(chosen: Chosen) -> Iterator[tuple[str, Record]]:
    """The commands that each page shows."""
    from test_docs import PAGES, blocks

    for page in PAGES:
        shown = [
            shlex.join(arguments)
            for block in blocks(page)
            if block.kind in ("console", "bash")
            for arguments, _ in block.commands()
        ]
        if shown:
            yield page.name, {"commands": shown}


MAKERS: dict[str, Callable[[Chosen], Iterator[tuple[str, Record]]]] = {
    "checks": make_checks,
    "runs": make_runs,
    "commands": make_commands,
}


@cache
def recorded(kind: str) -> dict[str, Record]:
    """The stored records of a kind, by name."""
    with (HERE / f"{kind}.jsonl").open(encoding="utf-8") as file:
        return {record.pop("name"): record for record in map(json.loads, file)}


def differences(kind: str, name: str, got: Record) -> list[str]:
    """Each value that is not as recorded."""
    expected = recorded(kind).get(name)
    if expected is None:
        return [f"{kind}: {name} has no record"]
    if kind == "runs":
        return [f"{kind}: {name}: {each}" for each in _run_differences(expected, got)]
    return [
        f"{kind}: {name}: {key} was {json.dumps(expected.get(key))}, is {json.dumps(got.get(key))}"
        for key in expected.keys() | got.keys()
        if expected.get(key) != got.get(key)
    ]


def _run_differences(expected: Record, got: Record) -> Iterator[str]:
    same_machine = expected["machine"] == got["machine"]
    if same_machine and expected["weights"] != got["weights"]:
        yield f"weights were {expected['weights']}, are {got['weights']}"
    was, now = ([*run["losses"], *(e["loss"] for e in run["metrics"])] for run in (expected, got))
    if len(was) != len(now) or not all(map(_close, was, now)):
        yield f"losses were {was}, are {now}"
    if [sorted(e) for e in expected["metrics"]] != [sorted(e) for e in got["metrics"]]:
        yield "the names of the metrics are others"
    elif same_machine and expected["metrics"] != got["metrics"]:  # of few rows: ties are close
        yield f"metrics were {expected['metrics']}, are {got['metrics']}"


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=RELATIVE, abs_tol=1e-4)


def quick_differences(name: str, got: Record) -> list[str]:
    """As `differences` of a plan that may have ended early: nothing beyond the record."""
    expected = recorded("checks").get(name)
    if expected is None:
        return [f"checks: {name} has no record"]
    beyond = [each for each in got["findings"] if each not in expected["findings"]]
    return [f"checks: {name}: {each} is not recorded" for each in beyond]


def write(kind: str) -> None:
    """Make the records of a kind anew, sorted by name, one line each."""
    made = dict(MAKERS[kind](None))
    lines = [json.dumps({"name": name, **made[name]}, sort_keys=True) for name in sorted(made)]
    (HERE / f"{kind}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def compare(kind: str, chosen: Chosen) -> list[str]:
    """Print and return every difference of a kind."""
    found, seen = [], set()
    for name, record in MAKERS[kind](chosen):
        seen.add(name)
        for line in differences(kind, name, record):
            print(line, flush=True)
            found.append(line)
    gone = set() if chosen is not None else recorded(kind).keys() - seen
    for name in sorted(gone):
        found.append(f"{kind}: {name} is recorded and no longer there")
        print(found[-1])
    print(f"{kind}: {len(seen)} compared, {len(found)} differences", flush=True)
    return found


def main() -> int:
    """Write or compare the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true")
    action.add_argument("--compare", action="store_true")
    parser.add_argument("--only", choices=[*MAKERS])
    parser.add_argument("--sample", type=int)
    parser.add_argument("--name")
    asked = parser.parse_args()
    kinds = ["checks"] if asked.name else [asked.only] if asked.only else [*MAKERS]
    chosen = asked.name or asked.sample
    if asked.write:
        for kind in kinds:
            write(kind)
        return 0
    return 1 if [line for kind in kinds for line in compare(kind, chosen)] else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent)]
    sys.exit(main())
