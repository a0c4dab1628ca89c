"""Every operation of our own against the plain one: results and gradients, on any device.

The tests call `compare` for each name in `OPERATIONS`: in float32,
and in mixed precision with a loss scale. On the meta device, where there are no values, shapes,
dtypes and devices are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from surefit.kernels.clipping import make_clipper
from surefit.kernels.fused_lora import fuse_adapters
from surefit.kernels.numerics import relative_difference, tolerance_of
from surefit.kernels.row_lengths import Rows
from surefit.kernels.sparse_head import Chunks, LogitTransform, SparseHead, chunked_loss
from surefit.kernels.varlen_kernels import (
    Attention,
    Shape,
    attend_by_row,
    choose_kernel,
    find_kernel,
)
from surefit.models.module_outputs import as_outputs

if TYPE_CHECKING:
    import torch

LOSS_SCALE = 2.0**12
"""What a GradScaler multiplies a float16 loss by; gradients are divided by it again."""
LENGTHS = (9, 1, 14, 5)
CLIP = 0.1


@dataclass(frozen=True)
class Comparison:
    """How far an operation is from the plain one, as a share of the largest value.

    `at` names the result that is farthest from its tolerance, `allowed`. `shapes` has the results
    with another shape, dtype or device.
    """

    operation: str
    device: str
    dtype: str
    largest: float
    allowed: float
    at: str
    shapes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the operation computes what the plain one does."""
        return not self.shapes and self.largest <= self.allowed

    def as_dict(self) -> dict[str, Any]:
        """The comparison as JSON has it."""
        return {**asdict(self), "ok": self.ok}


Results = dict[str, Any]
"""What an operation gives: its loss and outputs, and the gradient of each input, by name."""


@dataclass(frozen=True)
class Operation:
    """`run(device, dtype)` gives the results of our operation and those of the plain one."""

    run: Callable[[Any, Any], tuple[Results, Results]]
    on_meta: bool = True


def compare(name: str, device: Any = "cpu", dtype: torch.dtype | None = None) -> Comparison:
    """Compare one operation with the plain one; `dtype` is that of mixed precision.

    >>> compare("sparse head").ok
    True
    """
    import torch

    device = torch.device(device)
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(0)
        ours, plain = OPERATIONS[name].run(device, dtype)
    names = [*dict.fromkeys([*plain, *ours])]
    described = {each: (_described(ours.get(each)), _described(plain.get(each))) for each in names}
    shapes = tuple(f"{n}: {a} instead of {b}" for n, (a, b) in described.items() if a != b)
    close = tolerance_of(dtype or torch.float32)
    apart = dict.fromkeys(names, 0.0)
    if device.type != "meta" and not shapes:
        apart = {each: relative_difference(ours[each], plain[each]) for each in names}
    allowed = {n: close.gradients if n.startswith("d ") else close.values for n in names}
    worst = max(names, key=lambda each: apart[each] / allowed[each])
    shown = str(dtype or torch.float32).removeprefix("torch.")
    return Comparison(name, str(device), shown, apart[worst], allowed[worst], worst, shapes)


def _described(value: Any) -> str:
    if value is None:
        return "none"
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)} on {value.device.type}"


def _mixed(device: Any, dtype: Any) -> Any:
    """Mixed precision on a device, also on meta, where torch has none."""
    import torch

    from surefit.memory.meta_autocast import meta_autocast

    if device.type == "meta":
        return meta_autocast(dtype)
    return torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None)


def _with_gradients(loss: Any, inputs: dict[str, Any], dtype: Any, **outputs: Any) -> Results:
    """The results with the gradients of the loss, scaled as a GradScaler scales them."""
    import torch

    scale = LOSS_SCALE if dtype is torch.float16 else 1.0
    found = torch.autograd.grad(loss * scale, [*inputs.values()], allow_unused=True)
    gradients = {f"d {n}": g for n, g in zip(inputs, found, strict=True) if g is not None}
    made = {name: value.detach() for name, value in {"loss": loss, **outputs}.items()}
    return {**made, **{name: gradient / scale for name, gradient in gradients.items()}}


def _fused_lora(device: Any, dtype: Any) -> tuple[Results, Results]:
    """Frozen weights in the lower precision and float32 adapters, against peft's own forward."""
    import torch
    from peft import LoraConfig, inject_adapter_in_model
    from peft.tuners.lora import Linear
    from torch import nn

    holder = nn.ModuleDict({"layer": nn.Linear(48, 80)})
    inject_adapter_in_model(
        LoraConfig(r=4, lora_alpha=5, target_modules=["layer"]), holder, "default"
    )
    layer: Any = holder["layer"]
    nn.init.normal_(layer.lora_B["default"].weight, std=0.1)
    if dtype is not None:
        layer.base_layer.to(dtype)
    holder.to(device)
    if fuse_adapters(holder, "default") != 1:
        raise ValueError("the layer was not fused")
    x, above = (torch.randn(3, 7, size).to(device) for size in (48, 80))
    inputs = {
        "x": x.requires_grad_(),
        "A": layer.lora_A["default"].weight,
        "B": layer.lora_B["default"].weight,
    }
    results = []
    for forward in (layer.forward, lambda given: Linear.forward(layer, given)):
        with _mixed(device, dtype):
            output = forward(x)
        if forward == layer.forward and "LowRank" not in type(output.grad_fn).__name__:
            raise ValueError("peft's own operation was used")
        loss = (output.float() * above).mean()
        results.append(_with_gradients(loss, inputs, dtype, output=output))
    return results[0], results[1]


