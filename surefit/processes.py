"""The processes that train together: how many, who goes first, and what they tell each other.

What they tell each other goes through a group of its own on the CPU (gloo), whatever the gradients
use: it waits as long as the first process needs to encode the data, and ends at once when a process
dies.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from itertools import count
from typing import Any, TypeVar

from surefit.errors import SurefitError, UsageError, describe_error
from surefit.peers.closed_connection import is_closed_connection
from surefit.peers.gone_launcher import follow_launcher
from surefit.peers.process_names import host_name, name_process
from surefit.peers.rendezvous import knows_address, meet, refuse_to_meet
from surefit.peers.signs_of_life import NOTES
from surefit.peers.told_failure import as_failure
from surefit.peers.watchdog import Watchdog, start_watchdog

Value = TypeVar("Value")
WAIT = timedelta(days=2)
"""How long processes wait for one that encodes data; one that dies ends the wait."""


def num_processes() -> int:
    """Processes that train together; `accelerate launch` and `torchrun` say so."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def process_index() -> int:
    """This process's number among them."""
    return int(os.environ.get("RANK", "0"))


def num_on_host() -> int:
    """Processes that train together on this host."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def is_main() -> bool:
    """Whether this process writes the run and speaks to the user."""
    return process_index() == 0


def is_first_on_host() -> bool:
    """Whether this process encodes the data for the others of its host."""
    return int(os.environ.get("LOCAL_RANK", "0")) == 0


def on_cpu() -> bool:
    """Whether several processes must meet on the CPU; Accelerate needs the flag.

    The GPU of a Mac has no backend that processes could exchange gradients through.
    """
    return num_processes() > 1 and _shared_device() is None


def _shared_device() -> str | None:
    """The kind of device that several processes train on; None: the CPU."""
    import torch

    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return None if found is None or found.type == "mps" else found.type


def check_devices(processes: int) -> None:
    """Refuse more processes on this host than it has devices; each needs one of its own."""
    import torch

    kind = _shared_device()
    if processes < 2 or kind is None or processes <= (devices := torch.accelerator.device_count()):
        return
    raise UsageError(
        f"{processes} processes on this host need a device each, but this process sees {devices} "
        f"({kind}).",
        f"Start {devices} (--processes {devices}; torchrun --nproc-per-node {devices}). If a "
        "scheduler shows each process one device only, let all of them see all devices. To train "
        "on the CPU, hide the devices (CUDA_VISIBLE_DEVICES=).",
    )


def gather(value: Value) -> list[Value]:
    """The values of all processes, in their order; all of them must call it."""
    if num_processes() == 1:
        return [value]
    from torch import distributed

    group, values = talk_group(), [value] * num_processes()
    try:
        distributed.all_gather_object(values, value, group=group)
    except RuntimeError as error:
        if not is_closed_connection(error):
            raise
        raise lost_process_error() from error
    return values


def from_main(make: Callable[[], Value]) -> Value:
    """What process 0 makes, in all processes: the run's folder may be on its host only."""
    value = make() if is_main() else None
    return gather(value)[0]  # type: ignore[return-value]


def talk_group() -> Any:
    """The group on the CPU that processes talk through; made anew if the one before was closed."""
    from torch import distributed

    if not distributed.is_initialized():
        _make_group.cache_clear()
    return _make_group()


@lru_cache(maxsize=1)
def _make_group() -> Any:
    """Meet the other processes, and begin to watch them."""
    from accelerate import PartialState
    from torch import distributed
    from torch._C._distributed_c10d import PrefixStore

    check_devices(num_on_host())
    follow_launcher()
    attempt, rank, size = _next_attempt(), process_index(), num_processes()
    if distributed.is_initialized():  # the caller's own group (Ray Train) is the caller's to close
        PartialState(cpu=on_cpu())
    else:
        PartialState._reset_state()  # of a group that was closed
        store = PrefixStore(attempt, meet(rank, size, attempt))
        # Slow processes are not for torch to end: the watchdog knows them from stuck ones.
        PartialState(cpu=on_cpu(), store=store, rank=rank, world_size=size, timeout=WAIT)
        atexit.register(_close_group)
    if knows_address():
        _watch.append(start_watchdog(rank, size, attempt))
    return distributed.new_group(backend="gloo", timeout=WAIT)


_meetings = count(1)
_watch: list[Watchdog] = []
"""One watchdog per meeting; the last one is awake."""


def report_early_failure(message: str, fix: str) -> bool:
    """Tell the processes that wait for this one that it failed before it came to them.

    Returns whether the first process of the host prints the same.
    """
    if num_processes() == 1 or _watch or not knows_address():
        return False
    with suppress(SurefitError, RuntimeError):
        return refuse_to_meet(process_index(), f"0-{next(_meetings)}", message, fix)
    return False


def _next_attempt() -> str:
    """A name for this meeting that all its processes know: torchrun's restart, and its number."""
    return f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}-{next(_meetings)}"


