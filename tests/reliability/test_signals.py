"""Real signals to a real run with worker processes: to all of them, to one, to a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builders import feature_rows, save_ragged, write_module
from surefit.run.events import read_events
from surefit.run.run_folder import open_run


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in listed.split()]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["group", "main", "worker", "killed worker"])
def test_a_signal_stops_after_the_step_and_saves(tmp_path: Path, target: str) -> None:
    save_ragged(tmp_path / "data.npz", feature_rows(400))
    arguments = ["--data", "data.npz", "--model", write_module(tmp_path, dropout=0.2)]
    arguments += ["--epochs", "40", "--batch-size", "4", "--output", "run", "--set", "workers=2"]
    arguments += ["--max-steps", "60"] if target == "killed worker" else []
    process = subprocess.Popen(
        [sys.executable, "-m", "surefit", "train", *arguments],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300
    while len(read_events(tmp_path / "run" / "events.jsonl")) < 5:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    if target == "group":
        os.killpg(process.pid, signal.SIGTERM)
    elif target == "main":
        process.send_signal(signal.SIGTERM)
    else:
        sent = signal.SIGTERM if target == "worker" else signal.SIGKILL
        os.kill(children(process.pid)[-1], sent)
    _, said = process.communicate(timeout=300)
    run = open_run(tmp_path / "run")
    assert "Traceback" not in said
    if target == "killed worker":  # the same batches are made without it
        assert process.returncode == 0, said
        assert "worker process that makes batches has ended" in said
    else:
        assert process.returncode == 130, said
        assert "which is saved" in said
    assert run.saved_step == run.history[-1]["step"]
    assert not (tmp_path / "run" / ".lock").exists()
