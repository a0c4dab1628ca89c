"""Checkpoints: weights, optimizer and place in the run, as safetensors and JSON, no pickle."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit import atomic
from surefit.errors import RunFailedError
from surefit.models.lora import is_adapted
from surefit.models.lora_files import base_fingerprint
from surefit.models.shard_module import is_sharded, own_shard, reshard
from surefit.models.trained_tensors import trained_tensors
from surefit.processes import is_main, together
from surefit.run.checkpoint_state import SHARDED_VERSION, About, State, read_about, write_about
from surefit.run.choose_checkpoint import (
    checkpoint_damage,
    checkpoint_path,
    latest_checkpoint,
    list_checkpoints,
)
from surefit.run.optimizer_state import flatten_state, unflatten_state
from surefit.run.sharded_checkpoints import load_divided, load_sharded, save_sharded

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

__all__ = [
    "Saver",
    "State",
    "checkpoint_path",
    "latest_checkpoint",
    "load_checkpoint",
    "save_checkpoint",
]


class Saver:
    """Saves checkpoints without waiting for the disk.

    When `save` returns, the bytes have been handed to the system, so training may change the
    weights. A thread waits until they are on the disk, gives the checkpoint its name and deletes
    old ones. What goes wrong there is raised by the next `save`, or at the end of the block.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="surefit-save")
        self._pool.submit(int)  # starts the thread, which has no room to start near a memory limit
        self._waiting: Future[None] | None = None
        self._at_once = False

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
        with together("saving the step before") if is_sharded(module) else nullcontext():
            self._wait()
        best = state.best_step

        def finish(publish: Callable[[], None]) -> None:
            publish()
            prune_checkpoints(self._folder, self._keep, best)

        def later(publish: Callable[[], None]) -> None:
            if self._at_once:
                finish(publish)
            else:
                self._waiting = self._pool.submit(finish, publish)

        save_checkpoint(self._folder, module, optimizer, scaler, state, later)

    def save_at_once(self) -> None:
        """From now on, save in the calling thread, as a process does that is short of memory.

        An earlier save that failed is forgotten, because the next one replaces it.
        """
        with suppress(Exception):
            self._wait()
        self._at_once = True

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

    sharded = is_sharded(module)
    with together("checking what is to be saved") if sharded else nullcontext():
        check_finite(module, optimizer, state.step)
        _refuse_deleted(folder, state.step)
    path, adapted = checkpoint_path(folder, state.step), is_adapted(module)
    base = base_fingerprint(module) if adapted else None
    if sharded:
        save_sharded(path, module, optimizer, About(state, {}, scaler, base), later)
        return
    tensors, rest = flatten_state(optimizer.state_dict())
    with atomic.new_folder(path, later, sealed=True) as temporary:
        if adapted:
            save_file(_trained(module), str(temporary / "model.safetensors"))
        else:
            save_model(module, str(temporary / "model.safetensors"))
        save_file(tensors, str(temporary / "optimizer.safetensors"))
        write_about(temporary, About(state, rest, scaler, base))


def _refuse_deleted(folder: Path, step: int) -> None:
    if not folder.is_dir():
        raise RunFailedError(
            f"{folder} was deleted while the run was training, so step {step} cannot be saved.",
            "Start the run again, and leave its folder where it is while it trains.",
        )


def check_finite(module: nn.Module, optimizer: Optimizer, step: int) -> None:
    """Refuse to save trained weights, or optimizer state, with NaN or infinite values."""
    reshard(module)
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    states = [
        (f"{key} of {name}", value)
        for name, parameter in named
        for key, value in optimizer.state.get(parameter, {}).items()
    ]
    wrong = [name for name, tensor in (*named, *states) if not _is_finite(tensor)]
    if wrong:
        raise RunFailedError(
            f"After step {step}, {len(wrong)} of {len(named) + len(states)} trained weights and "
            f"optimizer states hold NaN or infinite values: {', '.join(wrong[:3])}. They are not "
            "saved.",
            "Resume from the checkpoint before it in a new run with a lower --lr, or use "
            "precision=fp32.",
        )


