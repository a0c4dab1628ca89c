"""Our operations compute what the plain ones do: on a CPU, on the meta device, on a GPU.

Results and the gradients of all inputs are compared in float32, and in mixed precision with a loss
scale. On the meta device, where there are no values, shapes, dtypes and devices are compared.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import Linear
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence

from builders import require_precision
from surefit.memory.meta_device import meta_autocast
from surefit.models.module_outputs import OutputReader
from surefit.speed import numerics
from surefit.speed.clipping import make_clipper
from surefit.speed.fused_lora import fuse_adapters
from surefit.speed.numerics import (
    ALIGNMENT,
    align_weights,
    largest_difference,
    relative_difference,
    tolerance_of,
)
from surefit.speed.sparse_head import Chunks, LogitTransform, SparseHead, chunked_loss
from surefit.speed.varlen_kernels import (
    Attention,
    Rows,
    Shape,
    attend_by_row,
    choose_kernel,
    find_kernel,
)

LOSS_SCALE = 2.0**12
"""What a GradScaler multiplies a float16 loss by; gradients are divided by it again."""
LENGTHS = (9, 1, 14, 5)
CLIP = 0.1
DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
Results = dict[str, Any]
"""What an operation gives: its loss and outputs, and the gradient of each input, by name."""


def _mixed(device: Any, dtype: Any) -> Any:
    """Mixed precision on a device, also on meta, where torch has none."""
    if device.type == "meta":
        return meta_autocast(dtype)
    return torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None)


def _with_gradients(loss: Any, inputs: dict[str, Any], dtype: Any, **outputs: Any) -> Results:
    """The results with the gradients of the loss, scaled as a GradScaler scales them."""
    scale = LOSS_SCALE if dtype is torch.float16 else 1.0
    found = torch.autograd.grad(loss * scale, [*inputs.values()], allow_unused=True)
    gradients = {f"d {n}": g for n, g in zip(inputs, found, strict=True) if g is not None}
    made = {name: value.detach() for name, value in {"loss": loss, **outputs}.items()}
    return {**made, **{name: gradient / scale for name, gradient in gradients.items()}}


def _fused_lora(device: Any, dtype: Any) -> tuple[Results, Results]:
    """Frozen weights in the lower precision and float32 adapters, against peft's own forward."""
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
        return OutputReader()(head(body(embedding(ids)).tanh()))

    sparse = SparseHead(head, LogitTransform(), 2, embedding)
    inputs = {"weight": embedding.weight, "body": body.weight}
    with _mixed(device, dtype):
        ours = sparse(run, batch).total
        logits = run().logits.flatten(0, 1)
    plain = cross_entropy(logits.index_select(0, positions).float(), targets, reduction="sum")
    return _with_gradients(ours, inputs, dtype), _with_gradients(plain, inputs, dtype)


def _varlen_attention(device: Any, dtype: Any) -> tuple[Results, Results]:
    """What padding-free batches attend with on this device, against SDPA on padded rows."""
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


OPERATIONS: dict[str, Any] = {
    "fused LoRA": _fused_lora,
    "sparse head": _sparse_head,
    "tied embeddings": _tied_embeddings,
    "varlen attention": _varlen_attention,
    "clipping in the optimizer": _clipping,
}
"""By name: `run(device, dtype)` gives the results of our operation and those of the plain one."""


def assert_same(name: str, device: str, precision: str) -> None:
    torch.manual_seed(0)
    dtype = DTYPES[precision]
    ours, plain = OPERATIONS[name](torch.device(device), dtype)
    assert ours.keys() == plain.keys()
    close = tolerance_of(dtype or torch.float32)
    for each, wanted in plain.items():
        found = ours[each]
        kinds = [(value.dtype, value.shape, value.device) for value in (found, wanted)]
        assert kinds[0] == kinds[1], each
        if device != "meta":
            allowed = close.gradients if each.startswith("d ") else close.values
            assert relative_difference(found, wanted) < allowed, each


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_on_the_cpu(name: str, precision: str) -> None:
    if precision != "fp32":
        require_precision(precision)
    assert_same(name, "cpu", precision)


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("name", [name for name in OPERATIONS if "optimizer" not in name])
def test_shapes_dtypes_and_devices_on_meta(name: str, precision: str) -> None:
    assert_same(name, "meta", precision)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_on_cuda(name: str, precision: str) -> None:
    assert_same(name, "cuda", precision)


def unaligned(*shape: int) -> torch.Tensor:
    """Values behind two others, as in a file."""
    size = int(torch.Size(shape).numel())
    return torch.randn(size + 2)[2:].view(shape)


def test_every_weight_is_aligned_and_keeps_its_value() -> None:
    module = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Linear(3, 5, bias=False))
    module[2].weight = nn.Parameter(module[0].weight.data.T)  # a view of another weight
    module[0].weight.data = unaligned(3, 5)
    module[1].running_mean = unaligned(3)
    module.register_parameter("tied", module[0].weight)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    align_weights(module)
    assert all(value.data_ptr() % ALIGNMENT == 0 for value in module.state_dict().values())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.tied is module[0].weight


def test_weights_that_share_memory_still_do() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    first.weight.data = unaligned(4, 4)
    second.weight.data = first.weight.data
    align_weights(nn.ModuleList([first, second]))
    assert first.weight.data_ptr() == second.weight.data_ptr()
    assert first.weight.data_ptr() % ALIGNMENT == 0


def test_no_clipping_is_no_clipping() -> None:
    weight = torch.nn.Parameter(torch.tensor([30.0, 40.0]))
    (weight**2 / 2).sum().backward()
    assert make_clipper(Accelerator(cpu=True), None, [weight], 0.0)() == 50.0
    assert weight.grad.tolist() == [30.0, 40.0]


def test_a_difference_in_any_piece_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "AT_ONCE", 4)
    one = torch.arange(10.0).reshape(2, 5)
    other = one.clone()
    assert largest_difference(one, other) == (0.0, 9.0, 9.0)
    other[1, 0] = -20.0
    assert largest_difference(one, other) == (25.0, 9.0, 20.0)
    other[0, 0] = float("nan")
    assert math.isnan(largest_difference(one, other)[0])


def adapted(**settings: Any) -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4))
    model = nn.ModuleDict({"body": body}).double()
    config = LoraConfig(r=3, target_modules=["0", "2"], **settings)
    inject_adapter_in_model(config, model, adapter_name="default")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.normal_()
    return model.double()


def test_the_output_may_be_changed_in_place() -> None:
    model, x = adapted(), torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    fuse_adapters(model, "default")
    layer = model["body"][0]  # type: ignore[index]
    layer(x).mul_(2.0).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("settings", [{"lora_dropout": 0.1}, {"use_dora": True}])
def test_other_kinds_are_left_to_peft(settings: dict[str, Any]) -> None:
    assert fuse_adapters(adapted(**settings), "default") == 0


def test_switched_off_and_merged_adapters_go_peft_s_way() -> None:
    model, x = adapted(), torch.randn(2, 6, dtype=torch.float64)
    with_adapter = model["body"](x)  # type: ignore[index]
    fuse_adapters(model, "default")
    layers = [model["body"][0], model["body"][2]]  # type: ignore[index]
    for layer in layers:
        layer.enable_adapters(False)
    plain = model["body"](x)  # type: ignore[index]
    assert not torch.allclose(plain, with_adapter)
    for layer in layers:
        layer.enable_adapters(True)
        layer.merge()
    torch.testing.assert_close(model["body"](x), with_adapter)  # type: ignore[index]
