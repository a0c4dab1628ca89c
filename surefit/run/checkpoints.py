"""Checkpoints: weights, optimizer and place in the run, as safetensors and JSON, no pickle."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit import atomic
from surefit.errors import RunFailedError
from surefit.models.lora import is_adapted
from surefit.models.lora_files import base_fingerprint

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

FORMAT_VERSION = 1


@dataclass
class State:
    """Where a run is. All else (order, learning rate, dropout) is a function of the step."""

    step: int = 0
    tokens: int = 0
    evaluated_step: int = -1
    best: float | None = None
    best_loss: float | None = None
    best_step: int | None = None
    stale_evaluations: int = 0
    stopped_early: bool = False


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return folder / f"step-{step:08d}"


class Saver:
    """Saves checkpoints without waiting for the disk.

    When `save` returns, the bytes have been handed to the system, so training may change the
    weights. A thread waits until they are on the disk, gives the checkpoint its name and deletes
    old ones. What goes wrong there is raised by the next `save`, or at the end of the block.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="surefit-save")
        self._waiting: Future[None] | None = None

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._wait()
        finally:
            self._pool.shutdown()

    def save(
        self, module: nn.Module, optimizer: Optimizer, scaler: dict[str, Any], state: State
    ) -> None:
        """Save what a run needs to go on after this step."""
        self._wait()
        best = state.best_step

        def finish(publish: Callable[[], None]) -> None:
            publish()
            prune_checkpoints(self._folder, self._keep, best)

        def later(publish: Callable[[], None]) -> None:
            self._waiting = self._pool.submit(finish, publish)

        save_checkpoint(self._folder, module, optimizer, scaler, state, later)

    def _wait(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.result()


def save_checkpoint(
    folder: Path,
    module: nn.Module,
    optimizer: Optimizer,
    scaler: dict[str, Any],
    state: State,
    later: atomic.Later | None = None,
) -> None:
    """Write one checkpoint, whole or not at all; of a model with adapters, what is trained."""
    from safetensors.torch import save_file, save_model

    tensors, rest = _flatten(optimizer.state_dict())
    with atomic.new_folder(checkpoint_path(folder, state.step), later) as temporary:
        if is_adapted(module):
            save_file(_trained(module), str(temporary / "model.safetensors"))
        else:
            save_model(module, str(temporary / "model.safetensors"))
        save_file(tensors, str(temporary / "optimizer.safetensors"))
        about = {
            "format_version": FORMAT_VERSION,
            "state": asdict(state),
            "optimizer": rest,
            "scaler": scaler,
            "base": base_fingerprint(module) if is_adapted(module) else None,
        }
        text = json.dumps(about, indent=1, allow_nan=False)
        (temporary / "state.json").write_text(text, encoding="utf-8")


def load_checkpoint(
    path: Path, module: nn.Module, optimizer: Optimizer | None = None
) -> tuple[State, dict[str, Any]]:
    """Put a checkpoint's weights and optimizer state back; return its State and scaler."""
    from safetensors.torch import load_file, load_model

    saved = json.loads((path / "state.json").read_text(encoding="utf-8"))
    if saved["format_version"] != FORMAT_VERSION:
        raise RunFailedError(
            f"{path} has format {saved['format_version']}, expected {FORMAT_VERSION}.",
            "Resume with the version of surefit that wrote it.",
        )
    if is_adapted(module):
        _load_trained(path, module, saved["base"])
    else:
        load_model(module, str(path / "model.safetensors"))
    if optimizer is not None:
        tensors = load_file(str(path / "optimizer.safetensors"))
        optimizer.load_state_dict(_unflatten(tensors, saved["optimizer"]))
    return State(**saved["state"]), saved["scaler"]


def _trained(module: nn.Module) -> dict[str, Any]:
    """What changes while a frozen model's adapters are trained: their weights, and buffers."""
    names = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    frozen = {name for name, _ in module.named_parameters(remove_duplicate=False)} - names
    return {
        name: tensor.detach().cpu().clone().contiguous()
        for name, tensor in module.state_dict().items()
        if name not in frozen
    }


def _load_trained(path: Path, module: nn.Module, base: str | None) -> None:
    from safetensors.torch import load_file

    found = base_fingerprint(module)
    if base != found:
        raise RunFailedError(
            f"{path} belongs to another base model (digest {base}, found {found}).",
            "Put back the model that the run was begun with.",
        )
    tensors = load_file(str(path / "model.safetensors"))
    missing = set(_trained(module)) ^ set(tensors)
    if missing:
        raise RunFailedError(
            f"{path} does not hold what is trained: {min(missing)} differs.",
            "Resume with the version of surefit that wrote it.",
        )
    module.load_state_dict(tensors, strict=False)


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint, if there is any."""
    found = sorted(folder.glob("step-*"))
    return found[-1] if found else None


def prune_checkpoints(folder: Path, keep: int, best_step: int | None) -> None:
    """Delete all but the latest `keep` checkpoints and the best one."""
    best = checkpoint_path(folder, best_step) if best_step is not None else None
    for path in sorted(folder.glob("step-*"))[:-keep]:
        if path != best:
            shutil.rmtree(path)


def _flatten(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Optimizer state as named tensors and a JSON-like rest."""
    import torch

    tensors: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    for index, slots in state["state"].items():
        for name, value in slots.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{index}/{name}"] = value.detach().cpu().contiguous()
            else:
                numbers[f"{index}/{name}"] = value
    return tensors, {"numbers": numbers, "param_groups": _plain(state["param_groups"])}


def _plain(groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: list(v) if isinstance(v, tuple) else v for k, v in g.items()} for g in groups]


def _unflatten(tensors: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    slots: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **rest["numbers"]}.items():
        index, name = key.split("/", 1)
        slots.setdefault(int(index), {})[name] = value
    groups = [
        {k: tuple(v) if k == "betas" else v for k, v in group.items()}
        for group in rest["param_groups"]
    ]
    return {"state": slots, "param_groups": groups}
