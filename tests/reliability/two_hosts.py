"""Two hosts train together; one is killed or cut off; the other ends and names it; both resume.

python tests/reliability/two_hosts.py [--losses kill link …] [--seed N] [--results FILE]

The hosts are two network namespaces (`network_hosts.py`) with data, cache and runs in folders of
their own; torchrun's rendezvous connects them. Each loss strikes at a random step. Afterwards the
run must have every step once, with the losses of an undisturbed run in one process.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import network_hosts
from network_hosts import Host
from results import store_results

LOSSES = ("kill", "link")
STEPS, SAVE_EVERY, STALL_SECONDS = 90, 5, 8
BOUND_SECONDS = 90
"""Within this time the other host must have ended, on a machine that is busy with other tests."""
MODEL = """
import os, time

import torch
from torch import nn

import surefit
from surefit.data.roles import Role


def encode(row, encoder):
    with open("encoded", "a") as file:
        file.write(os.environ.get("LOCAL_RANK", "0") + "\\n")
    return {"numbers": row["numbers"], "labels": row["total"]}


def squares(outputs, batch):
    errors = outputs.logits[:, 0] - batch["labels"]
    return errors.square().sum(), len(errors)


SPEC = surefit.TaskSpec(
    name="sums",
    needs=(("numbers", "total"),),
    roles=(Role("numbers", ("numbers",)), Role("total", ("total",))),
    targets=("total",),
    fields={
        "numbers": surefit.Field(("time",), "int64", pad=0),
        "labels": surefit.Field((), "float32"),
    },
    encode=encode,
    count_targets=lambda columns: 1,
    loss=squares,
)


class Sums(nn.Module):
    def __init__(self):
        super().__init__()
        self.value = nn.Embedding(10, 1, padding_idx=0)

    def forward(self, numbers):  # (B, T)
        if self.training:
            time.sleep(0.03)
        return self.value(numbers).sum(1)


def make():
    torch.manual_seed(0)
    return Sums()
"""
TRAIN = ["--data", "rows.jsonl", "--task", "sums:SPEC", "--model", "sums:make", "--output", "run"]
TRAIN += [
    "--lr",
    "0.1",
    "--epochs",
    "100",
    "--max-steps",
    str(STEPS),
    "--set",
    f"save_every={SAVE_EVERY}",
]
TRAIN += ["--set", "eval_share=0", "--set", f"stall_seconds={STALL_SECONDS}"]


def main() -> int:
    """Lose hosts as asked; 1 if anything was not as it must be."""
    arguments = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    arguments.add_argument("--losses", nargs="*", choices=LOSSES, default=list(LOSSES))
    arguments.add_argument("--processes", type=int, default=2, help="on each host")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--results", type=Path, help="a JSON file to add the figures to")
    given = arguments.parse_args()
    reason = network_hosts.why_not()
    if reason:
        print(f"not run: {reason}")
        return 0
    with tempfile.TemporaryDirectory(prefix="two-hosts-") as place:
        found = lose_hosts(Path(place), given.losses, given.processes, random.Random(given.seed))
    for wrong in found["wrong"]:
        print(f"wrong: {wrong}")
    print(
        f"{len(given.losses)} losses: the other host ended after "
        f"{', '.join(f'{s:.0f} s' for s in found['seconds'])}; {len(found['wrong'])} wrong"
    )
    if given.results is not None:
        store_results(given.results, "two_hosts", {"seed": given.seed, **found})
    return min(len(found["wrong"]), 1)


def lose_hosts(
    place: Path, losses: Sequence[str], processes: int, choose: random.Random
) -> dict[str, Any]:
    """Train on two hosts, lose one of them for each entry, resume, and compare with one process."""
    found: dict[str, Any] = {"losses": list(losses), "seconds": [], "wrong": []}
    alone = place / "alone"
    alone.mkdir()
    prepare(alone)
    with network_hosts.two_hosts(place) as hosts:
        for host in hosts:
            prepare(host.folder)
        train_alone(alone, 2 * processes)
        events = hosts[0].folder / "run" / "events.jsonl"
        for number, loss in enumerate(losses):
            lost = choose.choice(hosts)
            left = hosts[lost is hosts[0]]
            begin = steps_in(events)[-1:] or [0]
            strike = begin[0] + choose.randrange(6, STEPS // (len(losses) + 1))
            print(f"{loss} {lost.name} at step {strike} …", flush=True)
            ended, said = lose(hosts, (lost, left), loss, (processes, strike))
            found["seconds"].append(round(ended, 1))
            found["wrong"] += [f"{loss} {number}: {each}" for each in judge(said, lost)]
        copy_run(hosts)
        codes, said = finish(hosts, processes)
        if any(codes):
            found["wrong"].append(f"the last resume ended with {codes}: {said[-1500:]}")
            return found
        found["wrong"] += compare(events, alone / "run" / "events.jsonl")
        for host in hosts:
            ranks = set((host.folder / "encoded").read_text().split())
            if ranks != {"0"}:
                found["wrong"].append(f"rows of {host.name} were encoded by processes {ranks}")
    return found


def prepare(folder: Path) -> None:
    """Data and code of one host."""
    choose = random.Random(1)
    rows = [[choose.randrange(1, 10) for _ in range(choose.randrange(2, 9))] for _ in range(64)]
    lines = (json.dumps({"numbers": row, "total": float(sum(row))}) for row in rows)
    (folder / "rows.jsonl").write_text("\n".join(lines))
    (folder / "sums.py").write_text(MODEL)


def train_alone(folder: Path, processes: int) -> None:
    """The undisturbed run, with the effective batch of the others."""
    env = {"SUREFIT_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    env |= {"PYTHONPATH": str(network_hosts.ROOT), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "surefit", "train", *TRAIN, "--batch-size", "2"]
    command += ["--grad-accum", str(processes)]
    subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True, timeout=600)


def lose(
    hosts: Sequence[Host], lost_left: tuple[Host, Host], loss: str, when: tuple[int, int]
) -> tuple[float, str]:
    """Start or resume both hosts, lose one at a step; seconds until the other ended, its words."""
    lost, left = lost_left
    processes, strike = when
    running = {host: start(host, hosts, processes) for host in hosts}
    events = hosts[0].folder / "run" / "events.jsonl"
    deadline = time.monotonic() + 300
    while (steps_in(events)[-1:] or [0])[0] < strike:
        if time.monotonic() > deadline or any(one.poll() is not None for one in running.values()):
            raise SystemExit("\n".join(log(host).read_text()[-3000:] for host in hosts))
        time.sleep(0.05)
    began = time.monotonic()
    if loss == "kill":
        lost.kill()
    else:
        lost.unplug()
    try:
        code = running[left].wait(BOUND_SECONDS)
    except subprocess.TimeoutExpired:
        code = -1000
    seconds = time.monotonic() - began
    if loss == "link":  # the host that was cut off has lost the other one, too
        try:
            running[lost].wait(BOUND_SECONDS)
        except subprocess.TimeoutExpired:
            code = -1001
        lost.plug()
    for host in hosts:
        host.kill()
        running[host].wait()
    said = log(left).read_text(errors="replace")
    return seconds, f"exit code {code}\n{said}"


def start(host: Host, hosts: Sequence[Host], processes: int) -> subprocess.Popen[bytes]:
    """Start this host's share: a new run, or the run as far as the first host has it."""
    if not (hosts[0].folder / "run" / "checkpoints").is_dir():
        return host.torchrun(processes, [*TRAIN, "--batch-size", "2"], log(host))
    copy_run(hosts)
    return host.torchrun(processes, ["--resume", "run"], log(host))


