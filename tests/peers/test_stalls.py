"""Real processes that stop, lock up or are merely slow, and those that wait for them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from peer_processes import start_two

from builders import feature_rows, save_ragged, write_module

pytestmark = pytest.mark.processes
LIMIT_SECONDS = 4
PEER = """
import os, signal, sys, threading, time
from datetime import timedelta
import torch
from torch import distributed
from surefit.peers.signs_of_life import NOTES
from surefit.processes import gather, set_stall_seconds, watched_run

def stop():
    os.kill(os.getpid(), signal.SIGSTOP)

def lock():
    taken = threading.Lock()
    taken.acquire()
    taken.acquire()

def fifo():  # as a file system that hangs
    os.mkfifo("pipe")
    open("pipe").read()

def compute():
    end = time.monotonic() + 3 * LIMIT
    while time.monotonic() < end:
        sum(range(1000))

def part():  # collectives that do not match: both wait
    distributed.barrier(distributed.new_group([0, 1], timeout=timedelta(days=1)))
    time.sleep(0.1)
    distributed.recv(torch.ones(1), src=0)

LIMIT, kind, culprit = float(sys.argv[1]), sys.argv[2], sys.argv[3]
set_stall_seconds(LIMIT)
with watched_run("runs/here"):
    gather(0)
    NOTES.note_step(7)
    if os.environ["RANK"] == culprit:
        globals()[kind]()
    elif kind == "part":
        distributed.barrier(distributed.new_group([0, 1], timeout=timedelta(days=1)))
    print("met", gather(0))
"""


def meet(folder: Path, kind: str, culprit: int) -> list[tuple[int | None, str, str]]:
    """Exit code (None: it had to be killed) and words of both processes."""
    started = start_two(folder, PEER, LIMIT_SECONDS, kind, culprit)
    ended = []
    waiting = time.monotonic() + 120
    for rank in (1 - culprit, culprit):
        child = started[rank]
        try:
            out, err = child.communicate(timeout=max(waiting - time.monotonic(), 5))
            ended.append((rank, child.returncode, out, err))
        except subprocess.TimeoutExpired:
            child.kill()
            ended.append((rank, None, *child.communicate()))
    return [(code, out, err) for _, code, out, err in sorted(ended)]


@pytest.mark.parametrize(
    ("kind", "culprit", "expected"),
    [
        ("stop", 1, "Process 1 of host .* has not answered for"),
        ("stop", 0, "Process 0 of host .* has not answered for"),
        ("lock", 0, "Process 0 of host .* is stuck: .*training, step 7, at .*peer.py:.* in lock"),
        ("fifo", 1, "Process 1 of host .* is stuck: .*training, step 7, at .*peer.py:.* in fifo"),
    ],
)
def test_the_process_that_is_stuck_is_named(
    tmp_path: Path, kind: str, culprit: int, expected: str
) -> None:
    ended = meet(tmp_path, kind, culprit)
    code, _, said = ended[1 - culprit]
    assert code == 1
    if kind != "stop":
        assert ended[culprit][0] == 1
        said += ended[culprit][2]
    assert re.search(f"error: {expected}", said), said
    assert "surefit train --resume runs/here" in said
    assert "Traceback" not in said


def test_a_slow_process_is_waited_for(tmp_path: Path) -> None:
    for code, out, said in meet(tmp_path, "compute", 1):
        assert code == 0, said
        assert "met [0, 0]" in out


def test_processes_that_wait_for_each_other_end(tmp_path: Path) -> None:
    first, second = meet(tmp_path, "part", 1)
    assert first[0] == 1
    assert second[0] == 1
    assert "All processes have waited for each other for" in first[2], first[2]


def test_a_training_that_locks_up_can_be_resumed(tmp_path: Path) -> None:
    save_ragged(tmp_path / "data.npz", feature_rows(60))
    model, source = write_module(tmp_path), tmp_path / "net.py"
    plain = source.read_text()
    count = "import os, threading; self.calls = getattr(self, 'calls', 0) + self.training"
    stall = "threading.Event().wait()"
    lines = (
        f"        {count}\n        if os.environ.get('RANK') == '1' and self.calls > 9: {stall}\n"
    )
    source.write_text(plain.replace("        hidden =", f"{lines}        hidden ="))
    command = [sys.executable, "-m", "surefit", "train", "--processes", "2"]
    start = ["--data", "data.npz", "--model", model, "--batch-size", "2", "--max-steps", "12"]
    start += ["--output", "run", "--set", "save_every=2", "--set", f"stall_seconds={LIMIT_SECONDS}"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}

    def launch(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    done = launch(*start)
    assert done.returncode == 1, done.stderr[-2000:]
    assert "Process 1 of host" in done.stderr
    assert "net.py" in done.stderr
    assert "in forward" in done.stderr
    source.write_text(plain)
    done = launch("--resume", "run", "--trust-code", model)
    assert done.returncode == 0, done.stderr[-2000:]
