"""Messages of torch, numpy, safetensors and accelerate, raised for real: code, then the call."""

from __future__ import annotations

import copy
import io
import threading
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

Call = Callable[[Path], Any]


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype)


def longs(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def trained(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, requires_grad=True)


def collate(*rows: Any) -> Any:
    return torch.utils.data.default_collate(list(rows))


def batches(rows: list[Any], collate_fn: Callable[..., Any]) -> list[Any]:
    return list(DataLoader(rows, len(rows), collate_fn=collate_fn))


def spawned(**more: Any) -> list[Any]:
    return list(DataLoader([1, 2], num_workers=1, multiprocessing_context="spawn", **more))


def backward_twice() -> None:
    weight = trained(2)
    loss = (weight * weight).sum()
    loss.backward()
    loss.backward()


def overwrite() -> None:
    out = trained(2).exp()
    out += 1
    out.sum().backward()


def overwrite_leaf() -> None:
    weight = trained(2)
    weight += 1


def clip_nan() -> None:
    weight = trained(2)
    weight.grad = torch.tensor([float("nan"), 1.0])
    nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)


def anomaly() -> None:
    with torch.autograd.set_detect_anomaly(True):
        weight = torch.zeros(1, requires_grad=True)
        (weight.sqrt() * 0).sum().backward()


