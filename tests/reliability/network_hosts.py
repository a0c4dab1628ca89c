"""Two hosts on this machine: network namespaces with a cable between them, and names and folders of
their own. All addresses are inside of the namespaces. Needs root, Linux and iproute2.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENDPOINT = "10.77.0.1:29400"


def why_not() -> str:
    """Why hosts cannot be made here; empty where they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "network namespaces need ip (iproute2) and unshare"
    name = f"surefit-try-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode:
        return f"network namespaces are not allowed here: {tried.stderr.strip()}"
    _ip("netns", "del", name)
    return ""


@dataclass(frozen=True)
class Host:
    """One of the hosts: its name, address, network namespace and folder."""

    name: str
    address: str
    namespace: str
    folder: Path
    cable: str

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Run a command there; what it prints goes to a file."""
        own = {
            "SUREFIT_CACHE": str(self.folder / "cache"),
            "GLOO_SOCKET_IFNAME": self.cable,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": str(ROOT),
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }
        known = self.folder / "hosts"
        known.write_text("127.0.0.1 localhost\n10.77.0.1 host-a\n10.77.0.2 host-b\n")
        there = ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "--mount", "sh", "-c"]
        there += ['mount --bind hosts /etc/hosts && hostname "$0" && exec "$@"', self.name]
        there += command
        with log.open("wb") as out:
            return subprocess.Popen(
                there, cwd=self.folder, env={**os.environ, **own}, stdout=out, stderr=out
            )

    def torchrun(
        self, processes: int, arguments: Sequence[str], log: Path
    ) -> subprocess.Popen[bytes]:
        """Start this host's share of a training with two hosts."""
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
        command += ["--nproc-per-node", str(processes), "--rdzv-backend", "c10d"]
        command += ["--rdzv-endpoint", ENDPOINT, "--rdzv-id", "two-hosts"]
        command += ["--local-addr", self.address, "-m", "surefit", "train", *arguments]
        return self.start(command, log)

    def kill(self) -> None:
        """Kill all processes of the host at once, as a loss of power does."""
        listed = subprocess.run(
            ["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=True
        )
        for pid in listed.stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def unplug(self) -> None:
        """Take the cable out: nothing arrives any more, not even that a connection is closed."""
        _ip("-n", self.namespace, "link", "set", self.cable, "down")

    def plug(self) -> None:
        """Put the cable back."""
        _ip("-n", self.namespace, "link", "set", self.cable, "up")


@contextmanager
def two_hosts(place: Path) -> Iterator[tuple[Host, Host]]:
    """Two hosts that reach each other and nothing else; with the block, their processes end."""
    tag = os.getpid()
    hosts = [
        Host(
            f"host-{end}", f"10.77.0.{number}", f"surefit-{end}-{tag}", place / end, f"sf{end}{tag}"
        )
        for number, end in ((1, "a"), (2, "b"))
    ]
    try:
        for host in hosts:
            host.folder.mkdir(parents=True)
            _ip("netns", "add", host.namespace)
        first, second = hosts
        _ip("-n", first.namespace, "link", "add", first.cable, "type", "veth", "peer", "name",
            second.cable, "netns", second.namespace)  # fmt: skip
        for host in hosts:
            _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", host.cable)
            for device in ("lo", host.cable):
                _ip("-n", host.namespace, "link", "set", device, "up")
        yield first, second
    finally:
        for host in hosts:
            with suppress(subprocess.CalledProcessError):
                host.kill()
            subprocess.run(["ip", "netns", "del", host.namespace], capture_output=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