def _sparse_head(device: Any, dtype: Any) -> tuple[Results, Results]:
    """The chunked loss with a factor and a soft-cap, against the loss of the logits."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    transform = LogitTransform(0.5, 4.0)
    head = nn.Linear(32, 50).to(device)
    hidden = torch.randn(11, 32).to(device).requires_grad_()
    labels = torch.randint(50, (11,)).to(device)
    inputs = {"hidden": hidden, "weight": head.weight, "bias": head.bias}
    with _mixed(device, dtype):
        ours = chunked_loss(hidden, head, labels, Chunks(transform, 4)).total
        logits = (head(hidden) * 0.5).float()
    plain = cross_entropy(4.0 * (logits / 4.0).tanh(), labels, reduction="sum")
    return _with_gradients(ours, inputs, dtype), _with_gradients(plain, inputs, dtype)


def _tied_embeddings(device: Any, dtype: Any) -> tuple[Results, Results]:
    """Head and lookup that write one gradient, against autograd's sum of two."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    embedding, head = nn.Embedding(50, 32), nn.Linear(32, 50, bias=False)
    body = nn.Linear(32, 32)
    for layer in (embedding, head, body):
        layer.to(device)
    head.weight = embedding.weight
    ids = torch.randint(50, (2, 8)).to(device)
    positions = torch.tensor([0, 3, 4, 9, 14]).to(device)
    targets = torch.randint(50, (5,)).to(device)
    batch = {"labelled_positions": positions, "labelled_targets": targets}

    def run() -> Any:
        return as_outputs(head(body(embedding(ids)).tanh()))

    sparse = SparseHead(head, LogitTransform(), 2, embedding)
    inputs = {"weight": embedding.weight, "body": body.weight}
    with _mixed(device, dtype):
        ours = sparse(run, batch).total
        logits = run().logits.flatten(0, 1)
    plain = cross_entropy(logits.index_select(0, positions).float(), targets, reduction="sum")
    return _with_gradients(ours, inputs, dtype), _with_gradients(plain, inputs, dtype)


def _varlen_attention(device: Any, dtype: Any) -> tuple[Results, Results]:
    """What padding-free batches attend with on this device, against SDPA on padded rows."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention
    from torch.nn.utils.rnn import pad_sequence

    asked, shape, rows = Attention(), Shape(4, 2, 16), Rows(LENGTHS)
    name, _ = choose_kernel([(shape, asked)], device, dtype)
    choice = find_kernel(name, device.type)
    attend = attend_by_row if choice is None else choice.load()
    sizes = (shape.heads, shape.key_heads, shape.key_heads)
    given = [torch.randn(sum(LENGTHS), heads, shape.size).to(device, dtype) for heads in sizes]
    above = torch.randn(sum(LENGTHS), shape.heads, shape.size).to(device)
    inputs = {n: t.requires_grad_() for n, t in zip(("q", "k", "v"), given, strict=True)}
    ours = attend(given[0], given[1], given[2], rows, asked)
    query, *others = (
        pad_sequence([*torch.split(each, [*LENGTHS])], batch_first=True).transpose(1, 2)
        for each in given
    )
    key, value = (each.repeat_interleave(2, dim=1) for each in others)
    whole = scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)
    plain = torch.cat([row[:length] for row, length in zip(whole, LENGTHS, strict=True)])
    results = [
        _with_gradients((output.float() * above).mean(), inputs, dtype, output=output)
        for output in (ours, plain)
    ]
    return results[0], results[1]


def _clipping(device: Any, dtype: Any) -> tuple[Results, Results]:
    """Three steps with clipping in the optimizer, against clipping the gradients before it.

    float16 has a GradScaler, with which gradients are clipped after they are unscaled.
    """
    import torch
    from torch import nn

    start = nn.Linear(24, 24).state_dict()
    x, target = torch.randn(16, 24).to(device), torch.randn(16, 24).to(device) * 9
    results = []
    for ours in (True, False):
        model = nn.Linear(24, 24)
        model.load_state_dict(start)
        model.to(device)
        weights = [*model.parameters()]
        optimizer = torch.optim.AdamW(weights, lr=0.01, fused=ours)
        scaled = dtype is torch.float16
        scaler = torch.amp.GradScaler(device.type, init_scale=LOSS_SCALE, enabled=scaled)
        acting: Any = SimpleNamespace(
            scaler=scaler if scaled else None,
            distributed_type=SimpleNamespace(value="NO"),
            clip_grad_norm_=nn.utils.clip_grad_norm_,
        )
        clip: Any = make_clipper(acting, optimizer, weights, CLIP)
        for _ in range(3):
            with _mixed(device, dtype):
                loss = (model(x).float() - target).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip() if ours else nn.utils.clip_grad_norm_(weights, CLIP)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        results.append({"weight": model.weight.detach(), "bias": model.bias.detach()})
    return results[0], results[1]


OPERATIONS: dict[str, Operation] = {
    "fused LoRA": Operation(_fused_lora),
    "sparse head": Operation(_sparse_head),
    "tied embeddings": Operation(_tied_embeddings),
    "varlen attention": Operation(_varlen_attention),
    "clipping in the optimizer": Operation(_clipping, on_meta=False),
}
"""Our operations. A fused optimizer does not exist on the meta device."""
