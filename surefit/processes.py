"""The processes that train together: how many, what they exchange, and how one that fails ends all.

torchrun (torch.distributed.elastic) starts and ends them, and torch's process groups connect them.
A process that fails prints its error, writes it to torchrun's error file, and ends. The others
lose their connection to it (gloo), or are ended by the launcher (NCCL). One that does not answer
for `stall_seconds` exceeds the timeout of the process group.

Objects go through a second group on the CPU (gloo), whatever the gradients use: it waits for as
long as the first process needs to encode the data, and fails at once when a process dies.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar

from surefit.errors import (
    InterruptedRunError,
    RunFailedError,
    StoppedAtOnceError,
    SurefitError,
    UsageError,
    describe_error,
    message_of,
    to_resume,
)

Value = TypeVar("Value")
JOIN = timedelta(minutes=10)
"""How long processes wait for the others to be started."""
WAIT = timedelta(days=2)
"""How long processes wait for one that encodes data; one that dies ends the wait."""
STALL_SECONDS = 1800.0
"""How long a process waits in a collective of a step, if the config does not say."""
END = timedelta(seconds=15)
"""How long a process that ends waits for the others to say whether they are there."""
PR_SET_PDEATHSIG = 1
SAME_SIGNAL_SECONDS = 0.5
"""Signals this close together are one stop.

Shells and `timeout` signal a process and its group; Linux signals a child for each thread of a
killed launcher that was its parent in turn.
"""
_LOST = re.compile(
    r"Connection (?:closed|reset) by peer|Broken pipe|remote process exited|Socket closed"
    r"|Timed out waiting \d+ms|Application timeout|recvValue failed|failed to recv"
    r"|NCCL.*(?:timeout|aborted)",
    re.IGNORECASE | re.DOTALL,
)
"""What gloo, NCCL and torch's store say when another process does not answer any more."""


def stop_signals() -> list[int]:
    """Return the signals that stop a run; SIGHUP, where a terminal closes, unless nohup ignores it.

    >>> signal.SIGTERM in stop_signals()
    True
    """
    every = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [each for each in every if signal.getsignal(each) != signal.SIG_IGN]


@dataclass
class Current:
    """What this process is at, for its last message."""

    run: str = ""
    """The folder of the run, once it has begun."""
    is_ending: bool = False
    """Whether a failure or a stop is being reported: a launcher's SIGTERM must not cut that off."""


CURRENT = Current()


class OtherProcessError(SurefitError):
    """Another process failed, so that this one cannot continue; process 0 prints it."""

    is_printed = True

    def __init__(self, message: str, fix: str, exit_code: int) -> None:
        super().__init__(message, fix)
        self.exit_code = exit_code


class LostProcessError(SurefitError):
    """The connection to another process is lost."""

    is_reported = False
    """Whether that process, or the launcher, reports why."""


def num_processes() -> int:
    """Return how many processes train together, as `accelerate launch` and `torchrun` set it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def process_index() -> int:
    """Return this process's number among them."""
    return int(os.environ.get("RANK", "0"))


