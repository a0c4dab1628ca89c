"""Break each law by one line and require its test to fail.

Run as a script: `python tests/laws/breaks.py`. For each entry of breaks.diff, the package and the
tests are copied, one line of the copy is changed, and the law's test must then be red; it must be
green on the unchanged copy. Each copy is tested by a fork of this process, one per core, which has
imported what the package imports, and nothing of the package.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis  # noqa: F401
import peft  # noqa: F401
import pyarrow.parquet  # noqa: F401
import pytest
from transformers import BertForSequenceClassification, LlamaForCausalLM  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Break:
    """One changed line, and the law that it breaks."""

    law: int
    file: str
    line: str
    broken: str
    test: str
    """The quickest test of the law that fails then."""

    def test_file(self, folder: Path) -> Path:
        """The tests of the law in a copy of the project."""
        (found,) = (folder / "tests" / "laws").glob(f"test_law_{self.law:02d}_*.py")
        return found


def read_breaks() -> list[Break]:
    """The changes of breaks.diff: law and test, file, the line, and the line that breaks it."""
    text = Path(__file__).with_suffix(".diff").read_text(encoding="utf-8")
    entries = [entry.splitlines() for entry in text.split("\n\n")]
    return [
        Break(int(law[4:].split(":")[0]), file[4:], line[1:], broken[1:], law.split(": ", 1)[1])
        for law, file, line, broken in entries
    ]


BREAKS = read_breaks()


def copy_project(folder: Path) -> None:
    """The package and the tests, without caches."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("surefit", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", folder)


def apply(change: Break, folder: Path) -> None:
    """Change the one line."""
    path = folder / "surefit" / change.file
    text = path.read_text(encoding="utf-8")
    if text.count(change.line) != 1:
        raise SystemExit(f"{change.file} has {text.count(change.line)} lines {change.line!r}")
    path.write_text(text.replace(change.line, change.broken), encoding="utf-8")


def start(change: Break | None, folder: Path) -> int:
    """Fork a process that runs the test of a break, or those of all, on a copy of the project."""
    copy_project(folder)
    if change is not None:
        apply(change, folder)
    if pid := os.fork():
        return pid
    changes = BREAKS if change is None else [change]
    named = {f"{each.test_file(folder)}::{each.test}" for each in changes}
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = str(folder)
    with (folder / "said").open("w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    code = 3
    try:
        code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", *sorted(named)])
    finally:
        sys.stdout.flush()
        os._exit(code)


def main() -> int:
    """Apply every break; 0 if all of them turned their test red, and it was green before."""
    waiting: list[Break | None] = [None, *BREAKS]
    running: dict[int, tuple[Break | None, Path]] = {}
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        while waiting or running:
            if waiting and len(running) < (os.cpu_count() or 1):
                folder = Path(temporary) / str(len(waiting))
                change = waiting.pop(0)
                running[start(change, folder)] = (change, folder)
                continue
            pid, status = os.wait()
            (change, folder), code = running.pop(pid), os.waitstatus_to_exitcode(status)
            good = code == (change is not None)
            failed += not good
            name = f"law {change.law:>2}: {change.line}" if change else "unchanged"
            print(f"{'as it must be' if good else 'WRONG'}: exit code {code}: {name}", flush=True)
            if not good:
                print((folder / "said").read_text(encoding="utf-8")[-2000:])
            shutil.rmtree(folder)
    print(f"{len(BREAKS) + 1 - failed} passed, {failed} failed")
    return 1 if failed or {change.law for change in BREAKS} != {*range(1, 14)} else 0


if __name__ == "__main__":
    sys.exit(main())
