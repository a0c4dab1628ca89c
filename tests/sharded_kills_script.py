"""Kills, damage and values that are not finite while a divided model is saved; prints what is left.

Each scenario saves step 1, and then fails in step 2 or while the model is gathered.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import accelerate  # noqa: F401 - forked processes have it
import torch
from forked_processes import run, start_group
from reshard_script import make, step
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

from surefit import atomic
from surefit.errors import SurefitError
from surefit.models import gathered_model
from surefit.models.gathered_model import Skeleton
from surefit.models.shard_module import own_shard
from surefit.processes import num_processes, process_index
from surefit.run.checkpoint_state import State
from surefit.run.checkpoints import load_checkpoint, save_checkpoint
from surefit.run.choose_checkpoint import choose_checkpoint


def killed_in_save(folder: Path, victim: int) -> None:
    """One process dies when half of its file is written."""
    module, optimizer = _save_first(folder)
    if process_index() == victim:
        HuggingFaceStorageWriter.write_data = _write_half
    step(module, optimizer, 2)
    save_checkpoint(folder, module, optimizer, {}, State(step=2))


def _write_half(self: Any, plan: Any, planner: Any) -> None:
    (Path(self.path) / "shard-00009-model-00001-of-00001.safetensors").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)


def killed_in_gather(folder: Path, victim: int) -> None:
    """One process dies when some tensors are gathered."""
    skeleton = Skeleton(make(None)[0])
    module, _ = _save_first(folder)
    seen = []

    def gather(tensor: Any) -> Any:
        seen.append(tensor)
        if process_index() == victim and len(seen) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor

    gathered_model.gather_whole = gather
    skeleton.gather(module, folder)


def not_finite(folder: Path, victim: int) -> None:
    """One share has a NaN."""
    module, optimizer = _save_first(folder)
    if process_index() == victim:
        with torch.no_grad():
            own_shard(module.embed.weight).fill_(float("nan"))
    _expect(lambda: save_checkpoint(folder, module, optimizer, {}, State(step=2)))


def full_disk(folder: Path, victim: int) -> None:
    """One process cannot write."""
    module, optimizer = _save_first(folder)
    if process_index() == victim:
        HuggingFaceStorageWriter.write_data = _no_space
    try:
        save_checkpoint(folder, module, optimizer, {}, State(step=2))
    except OSError as error:
        print("failed with", error.strerror)


def _no_space(self: Any, plan: Any, planner: Any) -> None:
    raise OSError(28, "No space left on device")


def damaged(folder: Path, victim: int) -> None:
    """A shard is changed after it was written; the checkpoint is refused by all processes."""
    module, optimizer = _save_first(folder)
    step(module, optimizer, 2)
    save_checkpoint(folder, module, optimizer, {}, State(step=2))
    torch.distributed.barrier()  # process 0 has given it its name
    if process_index() == victim:
        shard = sorted((folder / "step-00000002" / "shards").iterdir())[-1]
        content = bytearray(shard.read_bytes())
        content[-1] ^= 1
        shard.write_bytes(bytes(content))
    torch.distributed.barrier()
    _expect(lambda: load_checkpoint(folder / "step-00000002", module, optimizer))


def left_alone(folder: Path, victim: int) -> None:
    """Process 0 reads the model from the shards while the others wait for something else."""
    gathered, read = Skeleton(make(None)[0]), Skeleton(make(None)[0])
    module, _ = _save_first(folder)
    expected = gathered.gather(module, folder)
    if process_index() == victim:
        return
    alone = read.allocate(module, folder)
    load_checkpoint(folder / "step-00000001", alone)
    assert alone.head.weight is alone.embed.weight
    for name, value in expected.state_dict().items():
        assert torch.equal(alone.state_dict()[name], value), name


def _expect(call: Any) -> None:
    try:
        call()
    except SurefitError as error:
        print("failed with", error.message.replace(str(Path(sys.argv[1])), ""))
    else:
        raise AssertionError("expected an error")


def _save_first(folder: Path) -> tuple[Any, Any]:
    mesh = start_group(num_processes())
    module, optimizer = make(mesh)
    step(module, optimizer, 1)
    save_checkpoint(folder, module, optimizer, {}, State(step=1))
    return module, optimizer


SCENARIOS = {
    killed_in_save: (0, 1),
    killed_in_gather: (1,),
    not_finite: (1,),
    full_disk: (1,),
    damaged: (1,),
    left_alone: (1,),
}
"""Each with the processes that it happens to."""


def main(root: Path) -> None:
    for scenario, victims in SCENARIOS.items():
        for victim in victims:
            folder = root / "checkpoints"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            print(f"== {scenario.__name__} {victim}", flush=True)
            codes = run(2, scenario, folder, victim)
            atomic.sweep(folder)
            chosen = choose_checkpoint(folder)
            left = sorted(path.name for path in folder.iterdir())
            print("codes", *codes)
            print("left", *left)
            print("resumes from", chosen.path.name if chosen.path else None)
            for notice in chosen.notices:
                print("notice", notice.split(":")[0], flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
