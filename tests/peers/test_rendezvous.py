"""What keeps processes from meeting is named: address, port, who came and who did not."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from surefit.peers import rendezvous
from surefit.peers.process_names import host_name
from surefit.peers.rendezvous import (
    RendezvousError,
    call_roll,
    connect,
    find_interface,
    meet,
    refuse_to_meet,
)


@pytest.fixture
def store() -> Any:
    from torch.distributed import TCPStore

    return TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=20), wait_for_workers=False)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> str:
    """The variables of a launch, with a port that is free."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    values = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": "1", "WORLD_SIZE": "2"}
    for name, value in {**values, "SUREFIT_JOIN_SECONDS": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    return port


def called(store: Any, *ranks_and_sizes: tuple[int, int], seconds: float = 20) -> list[str]:
    """What each process hears at a roll call: nothing, or why it cannot go on."""
    heard = [""] * len(ranks_and_sizes)

    def come(number: int, rank: int, size: int) -> None:
        try:
            call_roll(store.clone(), rank, size, "0", time.monotonic() + seconds)
        except RendezvousError as error:
            heard[number] = error.message

    threads = [
        threading.Thread(target=come, args=(number, *each))
        for number, each in enumerate(ranks_and_sizes)
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.3)  # one after the other
    for thread in threads:
        thread.join()
    return heard


@pytest.fixture(autouse=True)
def _address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "node-1")
    monkeypatch.setenv("MASTER_PORT", "29500")


def test_all_that_come_go_on(store: Any) -> None:
    assert called(store, (0, 3), (2, 3), (1, 3)) == ["", "", ""]


def test_those_that_did_not_come_are_named(store: Any) -> None:
    heard = called(store, (0, 6), (2, 6), seconds=0.5)
    assert "Of 6 processes, processes 1, 3-5 did not come to node-1:29500 within" in heard[0]
    assert f"processes 0, 2 did (host {host_name()})" in heard[0]
    assert heard[1] == heard[0]  # all end with one message


def test_hosts_launched_with_different_numbers(store: Any) -> None:
    heard = called(store, (0, 2), (1, 4))
    expected = f"Process 1 of host {host_name()} was launched as one of 4, another one as one of 2."
    assert heard == [expected, expected]


def test_two_processes_with_one_number(store: Any) -> None:
    heard = called(store, (0, 3), (1, 3), (1, 3))
    assert all("Two processes were launched as RANK 1" in each for each in heard)


def test_a_process_that_fails_before_it_comes_is_named(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "connect", lambda seconds: store.clone())
    rendezvous.refuse_to_meet(1, "0", "run does not exist.", "Give the folder.")
    (heard,) = called(store, (0, 2))
    assert heard == f"Process 1 of host {host_name()} could not start: run does not exist."


def test_an_address_that_nobody_listens_at(launched: str) -> None:
    with pytest.raises(RendezvousError) as raised:
        meet(1, 2, "0")
    assert f"did not reach the other processes at 127.0.0.1:{launched} within 1 s" in str(
        raised.value
    )
    assert "refused" in raised.value.message  # the reason of the system
    assert "nc -vz" in raised.value.fix


def test_a_name_that_is_not_known(launched: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "no-such-host.invalid")
    with pytest.raises(RendezvousError, match=r"no-such-host.invalid:.* within 1 s \(.+\)"):
        meet(1, 2, "0")


def test_a_port_in_use(launched: str) -> None:
    message = f"Port {launched} of host .* is in use"
    with (
        socket.create_server(("", int(launched))),
        pytest.raises(RendezvousError, match=message),
    ):
        connect(1, serves=True)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("MASTER_ADDR", "", "MASTER_ADDR are not set"),
        ("MASTER_PORT", "http", "MASTER_PORT=http is no port"),
        ("MASTER_PORT", "70000", "MASTER_PORT=70000 is no port"),
        ("SUREFIT_JOIN_SECONDS", "soon", "SUREFIT_JOIN_SECONDS=soon is no number"),
    ],
)
def test_wrong_launch_variables(
    launched: str, monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(RendezvousError, match=expected):
        meet(1, 2, "0")


def test_only_the_first_process_of_a_host_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert not RendezvousError("", "").is_told
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert RendezvousError("", "").is_told


def test_the_interface_that_reaches_an_address() -> None:
    import psutil

    name = find_interface("127.0.0.1", 29500)
    assert "127.0.0.1" in {each.address for each in psutil.net_if_addrs()[name]}
    assert find_interface("no-such-host.invalid", 29500) == ""


@pytest.mark.parametrize("level", ["ERROR", "WARNING"])
def test_stack_frames_of_torch_are_printed_only_if_asked_for(
    launched: str, level: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def answer() -> None:  # as a web server
        with suppress(OSError):
            while True:
                caller, _ = other.accept()
                caller.recv(64)
                caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                caller.close()

    other = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setenv("MASTER_PORT", str(other.getsockname()[1]))
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", level)
    threading.Thread(target=answer, daemon=True).start()
    with pytest.raises(RendezvousError, match="did not reach the other processes") as raised:
        connect(1.0)
    other.close()
    os.write(2, b"printed later")
    said = capfd.readouterr().err
    assert ("frame #" in said) == (level == "WARNING")
    assert said.endswith("printed later")
    assert "frame #" not in raised.value.message


def test_a_failure_that_the_first_process_has_too(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "connect", lambda seconds: store.clone())
    monkeypatch.setattr(rendezvous, "SAME_FAILURE_SECONDS", 0.3)
    told = []
    for rank, message in ((1, "early"), (0, "no rows"), (1, "no rows"), (2, "no disk")):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        told.append(refuse_to_meet(rank, "0-1", message, ""))
    assert told == [False, False, True, False]
    monkeypatch.setenv("LOCAL_RANK", "0")  # the first one of another host prints
    assert not refuse_to_meet(3, "0-1", "no rows", "")
