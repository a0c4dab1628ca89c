"""Real processes without their imports: a parent that has imported everything, and forks.

Each command is a forked child of this process with the file operations of `file_faults.c`, so that
it can be killed inside the n-th of them. `enter()` starts this program again with that library.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("file_faults.c")
ACTIONS = {"nothing": 0, "kill": 1, "fail once": 2, "fail": 3}
MODULES = (
    "torch._dynamo",
    "transformers.models.llama.modeling_llama",
    "transformers.models.bert.modeling_bert",
    "peft",
    "accelerate",
    "pyarrow.dataset",
    "sacrebleu",
    "surefit.cli",
    "surefit.training.resume",
    "surefit.training.replay",
    "surefit.run.verify_run",
)


def enter() -> None:
    """Run this program with the library of faults and one thread a process; import everything."""
    if "file_faults" not in os.environ.get("LD_PRELOAD", ""):
        if shutil.which("cc") is None:
            print("not run: there is no C compiler (cc) to build file_faults.c with")
            sys.exit(0)
        library = Path(tempfile.mkdtemp(prefix="file-faults-")) / "file_faults.so"
        compile_ = ["cc", "-O1", "-shared", "-fPIC", "-w", "-o", str(library), str(SOURCE), "-ldl"]
        subprocess.run(compile_, check=True)
        settings = {
            "LD_PRELOAD": str(library),
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "passive",
            "TOKENIZERS_PARALLELISM": "false",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": str(ROOT),
        }
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **settings})
    library = Path(os.environ.pop("LD_PRELOAD"))
    library.unlink()
    library.parent.rmdir()
    for name in MODULES:
        importlib.import_module(name)


@contextmanager
def scratch_folder(name: str, in_memory: bool = True) -> Iterator[Path]:
    """A temporary folder; forked children that end do not remove it, as TemporaryDirectory would.

    It lies in memory where it can: a run waits for the disk a hundred times, and a kill of a
    process does not lose what the system was given to write.
    """
    memory = Path("/dev/shm")
    in_memory &= os.access(memory, os.W_OK) and "TMPDIR" not in os.environ
    place = memory if in_memory else None
    owner, folder = os.getpid(), Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place))
    try:
        yield folder
    finally:
        if os.getpid() == owner:
            shutil.rmtree(folder)


@dataclass(frozen=True)
class Fault:
    """What befalls file operations in the folder of a command."""

    action: str = "nothing"
    at: int = 0
    """The operation it befalls, counted from 1."""
    number: int = 0
    """The error number it fails with."""
    inside: str = "."
    """Only operations under this folder, relative to the command's."""
    log: bool = False
    """Whether operations are logged: all, or the one that it befalls."""
    clock_seconds: int = 0
    """How far the clock jumps, forward and back."""
    after_events: int = 0
    """After so many events of its run, the command is killed if that is the action, or waits until
    it is told to go on: nobody need be awake in time."""


