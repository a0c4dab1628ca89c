"""What a process does: the stage it noted last, whether it works, and the line its threads are at.

A stuck process and a slow one both finish nothing for a while. They differ in what they use: a slow
one computes, reads, writes, swaps, or is woken by its network; a stuck one does none of it.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from surefit.peers import device_wait

PACKAGE = str(Path(__file__).resolve().parents[1])
LIBRARIES = ("site-packages", "dist-packages", sysconfig.get_paths()["stdlib"], "<frozen")
WAITING_PLACES = (
    os.path.join("torch", "distributed", ""),
    os.path.join("torch", "nn", "parallel", ""),
    os.path.join("torch", "autograd", "graph.py"),
    device_wait.__file__,
)
"""Where a thread waits for others: collectives, the backward pass of DDP, and for its device."""
WORKING_SHARE = 0.05
"""Share of a core above which a process works."""
WOKEN_PER_SECOND = 5.0
"""A thread that is woken more often is served by a network or by other threads."""


class Notes:
    """What this process noted last; written by the thread that trains, read by the watchdog."""

    def __init__(self) -> None:
        self.stage = "starting"
        self.step: int | None = None
        self.run = ""
        """The run's folder, once it has begun."""
        self.count = 0
        """Rises with every note: each is a finished piece of work."""
        self.longest_step_seconds = 0.0
        self._step_at: float | None = None

    def restart(self) -> None:
        """Another run begins in this process."""
        self.stage, self.step, self.run = "starting", None, ""

    def note(self, stage: str | None = None, run: str | None = None) -> None:
        """A piece of work is finished; the next one belongs to this stage."""
        self.stage, self.run = stage or self.stage, run or self.run
        self.count += 1

    def note_step(self, step: int) -> None:
        """This step begins."""
        now = time.monotonic()
        if self._step_at is not None and self.step is not None and step == self.step + 1:
            self.longest_step_seconds = max(self.longest_step_seconds, now - self._step_at)
        self.step, self._step_at = step, now
        self.note("training")

    @property
    def is_training(self) -> bool:
        """Whether the steps have begun; before that, data may be downloaded and encoded."""
        return self.step is not None

    def describe(self) -> str:
        """What the process does, for a message."""
        return self.stage if self.step is None else f"{self.stage}, step {self.step}"


NOTES = Notes()


class Activity:
    """Whether this process has worked since it was last asked."""

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread
        self._marks = self._read()
        self._at = time.monotonic()

    def has_worked(self) -> bool:
        """Whether it used the processor, a disk, memory on disk, or was woken often."""
        marks, now = self._read(), time.monotonic()
        elapsed = max(now - self._at, 0.05)
        used = {name: value - self._marks.get(name, 0) for name, value in marks.items()}
        works = (
            used["cpu"] > WORKING_SHARE * elapsed
            or used.get("woken", 0) > WOKEN_PER_SECOND * max(elapsed, 1)
            or used.get("disk", 0) > 0
            or used.get("swapped", 0) > 0
        )
        if works:
            self._marks, self._at = marks, now
        return works

    def _read(self) -> dict[str, float]:
        marks = {"cpu": time.process_time() + _cpu_of_children()}
        with suppress(ImportError):
            import resource

            marks["swapped"] = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        with suppress(OSError, ValueError, KeyError):  # not on every system
            moved = dict(_fields(Path("/proc/self/io")))
            marks["disk"] = moved["read_bytes"] + moved["write_bytes"]
        with suppress(OSError, ValueError, KeyError):
            task = Path(f"/proc/self/task/{self._thread.native_id}/status")
            marks["woken"] = dict(_fields(task))["voluntary_ctxt_switches"]
        return marks


def _fields(path: Path) -> list[tuple[str, int]]:
    """The lines `name: number` of a file of the kernel."""
    lines = (line.partition(":") for line in path.read_text().splitlines())
    return [(name, int(value)) for name, _, value in lines if value.strip().isdigit()]


def _cpu_of_children(pid: int | str = "self") -> float:
    """Processor time of the workers that run now, and of what they have started."""
    total = 0.0
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError, ValueError, IndexError):
            for child in task.read_text().split():
                after_name = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                total += sum(map(int, after_name[11:15])) / os.sysconf("SC_CLK_TCK")
                total += _cpu_of_children(child)
    return total


def waits_for_others(thread: threading.Thread) -> bool:
    """Whether a thread is inside a collective, where other processes keep it waiting."""
    frame = _frames().get(thread.ident or 0)
    return frame is not None and any(place in _file(frame) for place in WAITING_PLACES)


def waits_for_devices(thread: threading.Thread) -> bool:
    """Whether a thread waits for its device: what else the process does is no work of the run.

    The threads of NCCL keep a processor busy while they wait for other processes.
    """
    frame = _frames().get(thread.ident or 0)
    return frame is not None and _file(frame) == device_wait.__file__


def describe_place(thread: threading.Thread) -> str:
    """The line a process is at: that of the user's code, if any thread is inside it."""
    frames = _frames()
    own = frames.pop(thread.ident or 0, None)
    others = [frame for ident, frame in frames.items() if ident != threading.get_ident()]
    for frame in [own, *others]:
        found = _user_frame(frame)
        if found is not None:
            return _show(found)
    return _show(own) if own is not None else ""


_frames: Callable[[], dict[int, FrameType]] = sys._current_frames


def _user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's own code, if surefit called it."""
    while frame is not None:
        name = _file(frame)
        if name.startswith(PACKAGE):
            return None
        if not any(library in name for library in LIBRARIES):
            return frame if _is_called_by_surefit(frame) else None
        frame = frame.f_back
    return None


def _is_called_by_surefit(frame: FrameType | None) -> bool:
    while frame is not None:
        if _file(frame).startswith(PACKAGE):
            return True
        frame = frame.f_back
    return False


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename


def _show(frame: FrameType) -> str:
    path = Path(_file(frame))
    shown = "/".join(path.parts[-2:])
    return f"{shown}:{frame.f_lineno} in {frame.f_code.co_name}"
