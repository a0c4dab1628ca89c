"""Whether this CPU computes in half precision: tried in a process of its own, remembered.

What a CPU announces is not enough: some virtual machines announce AMX or AVX512_BF16 and kill
the process that uses it. `half_precision_products.py` is the process that tries.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from surefit.data.cache import entry_folder, fingerprint
from surefit.data.cache_entry import is_sound, open_json

TRIAL_SECONDS = 300
"""A trial takes a few seconds; a busy machine may need far longer to import torch."""
_KERNEL_SETTINGS = ("ONEDNN_", "DNNL_", "MKL_", "ATEN_CPU_", "TORCH_CPU_")
"""Environment variables that choose other kernels begin like this."""


def trial_command(precision: str) -> list[str]:
    """The process that computes products in `bf16` or `fp16`."""
    script = Path(__file__).with_name("half_precision_products.py")
    return [sys.executable, "-P", str(script), precision]


def why_not(precision: str, command: Sequence[str] | None = None) -> str | None:
    """Why this CPU cannot compute in a half precision; None where it can.

    `command` is the process that tries. Only a success is remembered.
    """
    command = [*(command or trial_command(precision))]
    key = fingerprint(command, _machine())
    if is_sound(entry_folder("precision", key)):
        return None
    reason = _run(command)
    if reason is None:
        open_json("precision", key, lambda: {"precision": precision, "computes": True})
    return reason


def _run(command: Sequence[str]) -> str | None:
    """Run the trial; None where it ends well."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TRIAL_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"a trial did not end within {TRIAL_SECONDS} seconds"
    except OSError as error:
        return f"a trial could not be started ({error})"
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"a trial of its matrix products was killed by {_signal_name(-done.returncode)}"
    lines = f"{done.stderr}\n{done.stdout}".strip().splitlines()
    return f"a trial of its matrix products failed ({lines[-1] if lines else 'without a word'})"


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{name} (illegal instruction)" if name == "SIGILL" else name


def _machine() -> list[object]:
    """What the result depends on: machine, kernel, CPU, torch, and settings of its kernels."""
    from importlib.metadata import version

    settings = {k: v for k, v in os.environ.items() if k.startswith(_KERNEL_SETTINGS)}
    return [platform.node(), platform.release(), _cpu(), version("torch"), settings]


def _cpu() -> list[str]:
    """The name and the flags of the first CPU, where the system has them."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return [platform.machine(), platform.processor()]
    first = text.partition("\n\n")[0].splitlines()
    return [line for line in first if line.startswith(("model name", "flags", "Features"))]
