"""Runs the checks one after another, each in a process of its own with a time limit."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from surefit.errors import UsageError
from surefit.memory.limit import find_limit
from surefit.selftest.outcome import Outcome

LIMIT_SECONDS = 600
"""One check is ended after this time."""
PACKAGES = ("surefit", "torch", "transformers", "accelerate", "peft", "bitsandbytes", "flash-attn")


def choose_device(wanted: str | None) -> str:
    """The type of device to test: the one asked for if it is there, else the accelerator or CPU."""
    import torch

    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    there = {"cpu", *([] if found is None else [found.type])}
    if wanted is None:
        return "cpu" if found is None else found.type
    if wanted not in there:
        raise UsageError(
            f"This machine has no device {wanted!r}; it has {' and '.join(sorted(there))}.",
            "Leave --device out, or install a build of torch for the device.",
        )
    return wanted


def describe_machine(device: str) -> dict[str, Any]:
    """What the outcomes depend on; neither names of people nor of hosts."""
    import torch

    described: dict[str, Any] = {
        "device": device,
        "system": platform.system(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "free_memory_bytes": find_limit().bytes,
        "packages": {name: found for name in PACKAGES if (found := _version(name)) is not None},
    }
    if device == "cuda":
        described["cuda"] = torch.version.cuda
        described["gpus"] = [
            {
                "name": properties.name,
                "memory_bytes": properties.total_memory,
                "capability": f"{properties.major}.{properties.minor}",
            }
            for properties in map(
                torch.cuda.get_device_properties, range(torch.cuda.device_count())
            )
        ]
    return described


def run_checks(names: Sequence[str], device: str) -> Iterator[Outcome]:
    """The outcome of each check, as it is known."""
    for name in names:
        with tempfile.TemporaryDirectory(prefix="surefit-selftest-") as folder:
            yield _in_child(name, device, Path(folder))


def _in_child(name: str, device: str, folder: Path) -> Outcome:
    from surefit.selftest.check_child import OUTCOME

    began, log = time.perf_counter(), folder / "log.txt"
    environment = dict(os.environ)
    if device == "cpu":  # of a machine that has others, too
        environment |= {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
    command = [sys.executable, "-m", "surefit.selftest.check_child", name, device, str(folder)]
    with log.open("wb") as stream:
        child = subprocess.Popen(
            command, stdout=stream, stderr=stream, env=environment, start_new_session=True
        )
        try:
            code: int | None = child.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    seconds = time.perf_counter() - began
    path = folder / OUTCOME
    if path.is_file():
        return Outcome(**{**json.loads(path.read_text(encoding="utf-8")), "seconds": seconds})
    ended = f"not finished after {LIMIT_SECONDS} s" if code is None else f"ended with code {code}"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = f": {lines[-1]}" if lines else ""
    return Outcome(name, "failed", f"the process of the check was {ended}{last}", {}, seconds)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