def num_on_host() -> int:
    """Return how many processes train together on this host."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def is_main() -> bool:
    """Return whether this process writes the run and speaks to the user."""
    return process_index() == 0


def is_first_on_host() -> bool:
    """Return whether this process encodes the data for the others of its host."""
    return int(os.environ.get("LOCAL_RANK", "0")) == 0


def host_name() -> str:
    """Return the name of this host."""
    return socket.gethostname()


def name_process(rank: int, host: str = "") -> str:
    """Return a process as messages name it.

    >>> name_process(3, "node-7")
    'Process 3 of host node-7'
    """
    return f"Process {rank} of host {host}" if host else f"Process {rank}"


def on_cpu() -> bool:
    """Return whether several processes must meet on the CPU; Accelerate needs the flag.

    The GPU of a Mac has no backend that processes could exchange gradients through.
    """
    return num_processes() > 1 and _shared_device() is None


def _shared_device() -> str | None:
    """Return the kind of device that several processes train on; None: the CPU."""
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


@lru_cache(maxsize=1)
def object_group() -> Any:
    """Return the group on the CPU that exchanges objects; the first call meets the others."""
    from accelerate import PartialState
    from torch import distributed

    check_devices(num_on_host())
    _end_with_launcher()
    if distributed.is_initialized():  # the caller's own group (Ray Train) is the caller's to close
        PartialState(cpu=on_cpu())
    else:
        _choose_interface()
        try:
            PartialState(cpu=on_cpu(), timeout=JOIN)
        except (RuntimeError, ValueError) as error:
            address = ":".join(os.environ.get(f"MASTER_{each}", "?") for each in ("ADDR", "PORT"))
            raise SurefitError(
                f"{name_process(process_index(), host_name())} did not meet the other processes at "
                f"{address}: {message_of(error).splitlines()[0]}",
                "Check that all processes were started (RANK, WORLD_SIZE), that MASTER_ADDR and "
                "MASTER_PORT are the same on all hosts, and that a firewall lets the port through. "
                "Where hosts have several networks, GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name "
                "the one that they share.",
            ) from error
        atexit.register(distributed.destroy_process_group)
    return distributed.new_group(backend="gloo", timeout=WAIT)


def _choose_interface() -> None:
    """With several hosts, let gloo use the interface that reaches the first one.

    By itself it takes the address that the host's own name resolves to, often 127.0.1.1.
    """
    import psutil

    if num_on_host() == num_processes() or "GLOO_SOCKET_IFNAME" in os.environ:
        return
    with suppress(OSError):
        host = socket.gethostbyname(os.environ.get("MASTER_ADDR", ""))
        with socket.socket(type=socket.SOCK_DGRAM) as probe:
            probe.connect((host, 1))  # sends nothing
            own = probe.getsockname()[0]
        for name, addresses in psutil.net_if_addrs().items():
            if own in (each.address for each in addresses):
                os.environ["GLOO_SOCKET_IFNAME"] = name


def _end_with_launcher() -> None:
    """Let this process get SIGTERM when its launcher is killed, which could not send it (Linux)."""
    if "TORCHELASTIC_RUN_ID" in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def limit_waiting(stall_seconds: float | None) -> None:
    """Set how long a process waits in a collective of a step; None: the default, 0: for ever."""
    from torch.distributed.distributed_c10d import _set_pg_timeout

    object_group()
    seconds = STALL_SECONDS if stall_seconds is None else stall_seconds
    _set_pg_timeout(timedelta(seconds=seconds) if seconds else WAIT)


def gather(value: Value) -> list[Value]:
    """Return the values of all processes, in their order; all of them must call it."""
    if num_processes() == 1:
        return [value]
    from torch import distributed

    group, values = object_group(), [value] * num_processes()
    try:
        distributed.all_gather_object(values, value, group=group)
    except RuntimeError as error:
        if not has_lost_process(error):
            raise
        raise _lost_process(error) from error
    return values


def from_main(make: Callable[[], Value]) -> Value:
    """Return what process 0 makes, in all processes: the run's folder may be on its host only."""
    value = make() if is_main() else None
    return gather(value)[0]  # type: ignore[return-value]


@contextmanager
def together(stage: str) -> Iterator[None]:
    """Run a block in all processes: if it fails in one of them, it fails in all.

    Processes must not wait for each other inside the block.
    """
    failed: Exception | None = None
    try:
        yield
    except Exception as error:
        failed = error
    own = None
    if isinstance(failed, SurefitError):
        own = failed.message, failed.fix, failed.exit_code
    elif failed is not None:
        own = describe_error(failed), "", 1
    failures = gather(own)
    if failed is not None:
        failed.is_printed = True  # type: ignore[attr-defined]
        raise failed
    for rank, other in enumerate(failures):
        if other is not None:
            message, fix, exit_code = other
            what = f"{name_process(rank)} failed while {stage}: {message}"
            raise OtherProcessError(what, fix, exit_code)


