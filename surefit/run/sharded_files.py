"""The tensors of a sharded checkpoint: each process writes its shares, and reads those it needs.

DCP (torch.distributed.checkpoint) plans who writes and who reads what; its safetensors storage
holds the values. Its other storage, and its `.metadata`, are pickles and are not used.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from surefit.errors import RunFailedError
from surefit.models.sharded_tensors import is_divided
from surefit.processes import is_main, num_processes, talk_group

SHARDS = "shards"
"""The folder of what is divided; DCP reads every *.safetensors file of a folder as one."""
REPLICATED = "replicated.safetensors"
"""What every process holds alike: buffers and the optimizer's counters."""
FILE_BYTES, FILE_SHARE = 1 << 25, 1 / 32
"""Bytes in one file of a process, at least, and as a share of what it writes.

DCP holds two more copies of a file while it writes it."""


def write_tensors(folder: Path, tensors: Mapping[str, Any]) -> None:
    """Write the tensors by name; all processes call it, with their shares, for one folder."""
    from safetensors.torch import save_file
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    divided = {name: tensor.detach() for name, tensor in tensors.items() if is_divided(tensor)}
    writer = HuggingFaceStorageWriter(
        str(folder / SHARDS), fqn_to_index_mapping=_files(divided), save_distributed=True
    )
    try:
        save(divided, storage_writer=writer, process_group=talk_group())
    except CheckpointException as error:
        raise _first(error) from error
    if is_main():
        alike = {name: tensor for name, tensor in tensors.items() if name not in divided}
        copies = {k: v.detach().cpu().clone().contiguous() for k, v in alike.items()}
        save_file(copies, str(folder / REPLICATED))


def read_replicated(folder: Path) -> dict[str, Any]:
    """The tensors that every process holds alike, of what `write_tensors` wrote."""
    from safetensors.torch import load_file

    return dict(load_file(str(folder / REPLICATED)))


def read_slices(folder: Path, wanted: Mapping[str, Any]) -> None:
    """Read values from all safetensors files of a folder: of a divided tensor, the own share.

    If there is a divided one, all processes that share it must call.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    if not wanted:
        return
    alone = not any(map(is_divided, wanted.values()))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"torch\.distributed is disabled")
        try:
            load(
                {name: tensor.detach() for name, tensor in wanted.items()},
                storage_reader=HuggingFaceStorageReader(str(folder)),
                process_group=None if alone else talk_group(),
                no_dist=alone,
            )
        except CheckpointException as error:
            raise _first(error) from error


def _files(tensors: Mapping[str, Any]) -> dict[str, int]:
    """The number of the file that each tensor goes to, alike in all processes."""
    shares = {
        name: -(-tensor.numel() * tensor.element_size() // num_processes())
        for name, tensor in tensors.items()
    }
    most = max(FILE_BYTES, int(FILE_SHARE * sum(shares.values())))
    files: dict[str, int] = {}
    number, filled = 1, 0
    for name, share in shares.items():
        if filled and filled + share > most:
            number, filled = number + 1, 0
        files[name], filled = number, filled + share
    return files


def _first(error: Any) -> BaseException:
    """The exception of the first process that failed, as DCP tells it to all of them."""
    if not error.failures:
        return RunFailedError(f"A checkpoint could not be written or read: {error}", "")
    _, (cause, _) = min(error.failures.items(), key=lambda each: each[0])
    assert isinstance(cause, BaseException)
    return cause
