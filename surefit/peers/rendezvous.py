"""Processes meet at MASTER_ADDR:MASTER_PORT; what keeps them from it is named in bounded time."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

from surefit.errors import SurefitError, message_of
from surefit.peers.process_names import host_name, name_process, name_ranks
from surefit.peers.torch_log import without_torch_log

DEFAULT_SECONDS = 600.0
VARIABLE = "SUREFIT_JOIN_SECONDS"
"""How long processes wait for the others to come; the launcher's business, so no config key."""
POLL_SECONDS, REFUSAL_SECONDS, SAME_FAILURE_SECONDS = 0.2, 5.0, 10.0
LAUNCHED = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
INTERFACES = (
    "where hosts have several networks, GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name the one "
    "that they share (`ip addr` lists them)"
)


class RendezvousError(SurefitError):
    """The processes of a run could not meet."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message, fix)
        # The first process of each host prints: nothing connects the hosts that could say it once.
        self.is_told = os.environ.get("LOCAL_RANK", "0") != "0"


def address() -> tuple[str, int]:
    """Where the processes meet."""
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def knows_address() -> bool:
    """Whether it is known where the processes met; somebody else may have connected them."""
    return bool(os.environ.get("MASTER_ADDR") and os.environ.get("MASTER_PORT"))


def has_agent_store() -> bool:
    """Whether torchrun's agent holds the store of the run; else process 0 does."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def join_seconds() -> float:
    """How long to wait for the other processes."""
    asked = os.environ.get(VARIABLE, "")
    try:
        seconds = float(asked or DEFAULT_SECONDS)
    except ValueError:
        seconds = -1.0
    if seconds <= 0:
        raise RendezvousError(
            f"{VARIABLE}={asked} is no number of seconds.", "Give a number above 0."
        )
    return seconds


def connect(seconds: float, *, serves: bool = False) -> Any:
    """A connection of its own to the store of the run; `serves`: this process holds the store."""
    from torch._C._distributed_c10d import TCPStore

    host, port = address()
    make = partial(TCPStore, host, port, None, serves, wait_for_workers=False)
    if serves:
        try:
            with without_torch_log():
                return make(timeout=timedelta(seconds=seconds), multi_tenant=True)
        except RuntimeError as error:
            _refuse_to_serve(host, port, error)
    _wait_for_listener(host, port, seconds)
    try:
        with without_torch_log():
            return make(timeout=timedelta(seconds=seconds))
    except RuntimeError as error:
        _refuse_address(host, port, seconds, message_of(error).split("\n", 1)[0])


def choose_interface() -> None:
    """With several hosts, let Gloo use the interface that reaches the first one.

    By itself it takes the address that the host's own name resolves to, often 127.0.1.1.
    """
    several = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) < int(os.environ["WORLD_SIZE"])
    if not several or "GLOO_SOCKET_IFNAME" in os.environ:
        return
    name = find_interface(*address())
    if name:
        os.environ["GLOO_SOCKET_IFNAME"] = name


def find_interface(host: str, port: int) -> str:
    """The network interface that packets to an address take; empty if there is none."""
    import psutil

    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(*found[:3]) as probe:
            probe.connect(found[4])  # sends nothing
            own = probe.getsockname()[0]
    except OSError:
        return ""
    known = psutil.net_if_addrs().items()
    return next((name for name, all_of in known if any(a.address == own for a in all_of)), "")


def meet(rank: int, num_processes: int, attempt: str) -> Any:
    """The store of the run, when all processes have come to it."""
    _check_variables()
    seconds = join_seconds()
    serves = rank == 0 and not has_agent_store()
    until = time.monotonic() + seconds
    store = connect(seconds, serves=serves)
    choose_interface()
    try:
        call_roll(store, rank, num_processes, attempt, until)
    except RuntimeError as error:
        host, port = address()
        raise RendezvousError(
            f"The store of the run at {host}:{port} was lost while the processes met "
            f"({message_of(error).split(chr(10), 1)[0]}).",
            "The process that holds it has ended: its own message says why.",
        ) from error
    return store


def refuse_to_meet(rank: int, attempt: str, message: str, fix: str) -> bool:
    """Tell the processes that have come, or will, that this one cannot; needs torchrun's store.

    Returns whether the first process of this host has the same to say, and says it for all.
    """
    name = name_process(rank, host_name())
    store = connect(REFUSAL_SECONDS)
    store.set(f"{_roll(attempt)}/refused", f"{name} could not start: {message}\n{fix}")
    store.set(f"surefit-failed/{rank}", message)
    first = rank - int(os.environ.get("LOCAL_RANK", "0"))
    return first != rank and message in _failure_of(store, first)


def _failure_of(store: Any, rank: int) -> str:
    """What another process could not start for; empty if it does not fail within some seconds."""
    key, until = f"surefit-failed/{rank}", time.monotonic() + SAME_FAILURE_SECONDS
    with suppress(KeyboardInterrupt):  # its end may be why this one is ended
        while not store.check([key]) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
    return store.get(key).decode() if store.check([key]) else ""


