"""Modules that break or wait on a GPU, which need not be here; and healthy look-alikes."""

from __future__ import annotations

from dataclasses import replace

from faults.case import Case
from faults.models import DATA, RETURNS, net

GPU = "--device a100-80gb"
HIDDEN = "hidden = self.dropout(torch.tanh(self.body(inputs_embeds)))"
SUPER = "super().__init__()"


def after_body(line: str) -> str:
    """The good module with one more line in its forward, in line 15 of the file."""
    return net(HIDDEN, f"{HIDDEN}\n        {line}")


def built_with(attribute: str, line: str) -> str:
    """The same, with one more attribute."""
    return after_body(line).replace(SUPER, f"{SUPER}\n        {attribute}")


def fault(name: str, code: str, module: str, line: int = 15) -> Case:
    """A module that is refused, or warned about, on a GPU."""
    exits = 0 if code == "SF736" else 1
    return Case(name, code, DATA, module=module, options=GPU, line=line, exits=exits)


PLACES = "torch.arange(len(hidden), device=hidden.device)"
COPY = f"torch.zeros(hidden.shape, device=hidden.device).index_copy_(0, {PLACES}, "
ROWS = f"{PLACES}.view(-1, 1, 1).expand_as(hidden)"
SCATTER = f"torch.zeros(hidden.shape, device=hidden.device).scatter_(0, {ROWS}, "
CASES = [
    fault("a constant made on the CPU", "SF735", after_body("hidden = hidden + torch.zeros(32)")),
    fault(
        "noise of the CPU in training",
        "SF735",
        after_body("if self.training: hidden = hidden + torch.randn(hidden.shape)"),
    ),
    fault(
        "a tensor that is no buffer",
        "SF735",
        built_with("self.scale = torch.ones(32)", "hidden = hidden * self.scale"),
        16,
    ),
    fault("item in forward", "SF736", after_body("hidden = hidden + 0 * hidden.max().item()")),
    fault("a branch on a value", "SF736", after_body("assert hidden.isfinite().all()")),
    fault(
        "selecting by a mask",
        "SF736",
        after_body("hidden = hidden + 0 * inputs_embeds[inputs_embeds > 0].mean()"),
    ),
    fault(
        "a list of values", "SF736", after_body("hidden = hidden + 0 * hidden[0, 0].tolist()[0]")
    ),
    fault("cpu in forward", "SF736", after_body("hidden = hidden + 0 * hidden[0, 0, 0].cpu()")),
    fault(
        "numpy in forward",
        "SF739",
        after_body("hidden = hidden + 0 * hidden.detach().numpy().max()"),
    ),
    fault(
        "numpy by its own function",
        "SF739",
        after_body("import numpy; hidden = hidden + 0 * numpy.asarray(hidden.detach()).max()"),
    ),
    replace(
        fault(
            "half precision scattered into a float32 tensor",
            "SF737",
            after_body(f"hidden = {SCATTER}self.body(inputs_embeds))"),
        ),
        needs="bf16",
    ),
    replace(
        fault(
            "half precision into a float32 tensor",
            "SF737",
            after_body(f"hidden = {COPY}self.body(inputs_embeds))"),
        ),
        needs="bf16",
    ),
]


def healthy(name: str, module: str, *also: str) -> Case:
    """A module that only looks like one of the above."""
    return Case(name, None, DATA, module=module, options=GPU, also=also, exits=0)


HEALTHY = [
    healthy("a constant where the data is", after_body("hidden = hidden + hidden.new_zeros(32)")),
    healthy("a scalar of the CPU", after_body("hidden = hidden * torch.tensor(2.0)")),
    healthy(
        "a buffer",
        built_with('self.register_buffer("scale", torch.ones(32))', "hidden = hidden * self.scale"),
    ),
    healthy("indices of the CPU", after_body("hidden = hidden[:, torch.arange(hidden.shape[1])]")),
    healthy("numbers of shapes", after_body("hidden = hidden / float(hidden.shape[-1])")),
    healthy(
        "a tensor that is moved", after_body("hidden = hidden + torch.zeros(32).to(hidden.device)")
    ),
    healthy("where instead of a mask", after_body("hidden = torch.where(hidden > 0, hidden, 0.0)")),
    healthy("a mask that is filled", after_body("hidden = hidden.masked_fill(hidden > 9, 0.0)")),
    healthy(
        "a copy in the same precision",
        after_body(f"hidden = {COPY}self.body(inputs_embeds).float())"),
    ),
    healthy(
        "a tensor for another library",
        after_body("torch.utils.dlpack.to_dlpack(inputs_embeds.detach())"),
        "SF738",
    ),
    healthy("a memory address", after_body("self.address = inputs_embeds.data_ptr()")),
    replace(
        Case("numpy on the CPU", None, DATA, exits=0),
        module=net(RETURNS, f"hidden.detach().numpy()\n        {RETURNS}"),
    ),
]