@dataclass
class Child:
    """A command that runs, or its several processes."""

    pids: list[int]
    folder: Path
    code: int | None = None
    codes: dict[int, int] = field(default_factory=dict)

    def poll(self) -> int | None:
        """The exit code if all processes ended: of the first that did not end well, else 0."""
        self._reap()
        if any(self.codes.values()) and len(self.codes) < len(self.pids):
            self._end_others()
        if len(self.codes) == len(self.pids):
            self.code = next((code for code in self.codes.values() if code), 0)
        return self.code

    def _reap(self) -> None:
        for pid in [pid for pid in self.pids if pid not in self.codes]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self.codes[pid] = os.waitstatus_to_exitcode(status)

    def _end_others(self) -> None:
        """As a launcher does where one process has failed."""
        for pid in self.pids:
            if pid not in self.codes:
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and len(self.codes) < len(self.pids):
            self._reap()
            time.sleep(0.01)
        self.kill()

    def wait(self, timeout: float = 600) -> int:
        """The exit code."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.kill()
                raise TimeoutError(
                    f"{self.folder}: no end after {timeout:.0f} s\n{self.said[-3000:]}"
                )
            time.sleep(0.005)
        assert self.code is not None
        return self.code

    def go_on(self) -> int:
        """Let a command that waits go on; its exit code."""
        _go_file(self.folder).touch()
        return self.wait()

    def kill(self) -> None:
        """SIGKILL to all processes."""
        for pid in self.pids:
            if pid not in self.codes:
                os.kill(pid, signal.SIGKILL)

    @property
    def said(self) -> str:
        """What it printed."""
        return printed_by(self.folder).read_text(encoding="utf-8", errors="replace")


def start(
    folder: Path,
    arguments: Sequence[str],
    fault: Fault | None = None,
    processes: int = 1,
    **environment: str,
) -> Child:
    """Start `surefit ARGUMENTS` in a folder, which also holds its cache and temporaries."""
    (folder / "tmp").mkdir(exist_ok=True)
    printed_by(folder).write_bytes(b"")
    _go_file(folder).unlink(missing_ok=True)
    sys.stdout.flush()
    port, pids = _free_port() if processes > 1 else 0, []
    for rank in range(processes):
        if processes > 1:
            environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            environment |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            environment |= {"ACCELERATE_USE_CPU": "true"}
        pid = os.fork()
        if pid == 0:
            own = {
                "SUREFIT_CACHE": str(folder / "cache"),
                "XDG_STATE_HOME": str(folder / "state"),
                "TMPDIR": str(folder / "tmp"),
            }
            prepare = partial(_prepare, folder, fault if rank == 0 else None)
            become(folder, arguments, own | environment, printed_by(folder), prepare)
        pids.append(pid)
    return Child(pids, folder)


def printed_by(folder: Path) -> Path:
    """What the last command in a folder printed; beside it, so that it is no operation in it."""
    return folder.with_name(f"{folder.name}.printed")


def _go_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.go")


def logged_by(folder: Path) -> Path:
    """The log of file operations, beside the folder."""
    return folder.with_name(f"{folder.name}.operations")


def run(folder: Path, arguments: Sequence[str], fault: Fault | None = None, **more: Any) -> Child:
    """Run a command to its end."""
    child = start(folder, arguments, fault, **more)
    child.wait()
    return child


def _free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


def become(
    folder: Path,
    arguments: Sequence[str],
    environment: dict[str, str],
    printed: Path,
    prepare: Callable[[], None],
) -> NoReturn:
    """Be a command in a folder, prepared by a function: in the forked process, and never back."""
    try:
        os.setsid()
        os.chdir(folder)
        os.environ |= environment
        tempfile.tempdir = None
        said = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(said, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        prepare()
        from surefit.cli import main

        main(list(arguments))
    except SystemExit as ended:
        _leave(ended.code if isinstance(ended.code, int) else 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    _leave(99)


def _prepare(folder: Path, fault: Fault | None) -> None:
    sys.path.insert(0, "")
    importlib.invalidate_caches()
    if fault is not None:
        _arm(folder, fault)
        _stop_after(folder, fault)


def _leave(code: int) -> NoReturn:
    """End as a process ends, with what is to be done at exit, and with the parent's frames left."""
    import atexit

    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _arm(folder: Path, fault: Fault) -> None:
    library = ctypes.CDLL(None)
    log = -1
    if fault.log:
        log = os.open(logged_by(folder), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    inside = str((folder / fault.inside).resolve()) if fault.inside != "." else str(folder)
    if fault.log or (fault.action != "nothing" and not fault.after_events):
        library.faults_arm(
            inside.encode(), ctypes.c_long(fault.at), ACTIONS[fault.action], fault.number, log
        )
    library.faults_clock(ctypes.c_long(fault.clock_seconds))


def _stop_after(folder: Path, fault: Fault) -> None:
    """Be killed, or wait, once the run has written so many events."""
    from surefit.training import watches as training

    write_events = training.event_writer

    @contextmanager
    def counting(path: Path) -> Iterator[Any]:
        with write_events(path) as write:
            events: list[Any] = []

            def counted(event: Any) -> None:
                write(event)
                events.append(event)
                if len(events) != fault.after_events:
                    return
                if fault.action == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                while not _go_file(folder).exists():
                    time.sleep(0.005)

            yield counted

    training.event_writer = counting


def unfit_messages(child: Child, *codes: int) -> list[str]:
    """What is wrong with how a command ended: the codes allowed, a message, a fix, no traceback."""
    said, wrong = child.said, []
    if child.code not in codes:
        wrong.append(f"exit {child.code}, not {codes}")
    if "Traceback" in said or "internal error" in said:
        wrong.append("a traceback or an internal error")
    if child.code and not (re.search("^error[: ]", said, re.M) and "fix: " in said):
        wrong.append("no message with a fix")
    return [f"{each}: {said[-1500:]}" for each in wrong]


def operations(folder: Path) -> Iterator[tuple[int, str, str]]:
    """The logged operations of a command: number, kind, path relative to the folder."""
    for line in logged_by(folder).read_text().split("\n")[:-1]:
        number, kind, path = line.split("\t")
        yield int(number), kind, os.path.relpath(path, folder)
