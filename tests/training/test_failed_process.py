"""An error in one of two processes: the first reports it, both end soon, and the run resumes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builders import feature_rows, save_ragged, write_module

pytestmark = pytest.mark.processes
TESTS = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
ENVIRONMENT["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parent)])
TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
LAUNCHES = {
    "surefit": (["surefit", "train"], ["--processes", "2"]),
    "torchrun": ([*TORCHRUN, "-m", "surefit", "train"], []),
}
END_SECONDS = 60.0
"""From the error to the end of the command, on a very busy machine; a stall is five minutes."""
FAULTS = {
    "module": "raise ValueError('bad luck')",
    "memory": "torch.empty(2**60, dtype=torch.uint8)",
    "exit": "raise SystemExit(7)",
}
FAIL = """        import os, time
        self.calls = getattr(self, 'calls', 0) + self.training
        if os.environ.get('RANK') == '1' and self.calls > 9:
            open('failed_at', 'w').write(str(time.time()))
            {fault}
"""


def launch(folder: Path, command: list[str]) -> tuple[int, str, float]:
    """Exit code, stderr, and how long the command lasted after the error."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    mark = folder / "failed_at"
    lasted = time.time() - float(mark.read_text()) if mark.is_file() else 0.0
    return done.returncode, done.stderr, lasted


@pytest.mark.parametrize(
    ("fault", "parallel", "by", "expected"),
    [
        ("module", "fsdp", "surefit", "Training failed at step 4: ValueError: bad luck"),
        ("module", "ddp", "torchrun", "Training failed at step 4: ValueError: bad luck"),
        ("memory", "fsdp", "torchrun", "Training failed at step 4: RuntimeError: .*memory"),
        ("exit", "ddp", "surefit", "SystemExit: 7"),
    ],
)
def test_an_error_of_one_process_is_reported_by_the_first(
    tmp_path: Path, fault: str, parallel: str, by: str, expected: str
) -> None:
    save_ragged(tmp_path / "data.npz", feature_rows(60))
    model, source = write_module(tmp_path), tmp_path / "net.py"
    plain = source.read_text()
    lines = FAIL.format(fault=FAULTS[fault])
    source.write_text(plain.replace("        hidden =", f"{lines}        hidden ="))
    start, options = LAUNCHES[by]
    asked = ["--data", "data.npz", "--model", model, "--batch-size", "2", "--max-steps", "5"]
    asked += ["--output", "run", "--set", "save_every=2", "--set", f"parallel={parallel}"]
    code, said, lasted = launch(tmp_path, ["-m", *start, *asked, *options])
    assert code == 1, said
    assert lasted < END_SECONDS, said
    errors = re.findall("^error: (.*)$", said, re.MULTILINE)
    assert len(errors) == 1, said  # process 0 alone
    assert re.fullmatch(f"Process 1 of host [^ ]+: {expected}.*", errors[0]), errors
    assert "go on from the latest checkpoint: surefit train --resume run" in said
    assert "Traceback" not in said.split("elastic", 1)[0]  # torchrun prints its own
    assert "stopping after this step" not in said
    if fault != "module":
        return
    source.write_text(plain)
    (tmp_path / "failed_at").unlink()
    resuming = ["--resume", "run", "--trust-code", model, "--processes", "2"]
    code, said, _ = launch(tmp_path, ["-m", "surefit", "train", *resuming])
    assert code == 0, said
    assert "step 3 of 5" in said or "step 5 of 5" in said


SCRIPT = """
import os, sys, time
import numpy as np
import surefit
import sharded_cases
from sharded_cases import Chosen, Live

kind, parallel, folder = sys.argv[1:]
rank = os.environ["RANK"]

def fail(error):
    open("failed_at", "w").write(str(time.time()))
    raise error

class Reading(Live):
    reads = 0
    def __getitem__(self, place):
        self.reads += 1
        if kind == "row" and rank == "1" and os.path.exists("begun"):
            fail(OSError(5, "Input/output error", "rows/17.bin"))
        return {**super().__getitem__(place), "noise": np.float32(np.random.rand())}

class Hits:
    calls = 0
    def update(self, predictions, labels):
        if kind == "metric" and rank == "1" and os.path.exists("begun"):
            fail(ZeroDivisionError("no rows"))
    def compute(self):
        return 1.0
    def reset(self):
        pass

def hear(event):
    if event["event"] == "step" and event["step"] == 2:
        open("begun", "w").close()
        if kind == "callback":
            fail(KeyError("wandb"))

surefit.train(data=Reading(), model=Chosen(), batch_size=2, max_steps=8, save_every=1, eval_every=4,
              parallel=parallel, output=folder, callbacks=(hear,), metrics={"hits": Hits})
"""


@pytest.mark.parametrize(
    ("kind", "parallel", "expected"),
    [
        ("row", "ddp", "Process 1 of host .*Input/output error"),
        ("metric", "fsdp", "Process 1 of host .*ZeroDivisionError: no rows"),
        ("callback", "fsdp", "KeyError: 'wandb'"),
    ],
)
def test_errors_of_data_metrics_and_callbacks(
    tmp_path: Path, kind: str, parallel: str, expected: str
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    code, said, lasted = launch(tmp_path, ["-m", *TORCHRUN, "script.py", kind, parallel, "run"])
    assert code == 1
    assert lasted < END_SECONDS
    assert re.search(expected, said), said
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
