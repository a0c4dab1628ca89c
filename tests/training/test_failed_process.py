"""One of two processes fails, hangs or is killed, or the run is stopped: all end; it resumes."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from builders import feature_rows, run_python, save_ragged, start_python, write_module

pytestmark = pytest.mark.processes
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
TIMEOUT = 300
"""A hang, on a very busy machine; each case takes seconds otherwise."""
IN_STEP_4 = """        import os, signal, time
        self.calls = getattr(self, 'calls', 0) + self.training
        if os.environ.get('RANK') == '1' and self.calls > 9:
            {fault}
"""


def prepare(folder: Path, fault: str) -> list[str]:
    """Write data and a model that does this in step 4; the options to train it with."""
    save_ragged(folder / "data.npz", feature_rows(60))
    model, source = write_module(folder), folder / "net.py"
    lines = IN_STEP_4.format(fault=fault)
    source.write_text(source.read_text().replace("        hidden =", f"{lines}        hidden ="))
    asked = ["--data", "data.npz", "--model", model, "--batch-size", "2", "--max-steps", "5"]
    return [*asked, "--output", "run", "--set", "save_every=2"]


TRAIN = ["-m", "surefit", "train", "--processes", "2"]
UNDER_TORCHRUN = [*TORCHRUN, "-m", "surefit", "train"]


@pytest.mark.parametrize(
    ("fault", "options", "expected"),
    [
        ("raise ValueError('bad luck')", "fsdp", ": Training failed at step 4: .* bad luck"),
        ("torch.empty(2**60, dtype=torch.uint8)", "ddp", ": Training failed .*memory"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "fsdp", " was ended by SIGKILL"),
        ("os._exit(1)", "ddp", " ended with exit code 1"),
    ],
    ids=["module", "memory", "killed", "exit"],
)
def test_a_process_that_fails_is_named_once(
    tmp_path: Path, fault: str, options: str, expected: str
) -> None:
    asked = prepare(tmp_path, fault)
    code, _, said = run_python(tmp_path, *TRAIN, *asked, "--set", f"parallel={options}")
    assert code == 1, said
    errors = re.findall("^error: (.*)$", said, re.MULTILINE)
    assert len(errors) == 1, said
    assert re.match(f"Process 1 of host [^ ]+{expected}", errors[0]), errors
    assert "Traceback" not in said
    if "luck" in fault:
        (tmp_path / "net.py").write_text((tmp_path / "net.py").read_text().replace("> 9", "> 99"))
        code, _, said = run_python(tmp_path, *TRAIN, "--resume", "run", "--trust-code", "net:make")
        assert code == 0, said
        assert "step 3 of 5" in said or "step 5 of 5" in said  # from the checkpoint of step 2


def test_torchrun_names_the_process_and_its_error_as_the_cause(tmp_path: Path) -> None:
    asked = prepare(tmp_path, "raise SystemExit(7)")
    code, _, said = run_python(tmp_path, *UNDER_TORCHRUN, *asked)
    assert code == 1
    assert re.search("(?m)^error: Process 1 of host [^ ]+: SystemExit: 7", said), said
    cause = said.split("Root Cause", 1)[1]
    assert "rank      : 1" in cause
    assert "SystemExit: 7" in cause


def test_a_process_that_hangs_exceeds_the_timeout_of_the_group(tmp_path: Path) -> None:
    asked = prepare(tmp_path, "time.sleep(10_000)")
    code, _, said = run_python(tmp_path, *TRAIN, *asked, "--set", "stall_seconds=20")
    assert code == 1
    assert "Process 1 does not answer" in said, said
    assert "surefit train --resume run" in said


@pytest.mark.parametrize("stop", ["interrupt", "kill the launcher"])
def test_a_stopped_run_is_saved(tmp_path: Path, stop: str) -> None:
    asked = prepare(tmp_path, "open('slow', 'w').close(); time.sleep(0.2)")
    launcher = start_python(tmp_path, *TRAIN, *asked, "--max-steps", "2000")
    until = time.monotonic() + TIMEOUT
    while not (tmp_path / "slow").exists():
        assert launcher.poll() is None, launcher.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    workers = psutil.Process(launcher.pid).children()
    launcher.send_signal(signal.SIGINT if stop == "interrupt" else signal.SIGKILL)
    said = launcher.communicate(timeout=TIMEOUT)[1]
    assert launcher.returncode == (130 if stop == "interrupt" else -signal.SIGKILL), said
    psutil.wait_procs(workers, timeout=TIMEOUT)
    assert not [each for each in workers if each.is_running()]
    steps = (tmp_path / "run" / "events.jsonl").read_text().count('"event": "step"')
    assert (tmp_path / "run" / "checkpoints" / f"step-{steps:08d}").is_dir(), said
    assert f"Stopped after step {steps}, which is saved." in said


SCRIPT = """
import os
import numpy as np
import surefit
from training.sharded_cases import Chosen, Live

class Reading(Live):
    def __getitem__(self, place):
        if os.environ["RANK"] == "1" and os.path.exists("begun"):
            raise OSError(5, "Input/output error", "rows/17.bin")
        return {**super().__getitem__(place), "noise": np.float32(np.random.rand())}

def hear(event):
    if event["event"] == "step" and event["step"] == 2:
        open("begun", "w").close()

surefit.train(data=Reading(), model=Chosen(), batch_size=2, max_steps=8, save_every=1,
              output="run", callbacks=(hear,))
"""


def test_a_row_that_one_process_cannot_read(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    code, _, said = run_python(tmp_path, *TORCHRUN, "script.py")
    assert code == 1
    assert re.search("Process 1 of host .*Input/output error", said.split("Root Cause", 1)[1])
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))