def unscale_half() -> None:
    model, scaler = nn.Linear(1, 1).half(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler.scale(model(zeros(1, 1, dtype=torch.half)).float().sum()).backward()
    scaler.unscale_(optimizer)


def load_optimizer(groups: bool) -> None:
    model = nn.Linear(2, 2)
    parts = [{"params": [model.weight]}, {"params": [model.bias]}] if groups else [model.weight]
    saved = torch.optim.SGD(parts, lr=1.0).state_dict()
    torch.optim.SGD(model.parameters(), lr=1.0).load_state_dict(saved)


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def safe_load(content: bytes) -> None:
    from safetensors.torch import load

    load(content)


def safe_save(folder: Path, **tensors: torch.Tensor) -> None:
    from safetensors.torch import save_file

    save_file(tensors, folder / "x.safetensors")


def set_other_shape() -> None:
    from accelerate.utils import set_module_tensor_to_device

    set_module_tensor_to_device(nn.Linear(2, 2), "weight", "cpu", value=zeros(3))


def never_fits() -> None:
    from accelerate.utils import find_executable_batch_size

    @find_executable_batch_size(starting_batch_size=2)
    def step(batch_size: int) -> None:
        raise RuntimeError("CUDA out of memory.")

    step()


def split_unevenly() -> None:
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler, SequentialSampler

    sampler = BatchSampler(SequentialSampler(range(10)), 5, False)
    BatchSamplerShard(sampler, num_processes=2, split_batches=True)


def huber(labels: torch.Tensor) -> None:
    functional.huber_loss(trained(2), labels).backward()


def mixed(call: Callable[[torch.dtype], Any], dtype: torch.dtype) -> Call:
    return lambda _: call(dtype)


FLOATING, INTEGER = torch.float64, torch.int64
MIXED: dict[str, Callable[[torch.dtype], Any]] = {
    "linear": lambda dtype: nn.Linear(2, 1)(zeros(2, 2, dtype=dtype)),
    "linear without bias": lambda dtype: nn.Linear(2, 1, bias=False)(zeros(2, dtype=dtype)),
    "addmm": lambda dtype: torch.addmm(zeros(2, 2), zeros(2, 2), zeros(2, 2, dtype=dtype)),
    "bmm": lambda dtype: torch.bmm(zeros(2, 2, 2, dtype=dtype), zeros(2, 2, 2)),
    "class weights": lambda dtype: functional.cross_entropy(
        zeros(2, 3), longs(0, 1), weight=zeros(3, dtype=dtype)
    ),
    "huber": lambda dtype: huber(zeros(2, dtype=dtype)),
    "attention": lambda dtype: functional.scaled_dot_product_attention(
        zeros(1, 1, 2, 4, dtype=dtype), zeros(1, 1, 2, 4), zeros(1, 1, 2, 4)
    ),
    "vector": lambda dtype: zeros(2, 2) @ zeros(2, dtype=dtype),
    "dot": lambda dtype: zeros(2) @ zeros(2, dtype=dtype),
    "baddbmm": lambda dtype: torch.baddbmm(
        zeros(2, 2, 2, dtype=dtype), zeros(2, 2, 2), zeros(2, 2, 2)
    ),
    "convolution": lambda dtype: nn.Conv1d(3, 8, 3)(zeros(2, 3, 8, dtype=dtype)),
    "recurrent": lambda dtype: nn.LSTM(4, 8)(zeros(2, 3, 4, dtype=dtype)),
    "assignment": lambda dtype: zeros(2, 2).__setitem__(longs(0, 1), zeros(2, 2, dtype=dtype)),
    "index_add": lambda dtype: zeros(2, 2).index_add_(0, longs(0, 1), zeros(2, 2, dtype=dtype)),
    "lerp": lambda dtype: torch.lerp(zeros(2), zeros(2, dtype=dtype), 0.5),
    "masked_scatter": lambda dtype: zeros(2).masked_scatter(zeros(2).bool(), zeros(2, dtype=dtype)),
}
"""Operations on a tensor of that dtype and on float32 tensors."""

CELL = lambda row: row  # noqa: E731  a worker cannot be sent a lambda

RAISED: dict[str, tuple[str, Call]] = {
    "unequal rows": ("SF601", lambda _: torch.tensor([[1] * 434, [1] * 512])),
    "stack": ("SF603", lambda _: torch.stack([zeros(0), zeros(0), zeros(198)])),
    "unequal lists": ("SF603", lambda _: collate({"a": [1, 2]}, {"a": [1]})),
    "worker": (
        "SF603",
        lambda _: list(DataLoader([zeros(2), zeros(3)], 2, num_workers=1)),
    ),
    "none in a batch": ("SF604", lambda _: collate(None, None)),
    "text in a tensor": ("SF604", lambda _: torch.tensor(["a"])),
    "none in a tensor": ("SF604", lambda _: torch.tensor([None, 1])),
    "objects": ("SF604", lambda _: torch.tensor(np.array([None, 1], dtype=object))),
    "ragged array": ("SF605", lambda _: batches([[1, 2], [1]], np.array)),
    "no rows": ("SF600", lambda _: DataLoader([], shuffle=True)),
    "width": ("SF610", lambda _: nn.Linear(271, 256)(zeros(4, 9, 40))),
    "batch norm axes": ("SF611", lambda _: nn.BatchNorm2d(8)(zeros(1, 8))),
    "convolution axes": ("SF611", lambda _: nn.Conv2d(3, 8, 3)(zeros(2, 1, 8, 8, 8))),
    "recurrent axes": ("SF611", lambda _: nn.LSTM(4, 8)(zeros(2, 3, 4, 4))),
    "broadcast": ("SF612", lambda _: zeros(4, 8) + zeros(4, 9)),
    "concatenate": ("SF612", lambda _: torch.cat([zeros(2, 3), zeros(2, 4)])),
    "concatenate axes": ("SF612", lambda _: torch.cat([zeros(2, 3), zeros(2)])),
    "counts": ("SF613", lambda _: functional.cross_entropy(zeros(8, 3), longs(0, 1))),
    "one-hot": ("SF614", lambda _: functional.nll_loss(zeros(2, 3), zeros(2, 3).long())),
    "class axis": ("SF614", lambda _: functional.cross_entropy(zeros(2, 3, 5), zeros(2, 4).long())),
    "binary shape": (
        "SF614",
        lambda _: functional.binary_cross_entropy_with_logits(zeros(2, 3), zeros(2)),
    ),
    "map of classes": (
        "SF614",
        lambda _: functional.cross_entropy(zeros(2, 3, 5, 5), zeros(2, 4, 4).long()),
    ),
    "channels": ("SF615", lambda _: nn.Conv2d(3, 8, 3)(zeros(2, 1, 8, 8))),
    "norm channels": ("SF615", lambda _: nn.BatchNorm1d(8)(zeros(4, 7))),
    "view": ("SF616", lambda _: zeros(4, 8).view(3, 5)),
    "view after transpose": ("SF616", lambda _: zeros(4, 8).t().view(32)),
    "layer norm": ("SF617", lambda _: nn.LayerNorm(8)(zeros(2, 4))),
    "recurrent width": ("SF617", lambda _: nn.LSTM(4, 8)(zeros(2, 3, 5))),
    "attention width": ("SF617", lambda _: nn.MultiheadAttention(8, 2)(*[zeros(2, 3, 6)] * 3)),
    "batched product": ("SF617", lambda _: torch.bmm(zeros(2, 3, 4), zeros(2, 5, 6))),
    "vector": ("SF617", lambda _: zeros(4, 8) @ zeros(9)),
    "one row": ("SF618", lambda _: nn.BatchNorm1d(8)(zeros(1, 8))),
    "kernel": ("SF619", lambda _: nn.Conv2d(3, 8, 5)(zeros(2, 3, 2, 2))),
    "id": ("SF620", lambda _: nn.Embedding(4, 2)(longs(5))),
    "label": ("SF621", lambda _: functional.cross_entropy(zeros(2, 3), longs(0, 7))),
    "one-hot label": ("SF621", lambda _: functional.one_hot(longs(5), 3)),
    "float labels": ("SF623", lambda _: functional.cross_entropy(zeros(2, 3), zeros(2))),
    "probabilities as long": (
        "SF623",
        lambda _: functional.cross_entropy(zeros(2, 3), zeros(2, 3).long()),
    ),
    "binary long": (
        "SF623",
        lambda _: functional.binary_cross_entropy_with_logits(zeros(2, 3), zeros(2, 3).long()),
    ),
    "boolean labels": ("SF623", lambda _: functional.l1_loss(trained(2), zeros(2).bool())),
    "float ids": ("SF624", lambda _: nn.Embedding(4, 2)(torch.tensor([1.5]))),
    "logits as probabilities": (
        "SF625",
        lambda _: functional.binary_cross_entropy(torch.tensor([2.0]), torch.tensor([1.0])),
    ),
    "no gradient": ("SF630", lambda _: (zeros(2) * 2).sum().backward()),
    "twice": ("SF631", lambda _: backward_twice()),
    "in place": ("SF632", lambda _: overwrite()),
    "leaf in place": ("SF632", lambda _: overwrite_leaf()),
    "computed parameter": ("SF633", lambda _: torch.optim.SGD([trained(2) * 2], lr=0.1)),
    "no parameters": ("SF634", lambda _: torch.optim.SGD([], lr=0.1)),
    "loss per row": ("SF635", lambda _: (trained(2) * 2).backward()),
    "half gradients": ("SF636", lambda _: unscale_half()),
    "unscaled": (
        "SF636",
        lambda _: torch.amp.GradScaler("cpu").step(torch.optim.SGD([trained(1)], lr=0.1)),
    ),
    "nan norm": ("SF637", lambda _: clip_nan()),
    "nan backward": ("SF637", lambda _: anomaly()),
    "nan sampling": ("SF637", lambda _: torch.multinomial(torch.tensor([float("nan"), 1.0]), 1)),
    "numpy with graph": ("SF638", lambda _: trained(2).numpy()),
    "deepcopy with graph": ("SF638", lambda _: copy.deepcopy(trained(2) * 2)),
    "id dtype of one_hot": ("SF624", lambda _: functional.one_hot(zeros(2))),
    "id dtype of gather": ("SF624", lambda _: zeros(2).gather(0, zeros(2))),
    "id dtype of index_select": ("SF624", lambda _: zeros(2).index_select(0, zeros(2))),
    "id dtype of an index": ("SF624", lambda _: zeros(2)[zeros(2)]),
    "double": ("SF640", lambda _: nn.Linear(2, 1)(zeros(2, 2, dtype=torch.double))),
    "layer norm dtype": ("SF640", lambda _: nn.LayerNorm(2)(zeros(2, 2, dtype=torch.double))),
    "scatter dtype": ("SF640", lambda _: zeros(2).scatter(0, longs(0), zeros(1).half())),
    **{f"{name} of two dtypes": ("SF640", mixed(call, FLOATING)) for name, call in MIXED.items()},
    **{f"{name} of integers": ("SF648", mixed(call, INTEGER)) for name, call in MIXED.items()},
    "softmax of integers": ("SF648", lambda _: functional.softmax(longs(1, 2), 0)),
    "add to integers": ("SF648", lambda _: longs(1, 2).add_(0.5)),
    "mean of integers": ("SF648", lambda _: longs(1, 2).mean()),
    "spread of integers": ("SF648", lambda _: longs(1, 2).std()),
    "norm of integers": ("SF648", lambda _: longs(1, 2).norm()),
    "gradient of integers": ("SF648", lambda _: longs(1, 2).requires_grad_()),
    "integer parameter": ("SF648", lambda _: nn.Parameter(longs(1, 2))),
    "integer mask": ("SF649", lambda _: zeros(2).masked_fill(longs(0, 1), 1.0)),
    "integer condition": ("SF649", lambda _: torch.where(longs(0, 1), zeros(2), zeros(2))),
    "integer attention mask": (
        "SF649",
        lambda _: functional.scaled_dot_product_attention(
            *[zeros(1, 1, 2, 4)] * 3, attn_mask=zeros(2, 2).long()
        ),
    ),
    "integer padding mask": (
        "SF649",
        lambda _: nn.MultiheadAttention(8, 2)(
            *[zeros(2, 3, 8)] * 3, key_padding_mask=zeros(3, 2).long()
        ),
    ),
    "one minus a mask": ("SF649", lambda _: 1 - zeros(2).bool()),
    "minus a mask": ("SF649", lambda _: -zeros(2).bool()),
    "not of a floating-point mask": ("SF649", lambda _: ~zeros(2)),
    "constant in half precision": (
        "SF668",
        lambda _: zeros(2).half().masked_fill(zeros(2).bool(), -1e9),
    ),
    "infinity among integers": (
        "SF668",
        lambda _: longs(1, 2).masked_fill(zeros(2).bool(), float("-inf")),
    ),
    "attention dtype": (
        "SF640",
        lambda _: functional.scaled_dot_product_attention(
            zeros(1, 1, 2, 4).double(), zeros(1, 1, 2, 4), zeros(1, 1, 2, 4)
        ),
    ),
    "meta": ("SF642", lambda _: zeros(2, 2) + torch.zeros(2, 2, device="meta")),
    "meta to cpu": ("SF643", lambda _: torch.zeros(2, device="meta").cpu()),
    "no cuda": ("SF644", lambda _: zeros(1).cuda()),
    "load to cuda": (
        "SF644",
        lambda _: torch.load(io.BytesIO(saved(zeros(2))), map_location="cuda"),
    ),
    "allocate": ("SF651", lambda _: torch.empty(1 << 46)),
    "allocate an array": ("SF651", lambda _: batches([1 << 46], np.empty)),
    "no batch size": ("SF655", lambda _: never_fits()),
    "pickle a lambda": ("SF657", lambda _: spawned(collate_fn=CELL)),
    "pickle a local": ("SF657", lambda _: spawned(collate_fn=lambda rows: rows)),
    "pickle a lock": ("SF657", lambda _: spawned(collate_fn=partial(print, threading.Lock()))),
    "split batches": ("SF665", lambda _: split_unevenly()),
    "other shapes": (
        "SF670",
        lambda _: nn.Linear(2, 3).load_state_dict(nn.Linear(2, 4).state_dict()),
    ),
    "other shape on a device": ("SF670", lambda _: set_other_shape()),
    "other names": (
        "SF671",
        lambda _: nn.Sequential(nn.Linear(2, 3)).load_state_dict({"module.0.weight": zeros(3, 2)}),
    ),
    "other optimizer": ("SF672", lambda _: load_optimizer(groups=False)),
    "other groups": ("SF672", lambda _: load_optimizer(groups=True)),
    "pickled object": (
        "SF673",
        lambda _: torch.load(io.BytesIO(saved(types.SimpleNamespace(a=1)))),
    ),
    "pointer file": (
        "SF674",
        lambda _: torch.load(io.BytesIO(b"version https://git-lfs"), weights_only=False),
    ),
    "cut file": ("SF674", lambda _: torch.load(io.BytesIO(saved(zeros(1000))[:2000]))),
    "pointer as safetensors": ("SF674", lambda _: safe_load(b"version https://git-lfs")),
    "no such interface": (
        "SF903",
        lambda _: torch.distributed.ProcessGroupGloo.create_device(interface="none0"),
    ),
    "shared": ("SF675", lambda folder: safe_save(folder, a=(one := zeros(4)), b=one)),
    "not contiguous": ("SF675", lambda folder: safe_save(folder, a=zeros(4, 3).t())),
}