def _is_finite(value: Any) -> bool:
    """Whether all values are finite; a finite sum says so in one pass without a copy."""
    import torch

    value = own_shard(value)
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.is_meta:
        return True
    with torch.no_grad():
        total = value.detach().sum(dtype=torch.float32)
        return bool(torch.isfinite(total)) or bool(torch.isfinite(value.detach()).all())


def load_checkpoint(
    path: Path, module: nn.Module, optimizer: Optimizer | None = None
) -> tuple[State, dict[str, Any]]:
    """Put a checkpoint's weights and optimizer state back; return its State and scaler.

    Damaged files are refused; `choose_checkpoint` finds a checkpoint that is whole. A checkpoint of
    one process may be read by several that divide the model, and the other way round.
    """
    sharded = is_sharded(module)
    with together("reading a checkpoint") if sharded else nullcontext():
        if is_main() or not sharded:
            _refuse_damaged(path)
    saved = read_about(path)
    if saved.format_version > SHARDED_VERSION:
        raise RunFailedError(
            f"{path} has format {saved.format_version}; this version reads up to "
            f"{SHARDED_VERSION}.",
            "Resume with the version of surefit that wrote it.",
        )
    if is_adapted(module):
        _refuse_other_base(path, module, saved.base)
    if saved.is_sharded:
        load_sharded(path, module, optimizer, saved)
    elif sharded:
        load_divided(path, module, optimizer, saved)
    else:
        _load_whole(path, module, optimizer, saved)
    return saved.state, saved.scaler


def _refuse_damaged(path: Path) -> None:
    damage = checkpoint_damage(path)
    if damage:
        raise RunFailedError(
            f"The checkpoint {path.name} is damaged: {damage[0]}.",
            f"Resume from the checkpoint before it: surefit train --resume {path.parents[1]}",
        )


def _load_whole(path: Path, module: nn.Module, optimizer: Optimizer | None, saved: About) -> None:
    from safetensors.torch import load_file, load_model

    if is_adapted(module):
        _load_trained(path, module)
    else:
        load_model(module, str(path / "model.safetensors"))
    if optimizer is not None:
        tensors = load_file(str(path / "optimizer.safetensors"))
        optimizer.load_state_dict(unflatten_state(tensors, saved.optimizer))


def saved_tensors(module: nn.Module) -> dict[str, Any]:
    """What a checkpoint holds of a module: all of it; with adapters, what is trained and buffers.

    The tensors are the module's own.
    """
    if is_adapted(module):
        return trained_tensors(module)
    return dict(module.state_dict(keep_vars=True))


def _trained(module: nn.Module) -> dict[str, Any]:
    """What changes while a frozen model's adapters are trained: their weights, and buffers."""
    return {
        name: tensor.detach().cpu().clone().contiguous()
        for name, tensor in saved_tensors(module).items()
    }


def _refuse_other_base(path: Path, module: nn.Module, base: str | None) -> None:
    found = base_fingerprint(module)
    if base != found:
        raise RunFailedError(
            f"{path} belongs to another base model (digest {base}, found {found}).",
            "Put back the model that the run was begun with.",
        )


def _load_trained(path: Path, module: nn.Module) -> None:
    from safetensors.torch import load_file

    tensors = load_file(str(path / "model.safetensors"))
    trained = set(saved_tensors(module))
    # Earlier versions also saved the scales of quantized weights, which do not change.
    differing = (trained - set(tensors)) | (set(tensors) - set(module.state_dict()))
    if differing:
        raise RunFailedError(
            f"{path} does not hold what is trained: {min(differing)} differs.",
            "Resume with the version of surefit that wrote it.",
        )
    module.load_state_dict({name: tensors[name] for name in trained}, strict=False)


def prune_checkpoints(folder: Path, keep: int, best_step: int | None) -> None:
    """Delete all but the latest `keep` checkpoints and the best one."""
    best = checkpoint_path(folder, best_step) if best_step is not None else None
    for path in list_checkpoints(folder)[:-keep]:
        if path != best:
            atomic.remove_folder(path)
