"""Two hosts that train together: two network namespaces with a cable, and caches of their own.

    sudo python tests/reliability/two_hosts.py [--kills 12] [--cuts 3] [--seed 0]

Each host is started by torchrun, as docs/guides.md says, with data of its own and the run folder
that both share. Their losses must be those of one process. Then one host dies (all its processes
are killed at once) or the cable is pulled, at a random moment. The other host must end by itself
without a traceback of ours, and the run, resumed by both hosts, must equal the undisturbed one to
the bit. Linux, root and `ip` of iproute2 are needed; where they are missing it says so.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import psutil
from configurations import OUTPUT, differences, prepare

from builders import events_of, write_module

ROOT = Path(__file__).resolve().parents[2]
JOB = "--data data.npz --model net:make --trust-code net:make --lr 0.01 --epochs 4 --batch-size 4"
SAVED = "--set save_every=3 --set eval_every=6 --set stall_seconds=15"
END_SECONDS = 90
"""Within which the surviving host must have ended; stall_seconds is 15 in these runs."""


@dataclass
class Host:
    """A network namespace that a sleeping process holds open, and the folder of its own."""

    number: int
    folder: Path
    keeper: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        """On the cable."""
        return f"10.213.0.{self.number + 1}"

    def inside(self, *command: str) -> list[str]:
        """The command, run on this host."""
        return ["nsenter", "-t", str(self.keeper.pid), "-n", "-u", *command]

    def plug(self, state: str) -> None:
        """Pull the cable of this host ("down"), or put it back ("up")."""
        subprocess.run(self.inside("ip", "link", "set", "eth0", state), check=True)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start this host's share of a run."""
        launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
        launch += ["--nproc-per-node", "1", "--node-rank", str(self.number), "--master-addr"]
        launch += ["10.213.0.1", "--master-port", "29400", "-m", "surefit", "train", *arguments]
        own = {"SUREFIT_CACHE": f"{self.folder}/cache", "XDG_STATE_HOME": f"{self.folder}/state"}
        own |= {"GLOO_SOCKET_IFNAME": "eth0", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            self.inside(*launch),
            cwd=self.folder,
            env={**os.environ, **own, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


@contextlib.contextmanager
def two_hosts(place: Path) -> Iterator[list[Host]]:
    """Two hosts that see each other and nothing else."""
    hosts = []
    try:
        for number in range(2):
            command = ["unshare", "--net", "--uts", "sh", "-c"]
            keeper = subprocess.Popen([*command, f"hostname host{number}; exec sleep 100000"])
            hosts.append(Host(number, prepare(place / f"host{number}"), keeper))
        time.sleep(1)
        names = ("sf-cable-0", "sf-cable-1")
        subprocess.run(
            ["ip", "link", "add", names[0], "type", "veth", "peer", "name", names[1]], check=True
        )
        for host, name in zip(hosts, names, strict=True):
            subprocess.run(["ip", "link", "set", name, "netns", str(host.keeper.pid)], check=True)
            for change in (
                ("link", "set", name, "name", "eth0"),
                ("addr", "add", f"{host.address}/24", "dev", "eth0"),
                ("link", "set", "lo", "up"),
                ("link", "set", "eth0", "up"),
            ):
                subprocess.run(host.inside("ip", *change), check=True)
        yield hosts
    finally:
        for host in hosts:
            host.keeper.kill()
            host.keeper.wait()


def train(hosts: list[Host], *arguments: str) -> list[str]:
    """Train on both hosts to the end; what they said."""
    started = [host.start(*arguments) for host in hosts]
    said = [each.communicate(timeout=300)[0] for each in started]
    codes = [each.returncode for each in started]
    assert codes == [0, 0], (codes, said)
    return said


def strike(hosts: list[Host], run: Path, how: str, which: int, step: int) -> list[str]:
    """Let a host die, or pull the cable, after a step; what is wrong with how the other ends."""
    started = [host.start(*begin(run)) for host in hosts]
    events = run / "events.jsonl"
    while not events.is_file() or events.read_text().count('"event": "step"') < step:
        assert all(each.poll() is None for each in started), [e.communicate()[0] for e in started]
        time.sleep(0.002)
    if how == "killed":
        _kill(started[which])
    else:
        hosts[which].plug("down")
    began, wrong = time.monotonic(), []
    others = started if how == "cut" else [started[1 - which]]
    while any(_workers(each) for each in others) and time.monotonic() - began < END_SECONDS:
        time.sleep(0.1)
    for number, each in enumerate(started):
        if each in others and _workers(each):
            wrong.append(f"host {number} goes on {END_SECONDS} s after")
        if how == "cut":  # torchrun waits for a store that it cannot reach
            _kill(each)
    for each in others:
        said = each.communicate()[0]
        told = re.search("has ended|does not answer", said) and "internal error" not in said.lower()
        if each.returncode == 0 or not told:
            wrong.append(f"exit code {each.returncode}: {said[-1500:]}")
    for each in started:
        _kill(each)
        each.wait()
    hosts[which].plug("up")
    return wrong


def begin(run: Path) -> list[str]:
    """What starts the run on a host."""
    return [*JOB.split(), *SAVED.split(), "--output", str(run)]


def _workers(launched: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes that torchrun has started, and theirs."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(launched.pid).children(recursive=True)
    return []


def _kill(launched: subprocess.Popen[str]) -> None:
    """All processes of a host at once."""
    for each in (*_workers(launched), launched):
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()


def main() -> int:
    """Compare, kill and cut; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--cuts", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if os.geteuid() or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        print("not run: two hosts need root, ip, unshare and nsenter")
        return 0
    rng, faults = random.Random(given.seed), 0
    with tempfile.TemporaryDirectory(prefix="two-hosts-") as name, two_hosts(Path(name)) as hosts:
        place = Path(name)
        train(hosts, *begin(place / "whole"))
        steps = sum(event["event"] == "step" for event in events_of(place / "whole"))
        difference = _against_one(hosts, place)
        print(f"{steps} steps; largest difference of a loss to one process: {difference:.1e}")
        faults += difference > 1e-5
        for number, how in enumerate(["killed"] * given.kills + ["cut"] * given.cuts):
            run, which, step = place / OUTPUT, rng.randrange(2), rng.randint(1, steps - 2)
            wrong = strike(hosts, run, how, which, step)
            train(hosts, "--resume", str(run), "--trust-code", "net:make")
            wrong += differences(run, place / "whole")
            print(f"{number}: host {which} {how} after step {step}: {wrong or 'right'}", flush=True)
            faults += bool(wrong)
            shutil.rmtree(run)
    print(f"{given.kills} hosts killed, {given.cuts} cables pulled, {faults} wrong")
    return min(faults, 1)


def _against_one(hosts: list[Host], place: Path) -> float:
    """The largest difference of any loss to one process, without dropout, at the same batch."""
    for host in hosts:
        write_module(host.folder, "plain")
    both, one = place / "both", place / "one"
    train(hosts, *_without_dropout(begin(both)))
    alone = [sys.executable, "-m", "surefit", "train", *_without_dropout(begin(one))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [*alone, "--grad-accum", "2"]
    subprocess.run(command, cwd=hosts[0].folder, env=environment, check=True, capture_output=True)
    losses = ([e["loss"] for e in events_of(each) if "loss" in e] for each in (both, one))
    return max(abs(one - other) for one, other in zip(*losses, strict=True))


def _without_dropout(arguments: list[str]) -> list[str]:
    return [each.replace("net:make", "plain:make") for each in arguments]


if __name__ == "__main__":
    sys.exit(main())
