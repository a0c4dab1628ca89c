"""Whether this CPU computes in half precision: tried in a process of its own, remembered.

What a CPU announces is not enough: some virtual machines announce AMX or AVX512_BF16 and kill
the process that uses it. That process is this file, run as a script: it computes matrix products
as training does, and ends with a message and exit code 1 where torch does not implement one, or
where a result is wrong. It imports torch alone, so that it starts quickly.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import torch
from torch.nn import functional

TRIAL_SECONDS = 300
"""A trial takes a few seconds; a busy machine may need far longer to import torch."""
_KERNEL_SETTINGS = ("ONEDNN_", "DNNL_", "MKL_", "ATEN_CPU_", "TORCH_CPU_")
"""Environment variables that choose other kernels begin like this."""


def trial_command(precision: str) -> list[str]:
    """Return the process that computes products in `bf16` or `fp16`."""
    return [sys.executable, "-P", __file__, precision]


def why_not(precision: str, command: Sequence[str] | None = None) -> str | None:
    """Why this CPU cannot compute in a half precision; None where it can.

    `command` is the process that tries. Only a success is remembered.
    """
    from surefit.data.cache import entry_folder, fingerprint
    from surefit.data.cache_entry import is_sound, open_json

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
    settings = {k: v for k, v in os.environ.items() if k.startswith(_KERNEL_SETTINGS)}
    return [platform.node(), platform.release(), _cpu(), version("torch"), settings]


def _cpu() -> list[str]:
    """Return the name and the flags of the first CPU, where the system has them."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return [platform.machine(), platform.processor()]
    first = text.partition("\n\n")[0].splitlines()
    return [line for line in first if line.startswith(("model name", "flags", "Features"))]


TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
TOLERANCE = 0.05
"""Relative error of a result; rounding to bf16 alone gives about 0.003."""
Product = Callable[..., torch.Tensor]
HEADS = (2, 4, 80, 64)
PRODUCTS: dict[str, tuple[Product, list[tuple[int, ...]]]] = {
    "linear of a row": (functional.linear, [(1, 256), (512, 256), (512,)]),
    "linear": (functional.linear, [(256, 256), (512, 256), (512,)]),
    "bmm": (torch.bmm, [(8, 64, 96), (8, 96, 64)]),
    "attention": (functional.scaled_dot_product_attention, [HEADS] * 3),
}
"""Each kind of product with the shapes of its operands, large enough for the fast kernels."""


def forward_and_backward(
    product: Product, operands: list[torch.Tensor], dtype: torch.dtype | None
) -> list[torch.Tensor]:
    """Return the product and the gradients of its operands, under autocast as training calls it."""
    leaves = [operand.clone().requires_grad_() for operand in operands]
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        result = product(*leaves)
    torch.manual_seed(1)
    result.backward(torch.randn(result.shape).to(result.dtype))  # type: ignore[no-untyped-call]
    found = [result, *(leaf.grad for leaf in leaves)]
    return [each.detach().float() for each in found if each is not None]


def find_fault(dtype: torch.dtype) -> str | None:
    """Return the first product whose result is far from that in float32."""
    for name, (product, shapes) in PRODUCTS.items():
        torch.manual_seed(0)
        operands = [torch.randn(shape).to(dtype).float() for shape in shapes]
        got, expected = (forward_and_backward(product, operands, each) for each in (dtype, None))
        for one, other in zip(got, expected, strict=True):
            error = float((one - other).norm() / other.norm())
            if not error < TOLERANCE:
                return f"{name} is wrong by {error:.0%}"
    return None


def main(precision: str) -> int:
    """Compute every product; the exit code says whether all of them are right."""
    with suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no core file if the process is killed
    try:
        fault = find_fault(TYPES[precision])
    except RuntimeError as error:
        fault = str(error).strip().splitlines()[0]
    print(fault or "")
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
