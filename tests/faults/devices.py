"""Modules that fail in the precision they are trained in, and healthy look-alikes."""

from __future__ import annotations

from faults.case import Case
from faults.models import DATA, RETURNS, net

HIDDEN = "hidden = self.dropout(torch.tanh(self.body(inputs_embeds)))"
PLACES = "torch.arange(len(hidden), device=hidden.device)"
COPY = f"torch.zeros(hidden.shape, device=hidden.device).index_copy_(0, {PLACES}, "
ROWS = f"{PLACES}.view(-1, 1, 1).expand_as(hidden)"
SCATTER = f"torch.zeros(hidden.shape, device=hidden.device).scatter_(0, {ROWS}, "
BF16 = "--set precision=bf16"


def after_body(line: str) -> str:
    """The good module with one more line in its forward, in line 15 of the file."""
    return net(HIDDEN, f"{HIDDEN}\n        {line}")


def fault(title: str, line: str) -> Case:
    """A module that is refused in bf16, and the line of its file."""
    return Case(
        f"SF735 {title}", DATA, module=after_body(line), options=BF16, line=15, needs="bf16"
    )


CASES = [
    fault(
        "half precision scattered into a float32 tensor",
        f"hidden = {SCATTER}self.body(inputs_embeds))",
    ),
    fault("half precision into a float32 tensor", f"hidden = {COPY}self.body(inputs_embeds))"),
]
HEALTHY = [
    Case(
        "not SF735: a copy in the same precision",
        DATA,
        module=after_body(f"hidden = {COPY}self.body(inputs_embeds).float())"),
        options=BF16,
        needs="bf16",
    ),
    Case(
        "numpy on the CPU", DATA, module=net(RETURNS, f"hidden.detach().numpy()\n        {RETURNS}")
    ),
]