def set_stall_seconds(seconds: float | None) -> None:
    """A run is planned: how long a process may be stuck; None: the default, 0: for ever."""
    talk_group()
    for each in _watch[-1:]:
        each.wake(seconds)


@contextmanager
def watched_run(path: str) -> Iterator[None]:
    """A run in this folder; when it is over, processes end one by one, or do something else."""
    global _is_failing
    NOTES.note(run=path)
    _is_failing = False
    follow_launcher()  # torchrun may have started a single process
    try:
        yield
    except (Exception, SystemExit) as error:
        _is_failing = True
        if num_processes() == 1 or getattr(error, "exit_code", 1) == 130:
            raise
        if has_lost_process(error):
            _leave_group()
            raise lost_process_error() from error
        _tell_others(error)
        _leave_group()
        if isinstance(error, SystemExit):  # of the user's code: a failed run, whatever its code
            raise SystemExit(1) from error
        raise
    finally:
        for each in _watch:
            each.rest()


def has_lost_process(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is that another process ended."""
    if num_processes() == 1 or error is None or isinstance(error, OtherProcessError):
        return False
    return is_closed_connection(error) or has_lost_process(error.__cause__)


def _tell_others(error: BaseException) -> None:
    """Post what ended this process, and wait until the others know; process 0 reports it."""
    if not _watch or isinstance(error, OtherProcessError):
        return
    own = as_failure(error, process_index(), host_name())
    with suppress(SurefitError, RuntimeError):  # without the store, each reports its own
        board = _watch[-1].open_board()
        board.post(own)
        is_known = board.wait_until_heard(own.rank)
        first = board.first()
        reported = board.of(0) or first  # process 0 reports its own, if it has one
        if is_known and reported is not None and reported.lines[0] == own.lines[0]:
            error.is_told = True  # type: ignore[attr-defined]
        elif is_main() and first is not None and isinstance(error, SurefitError):
            error.lines = (*error.lines, *first.message)


_is_failing = False


def ends_by_itself() -> bool:
    """Whether this process is about to end with the message of a failure, its own or another's.

    Its launcher then sends SIGTERM, once or several times, which must not take the message away.
    """
    return _is_failing or (bool(_watch) and _watch[-1].failure is not None)


def _close_group() -> None:
    """At the end of the process: several runs in it use one group, which cannot be made twice."""
    from torch import distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()


def _leave_group() -> None:
    """After a failure, end without closing the group: NCCL may wait for all others to do so."""
    from torch import distributed

    if distributed.is_initialized() and distributed.get_backend() != "gloo":
        atexit.unregister(_close_group)


@contextmanager
def main_first() -> Iterator[None]:
    """The first process runs the block alone; the others follow, whether it went well or not."""
    if not is_main():
        gather(None)
    try:
        yield
    finally:
        if is_main():
            gather(None)


class OtherProcessError(SurefitError):
    """Another process could not go on, so that this one cannot either."""

    is_told = True

    def __init__(self, message: str | Sequence[str], fix: str, exit_code: int) -> None:
        super().__init__(message, fix)
        self.exit_code = exit_code


def lost_process_error() -> SurefitError:
    """The error about a process that ended: with its own message, if it could tell it."""
    failure, resume = None, "run the command again"
    if NOTES.is_training:
        resume = f"go on from the latest checkpoint: surefit train --resume {NOTES.run}"
    if _watch:
        with suppress(SurefitError, RuntimeError):
            failure = _watch[-1].failure or _watch[-1].open_board().first()
    if failure is not None and failure.rank != process_index():
        fix = f"{failure.fix} Then {resume}." if failure.fix else f"When it is mended, {resume}."
        return OtherProcessError(failure.message, fix, failure.exit_code)
    missing = _watch[-1].describe_missing() if _watch else ""
    when = f", in step {NOTES.step}" if NOTES.is_training else ""
    return SurefitError(
        f"Another process ended or does not answer any more{when}"
        f"{f' ({missing})' if missing else ''}; it could not tell why.",
        f"See what it has printed, or what has killed it. When it is mended, {resume}.",
    )


@contextmanager
def together(stage: str) -> Iterator[None]:
    """A block that all processes run: if it fails in one of them, it fails in all.

    Processes must not wait for each other inside the block.
    """
    failed: Exception | None = None
    NOTES.note(stage)
    try:
        yield
    except Exception as error:
        failed = error
    told = gather(None if failed is None else _tell(failed))
    if failed is not None:
        failed.is_told = True  # type: ignore[attr-defined]
        raise failed
    for rank, other in enumerate(told):
        if other is not None:
            message, fix, exit_code = other
            what = f"{name_process(rank)} failed while {stage}: {message}"
            raise OtherProcessError(what, fix, exit_code)


def _tell(error: Exception) -> tuple[str, str, int]:
    if isinstance(error, SurefitError):
        return error.message, error.fix, error.exit_code
    return describe_error(error), "", 1