def copy_run(hosts: Sequence[Host]) -> None:
    """Without a shared file system, the run is copied to the other host before it is resumed."""
    first, second = (host.folder / "run" for host in hosts)
    if second.exists():
        shutil.rmtree(second)
    shutil.copytree(first, second)


def finish(hosts: Sequence[Host], processes: int) -> tuple[list[int], str]:
    """Resume on both hosts and wait for the end."""
    running = [start(host, hosts, processes) for host in hosts]
    codes = [one.wait(300) for one in running]
    return codes, "\n".join(log(host).read_text(errors="replace") for host in hosts)


def log(host: Host) -> Path:
    """What the host's processes print."""
    return host.folder / "log"


def judge(said: str, lost: Host) -> list[str]:
    """What is wrong with the end of the host that was left."""
    # torchrun itself is killed where it waits for a store that is gone.
    wrong = [] if re.match(r"exit code (1|-9|-15)\n", said) else [said.split("\n", 1)[0]]
    named = re.search(rf"(?m)^error: .*(?:{lost.name}|{re.escape(lost.address)})", said)
    if named is None or "--resume" not in said:
        wrong.append(f"{lost.name} is not named: {said[-2500:]}")
    return wrong


def steps_in(events: Path) -> list[int]:
    """The steps that a run has finished."""
    return [event["step"] for event in read(events)]


def read(events: Path) -> list[dict[str, Any]]:
    """The step events; a line that is being written is left out."""
    lines = events.read_text().split("\n")[:-1] if events.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == "step"]


def compare(events: Path, reference: Path) -> list[str]:
    """How the steps of a run differ from those of the undisturbed one."""
    ours, others = read(events), read(reference)
    if [event["step"] for event in ours] != [event["step"] for event in others]:
        return [f"steps {[event['step'] for event in ours]}"]
    apart = max(abs(a["loss"] - b["loss"]) / b["loss"] for a, b in zip(ours, others, strict=True))
    return [f"losses differ by {apart:.1e}"] if apart > 1e-4 else []


if __name__ == "__main__":
    sys.exit(main())
