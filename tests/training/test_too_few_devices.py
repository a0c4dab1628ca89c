"""Several processes need a device each; without devices that they can share, they use the CPU."""

from __future__ import annotations

import pytest
import torch

from surefit import processes
from surefit.checks import machine
from surefit.cli import launch
from surefit.errors import UsageError


def pretend(monkeypatch: pytest.MonkeyPatch, kind: str | None, count: int = 1) -> None:
    """Let torch see so many devices of a kind."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: kind is not None)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count if kind else 0)
    found = None if kind is None else torch.device(kind)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: found)


def as_one_of(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let this process be the first of so many on this host."""
    for name, value in (("WORLD_SIZE", count), ("LOCAL_WORLD_SIZE", count), ("RANK", 0)):
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_more_processes_than_devices_are_refused_before_they_meet(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    pretend(monkeypatch, kind, 2)
    as_one_of(monkeypatch, 4)
    monkeypatch.setattr("accelerate.PartialState", None)
    with pytest.raises(UsageError) as refused:
        processes.object_group()
    assert f"4 processes on this host need a device each, but this process sees 2 ({kind})" in (
        refused.value.message
    )
    assert "--processes 2" in refused.value.fix
    monkeypatch.setattr("torch.distributed.launcher.api.elastic_launch", None)
    with pytest.raises(UsageError, match="4 processes on this host need a device each"):
        launch.launch(4, ["train"])
    for enough, devices, num in ((kind, 4, 4), (kind, 1, 1), (None, 0, 8), ("mps", 1, 8)):
        pretend(monkeypatch, enough, devices)
        processes.check_devices(num)


@pytest.mark.parametrize(("kind", "expected"), [("cuda", False), ("mps", True), (None, True)])
def test_several_processes_on_a_mac_train_on_its_cpu(
    monkeypatch: pytest.MonkeyPatch, kind: str | None, expected: bool
) -> None:
    pretend(monkeypatch, kind)
    assert not processes.on_cpu()  # one process
    as_one_of(monkeypatch, 2)
    assert processes.on_cpu() is expected
    if expected:
        assert machine.device_name().startswith("cpu (")