def _roll(attempt: str) -> str:
    return f"surefit-roll/{attempt}"


def call_roll(store: Any, rank: int, num_processes: int, attempt: str, until: float) -> None:
    """Wait until all processes have come; name those that have not, or that do not belong."""
    key, began = _roll(attempt), time.monotonic()
    size = store.compare_set(f"{key}/size", "", str(num_processes)).decode()
    name = name_process(rank, host_name())
    if store.add(f"{key}/came/{rank}", 1) > 1:
        before = store.get(f"{key}/name/{rank}").decode()
        message = f"Two processes were launched as RANK {rank}: on {before} and {host_name()}."
        _refuse_all(store, key, message, "Give each process a number (RANK) of its own.")
    store.set(f"{key}/name/{rank}", host_name())
    if size != str(num_processes):
        message = f"{name} was launched as one of {num_processes}, another one as one of {size}."
        fix = "Launch all hosts with the same number of hosts and of processes (WORLD_SIZE)."
        _refuse_all(store, key, message, fix)
    count = store.add(f"{key}/count", 1)
    while count < num_processes:
        if store.check([f"{key}/refused"]):
            raise RendezvousError(*store.get(f"{key}/refused").decode().split("\n", 1))
        if time.monotonic() > until:
            missing = [r for r in range(num_processes) if not store.check([f"{key}/came/{r}"])]
            if missing:
                _refuse_missing(store, key, missing, num_processes, time.monotonic() - began)
        time.sleep(POLL_SECONDS)
        count = store.add(f"{key}/count", 0)


def _refuse_all(store: Any, key: str, message: str, fix: str) -> NoReturn:
    """Raise in all processes that have come."""
    store.set(f"{key}/refused", f"{message}\n{fix}")
    time.sleep(3 * POLL_SECONDS)  # the store may end with this process
    raise RendezvousError(message, fix)


def _refuse_missing(
    store: Any, key: str, missing: list[int], num_processes: int, seconds: float
) -> NoReturn:
    came = sorted(set(range(num_processes)) - set(missing))
    hosts = sorted({store.get(f"{key}/name/{rank}").decode() for rank in came})
    host, port = address()
    _refuse_all(
        store,
        key,
        f"Of {num_processes} processes, {name_ranks(missing)} did not come to {host}:{port} within "
        f"{seconds:.0f} s; {name_ranks(came)} did (host{'s' if len(hosts) > 1 else ''} "
        f"{', '.join(hosts)}).",
        "See on the missing hosts whether the command was started and what it printed. If they "
        f"need longer, set {VARIABLE}; if there are fewer, launch with that number.",
    )


def _check_variables() -> None:
    missing = [name for name in LAUNCHED if not os.environ.get(name)]
    if missing:
        raise RendezvousError(
            f"The launch variables {', '.join(missing)} are not set, so the processes cannot meet.",
            "Launch with surefit train --processes N, torchrun or accelerate launch; by hand, set "
            f"{', '.join(LAUNCHED)}.",
        )
    port = os.environ["MASTER_PORT"]
    if not port.isdigit() or not 0 < int(port) < 2**16:
        raise RendezvousError(f"MASTER_PORT={port} is no port.", "Give a number from 1 to 65535.")


def _wait_for_listener(host: str, port: int, seconds: float) -> None:
    """Wait until somebody listens there: torch's own attempts print a page each."""
    until, reason = time.monotonic() + seconds, ""
    while True:
        left = until - time.monotonic()
        if left <= 0:
            _refuse_address(host, port, seconds, reason)
        try:
            socket.create_connection((host, port), timeout=min(left, 5.0)).close()
            return
        except OSError as error:
            reason = error.strerror or message_of(error)
        time.sleep(min(POLL_SECONDS, max(left, 0)))


def _refuse_address(host: str, port: int, seconds: float, reason: str) -> NoReturn:
    raise RendezvousError(
        f"Host {host_name()} did not reach the other processes at {host}:{port} within "
        f"{seconds:.0f} s ({reason}).",
        f"Check that the first host ({host}) runs, that MASTER_ADDR and MASTER_PORT are the same "
        f"on all hosts, and that a firewall lets port {port} through (`nc -vz {host} {port}` tries "
        f"it); {INTERFACES}. Hosts that start later than that: set {VARIABLE}.",
    )


def _refuse_to_serve(host: str, port: int, error: RuntimeError) -> NoReturn:
    text = message_of(error)
    if "EADDRINUSE" in text:
        message = (
            f"Port {port} of host {host_name()} is in use, so the processes cannot meet there."
        )
        fix = (
            "Another run, or processes that were left of one, have it (`ss -tlnp` lists them): end "
            "them, or set MASTER_PORT (torchrun: --rdzv-endpoint, --master-port) to a free port."
        )
    else:
        message = f"Process 0 of host {host_name()} cannot listen at {host}:{port} ({text[:200]})."
        fix = "MASTER_ADDR must be an address of the host that process 0 runs on."
    raise RendezvousError(message, fix) from error
