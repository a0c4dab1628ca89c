"""Processes end with the launcher that started them, and with nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from builders import feature_rows, save_ragged, write_module
from surefit.peers.gone_launcher import RUN_ID

ROOT = str(Path(__file__).resolve().parents[2])
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != RUN_ID},
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": ROOT,
}
FIND = "from surefit.peers.gone_launcher import find_launcher as f; print(getattr(f(), 'pid', 0))"
WORKER = """
import time
from surefit.peers.gone_launcher import follow_launcher
follow_launcher()
print("ready", flush=True)
time.sleep(600)
"""
LAUNCHER = """
import os, subprocess, sys
numbered = {**os.environ, sys.argv[2]: "x"} if len(sys.argv) > 2 else None
shell = ["sh", "-c", "$0 -c \\"$1\\"; true", sys.executable, sys.argv[1]]
subprocess.run(shell, env=numbered, start_new_session=True)
"""


def until(condition: Callable[[], bool], seconds: float) -> bool:
    stop = time.monotonic() + seconds
    while not condition() and time.monotonic() < stop:
        time.sleep(0.1)
    return condition()


@pytest.mark.parametrize(
    ("variables", "shell", "expected"),
    [({RUN_ID: "x"}, False, True), ({RUN_ID: "x"}, True, True), ({"RANK": "0"}, False, False)],
)
def test_the_launcher_is_who_set_the_variables(
    variables: dict[str, str], shell: bool, expected: bool
) -> None:
    command = [sys.executable, "-c", FIND]
    if shell:  # whose end means nothing
        command = ["sh", "-c", '"$@"; true', "sh", *command]
    done = subprocess.run(
        command, env={**ENVIRONMENT, **variables}, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == (os.getpid() if expected else 0)


@pytest.mark.parametrize("launched", [True, False])
def test_a_process_ends_with_its_launcher_only(launched: bool) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, WORKER, *([RUN_ID] if launched else [])],
        env={**ENVIRONMENT, "WORLD_SIZE": "1", "RANK": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    worker = psutil.Process(launcher.pid).children(recursive=True)[-1]
    launcher.kill()
    try:
        ended = until(lambda: not worker.is_running(), 20 if launched else 3)
        assert ended == launched
    finally:
        if worker.is_running():
            worker.kill()
    _, said = launcher.communicate(timeout=20)
    assert (f"The launcher (process {launcher.pid}) has ended" in said) == launched


@pytest.mark.processes
@pytest.mark.parametrize(
    ("by_torchrun", "parallel"), [(False, "ddp"), (False, "fsdp"), (True, "ddp")]
)
def test_a_killed_launcher_leaves_a_saved_run_and_nobody_training(
    tmp_path: Path, by_torchrun: bool, parallel: str
) -> None:
    save_ragged(tmp_path / "data.npz", feature_rows(60))
    model, source = write_module(tmp_path), tmp_path / "net.py"
    slow = "        import time; time.sleep(0.05)\n        hidden ="
    source.write_text(source.read_text().replace("        hidden =", slow))
    train = ["surefit", "train", "--data", "data.npz", "--model", model, "--batch-size", "2"]
    train += ["--max-steps", "100000", "--output", "run", "--set", f"parallel={parallel}"]
    train += ["--set", "rehearse=false", "--set", "eval_every=100000"]
    torchrun = ["torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    torchrun += ["--rdzv-endpoint", "localhost:0", "-m"]
    command = [*torchrun, *train] if by_torchrun else [*train, "--processes", "2"]
    with (tmp_path / "said").open("w") as said:
        launcher = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=tmp_path, env=ENVIRONMENT, stderr=said
        )
    events, workers = tmp_path / "run" / "events.jsonl", []
    try:
        assert until(lambda: events.is_file() and len(events.read_text()) > 400, 200)
        workers = psutil.Process(launcher.pid).children()
        launcher.kill()
        launcher.wait()
        gone = until(lambda: not any(worker.is_running() for worker in workers), 90)
        text = (tmp_path / "said").read_text()
        assert gone, text[-2000:]
    finally:
        for each in (launcher, *workers):
            if each.poll() is None if each is launcher else each.is_running():
                each.kill()
    last = json.loads(events.read_text().splitlines()[-1])["step"]
    assert len(workers) == 2
    assert f"The launcher (process {launcher.pid}) has ended" in text
    assert f"Stopped after step {last}, which is saved" in text
    assert "frame #" not in text
    assert "Traceback" not in text
    saved = [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]
    assert any(str(last) in name for name in saved), saved


@pytest.mark.processes
def test_a_worker_that_is_killed_is_not_called_a_stop(tmp_path: Path) -> None:
    save_ragged(tmp_path / "data.npz", feature_rows(60))
    train = ["surefit", "train", "--data", "data.npz", "--model", write_module(tmp_path)]
    train += ["--batch-size", "2", "--max-steps", "100000", "--output", "run", "--processes", "2"]
    train += ["--set", "rehearse=false", "--set", "eval_every=100000"]
    with (tmp_path / "said").open("w") as said:
        launcher = subprocess.Popen(
            [sys.executable, "-m", *train], cwd=tmp_path, env=ENVIRONMENT, stderr=said
        )
    events = tmp_path / "run" / "events.jsonl"
    try:
        assert until(lambda: events.is_file() and len(events.read_text()) > 400, 200)
        workers = psutil.Process(launcher.pid).children()
        second = next(each for each in workers if each.environ()["RANK"] == "1")
        second.send_signal(signal.SIGKILL)
        assert launcher.wait(90) == 1
    finally:
        launcher.kill()
    text = (tmp_path / "said").read_text()
    assert "Ctrl-C" not in text
    assert "which is then saved" not in text
    assert "Stopped" not in text
    assert "Another process ended or does not answer any more, in step" in text
    assert "last report of Process 1 of host" in text
    assert "Process 1 was ended by SIGKILL" in text