@contextmanager
def distributed_run(path: str) -> Iterator[None]:
    """Begin a run in this folder: what fails in it ends all processes, and one reports it."""
    CURRENT.run, CURRENT.is_ending = path, False
    _end_with_launcher()  # torchrun may have started a single process
    try:
        yield
    except (Exception, SystemExit) as error:
        CURRENT.is_ending = True
        if num_processes() == 1:
            raise
        if isinstance(error, InterruptedRunError):
            if not isinstance(
                error, StoppedAtOnceError
            ):  # the others may still train, and never come
                _wait_for_others()  # a process that ends first ends the others
            raise
        from torch import distributed

        atexit.unregister(distributed.destroy_process_group)  # NCCL may wait for all to do so
        failure: BaseException = error
        if has_lost_process(error):
            failure = _lost_process(error)
        elif isinstance(error, SystemExit):  # of the user's code: a failed run, whatever its code
            failure = RunFailedError(f"{describe_error(error)}, raised in the run.", "")
        record_error(failure)
        if failure is error:
            raise
        raise failure from error


def record_error(error: BaseException) -> None:
    """Write an error to the file that torchrun, or `--processes N`, reads when a process fails.

    The first error of a process is the one that counts.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if not path or os.path.exists(path):
        return
    # The earliest failure is taken for the cause, in whole seconds: a lost connection never is it.
    later = 60 if getattr(error, "is_reported", False) else 0
    name = name_process(process_index(), host_name())
    report = {"message": f"{name}: {describe_error(error)}", "timestamp": int(time.time()) + later}
    with suppress(OSError), open(path, "w", encoding="utf-8") as file:
        json.dump(report, file)


def has_lost_process(error: BaseException | None) -> bool:
    """Return whether an error, or its cause, is that another process ended or does not answer."""
    if num_processes() == 1 or error is None or isinstance(error, OtherProcessError):
        return False
    is_lost = isinstance(error, RuntimeError) and _LOST.search(message_of(error)) is not None
    return is_lost or isinstance(error, LostProcessError) or has_lost_process(error.__cause__)


def _lost_process(error: BaseException) -> LostProcessError:
    """Return the error about a process that ended, or that kept the others waiting for too long."""
    if isinstance(error, LostProcessError):
        return error
    resume = "run the command again"
    if CURRENT.run:
        resume = f"resume from the latest checkpoint: {to_resume(CURRENT.run)}"
    timed_out = re.search("timed out|timeout", message_of(error), re.IGNORECASE) is not None
    has_launcher = "TORCHELASTIC_RUN_ID" in os.environ and num_on_host() == num_processes()
    is_reported = has_launcher and not timed_out
    name = "" if is_reported else _wait_for_others()
    lost = LostProcessError(
        f"{name or 'Another process'} {'does not answer' if timed_out else 'has ended'} "
        f"({message_of(error).splitlines()[0]}).",
        f"See what it, or its launcher, has printed. Then {resume}."
        + (" If it was only slow, allow more time: --set stall_seconds=N." if timed_out else ""),
    )
    lost.is_reported = is_reported or not is_first_on_host()
    return lost


def _wait_for_others() -> str:
    """Wait until all processes are here; the names of those that do not come in time.

    Process 0 learns which; the others, only whether process 0 came.
    """
    from torch import distributed

    missing: list[str] = []

    def wait() -> None:
        try:
            distributed.monitored_barrier(object_group(), timeout=END, wait_all_ranks=True)
        except RuntimeError as error:
            if is_main() and (ranks := re.search(r"Ranks ([\d, ]+) failed", message_of(error))):
                missing.append(f"Process {ranks[1].strip(' ,')}")

    waiting = threading.Thread(target=wait, daemon=True)  # gloo keeps no timeout without a network
    waiting.start()
    waiting.join(2 * END.total_seconds())
    return missing[0] if missing else ""
