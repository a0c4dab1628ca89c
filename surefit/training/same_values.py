"""Lets all processes take the values of process 0, as bytes: gloo does not know every dtype."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from surefit.processes import talk_group

if TYPE_CHECKING:
    import torch


def take_from_first(tensors: Iterable[torch.Tensor]) -> None:
    """Let all processes take the tensors of process 0, one by one; those without values stay."""
    for tensor in tensors:
        if not tensor.is_meta:
            _send(_as_bytes(tensor), [tensor])


def take_together(tensors: Iterable[torch.Tensor]) -> None:
    """The same for small tensors, all those of a device at once."""
    import torch

    # Wide values first: a value begins at a multiple of its size.
    ordered = sorted(tensors, key=lambda each: (str(each.device), -each.itemsize))
    for _, group in groupby(ordered, key=lambda each: each.device):
        found = list(group)
        _send(torch.cat([_as_bytes(each) for each in found]), found)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _send(sent: torch.Tensor, into: list[torch.Tensor]) -> None:
    import torch
    from torch import distributed

    distributed.broadcast(sent, 0, group=talk_group() if sent.device.type == "cpu" else None)
    parts = torch.split(sent, [each.nbytes for each in into])
    with torch.no_grad():
        for tensor, part in zip(into, parts, strict=True):
            tensor.copy_(part.view(tensor.dtype).view(tensor.shape))
