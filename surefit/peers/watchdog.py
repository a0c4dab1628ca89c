"""Notices a process that is stuck without having died, and ends the run with a message about it.

Every process has two threads. One sends a beat (what the process does, whether it waits, works or
is stuck) to the store of the run, and reads that of process 0; process 0 reads all of them and
names the process that keeps the others waiting. The other thread ends this process, although its
main thread waits in a collective, when a process was named or the store does not answer.

A process is named if, for `stall_seconds`,
- it sent no beat: it was stopped, or its host or network is gone; or
- it finished nothing and did nothing (`signs_of_life`) outside of a collective: it is stuck; or
- all processes were in collectives: they wait for each other.
In a collective, gloo needs no processor time, so that a process that uses some works. Waiting for a
device (`device_wait`) is waiting, whatever the process uses meanwhile.
Time in which this process itself did not run does not count.

A process that fails with an error posts it (`told_failure`); those that still wait for it in a
collective when its connections should have closed are ended, too. For a process that was killed,
one of the same machine posts that it is gone (`lost_process`).
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from surefit.errors import SurefitError
from surefit.peers.lost_process import GONE_SECONDS, as_lost, is_gone, process_space
from surefit.peers.process_names import host_name, name_process, name_ranks
from surefit.peers.rendezvous import address, connect, has_agent_store
from surefit.peers.signs_of_life import (
    NOTES,
    Activity,
    describe_place,
    waits_for_devices,
    waits_for_others,
)
from surefit.peers.told_failure import Failure, FailureBoard
from surefit.printable import one_line

DEFAULT_SECONDS = 300.0
STEPS = 20
"""By default, a process may also take this many times its longest step."""
CONNECT_SECONDS, STORE_SECONDS = 5.0, 60.0
AGENTS, AGENT_SECONDS = ("torchrun", "torch.distributed.run", "accelerate"), 3.0
WAITING_SECONDS, ENDING_SECONDS = 10.0, 60.0
"""After a failure elsewhere: how long a process may wait in a collective, or take to end at all."""
PLANNING_FACTOR, BUSY_FACTOR = 10, 24
"""Before the first step, downloads may keep a process idle; an endless loop looks like work."""


@dataclass(frozen=True)
class Beat:
    """What one process says about itself."""

    rank: int
    host: str = ""
    pid: int = 0
    doing: str = ""
    place: str = ""
    state: str = "works"
    """works, waits (in a collective), stuck, rests (between two runs), ended."""
    quiet_seconds: float = 0.0
    tick: int = 0
    space: str = ""
    """Where its pid is that of a process (`process_space`)."""

    @property
    def name(self) -> str:
        """The process, for a message."""
        return name_process(self.rank, self.host)


@dataclass(frozen=True)
class Verdict:
    """Why a run cannot go on, and which process is to blame (-1: none alone)."""

    rank: int
    message: str
    is_silent: bool = False
    is_store_lost: bool = False
    pid: int = 0
    host: str = ""


class Watchdog:
    """The two threads of one process; `store` is a connection that nothing else uses."""

    def __init__(self, store: Any, rank: int, num_processes: int, attempt: str = "") -> None:
        self.store, self.rank, self.num_processes = store, rank, num_processes
        self.address = "{}:{}".format(*address())
        self.attempt = attempt
        self.asked_seconds: float | None = None
        self.verdict: Verdict | None = None
        self.failure: Failure | None = None
        """What has ended another process of the run, once this one has heard of it."""
        self._run = 0
        self._beat = Beat(rank, host_name(), os.getpid(), space=process_space())
        self._thread = threading.current_thread()
        self._activity = Activity(self._thread)
        self._quiet_seconds = 0.0
        self._unfinished_seconds = 0.0
        self._counted = -1
        self._silence = [0.0] * num_processes
        self._peers: list[Beat] = [Beat(each) for each in range(num_processes)]
        self._neighbours: list[Beat] | None = None
        """The other processes of this machine, once all have sent a beat."""
        self._waited_seconds = 0.0
        self._rounds = 0
        self._is_resting = False
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def limit_seconds(self) -> float:
        """How long a process may be stuck."""
        if self.asked_seconds is None:
            return max(DEFAULT_SECONDS, STEPS * NOTES.longest_step_seconds)
        return self.asked_seconds or float("inf")

    @property
    def interval_seconds(self) -> float:
        """Time between two beats; the store must serve those of all processes."""
        return max(0.25, min(1.0, self.limit_seconds / 20), self.num_processes / 500)

    def announce(self) -> None:
        """Send the first beat, and wait for that of process 0."""
        self.store.set(self._key(self.rank), json.dumps(asdict(self._beat)))
        self._peers[0] = _parse(self.store.get(self._key(0)))[0]

    def start(self) -> None:
        """Start the threads."""
        for work in (self._exchange, self._guard):
            thread = threading.Thread(target=work, name=f"surefit{work.__name__}", daemon=True)
            thread.start()
            self._threads.append(thread)
        atexit.register(self.stop)  # a thread inside the store would abort the interpreter's end

    def wake(self, asked_seconds: float | None) -> None:
        """A run begins; `asked_seconds` as in the config."""
        NOTES.restart()
        self._quiet_seconds = self._unfinished_seconds = 0.0
        self._run += 1
        self.failure = None
        self.asked_seconds, self._is_resting = asked_seconds, False

    def rest(self) -> None:
        """The run is over: what the process does now is not surefit's business."""
        self._is_resting = True

    def stop(self) -> None:
        """This process is about to end by itself; it is not watched any more."""
        if self._ended.is_set():
            return
        self._ended.set()
        atexit.unregister(self.stop)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(2 * self.interval_seconds + 1)

    def describe_missing(self) -> str:
        """The processes that send no beats at the moment; takes a few beats to find out."""
        try:
            store = connect(CONNECT_SECONDS)
            before = self._read_all(store)
            time.sleep(2.5 * self.interval_seconds)
            pairs = zip(before, self._read_all(store), strict=True)
        except (RuntimeError, SurefitError):
            first = self._peers[0]
            known = f"; {first.name} was last {first.doing}" if first.host else ""
            return f"the store of the run at {self.address} is gone{known}"
        silent = [b for a, b in pairs if a.tick == b.tick and b.rank != self.rank]
        often = f"one every {self.interval_seconds:g} s"  # a step may take less
        shown = [f"last report of {beat.name}, {often}: {beat.doing}" for beat in silent[:4]]
        more = f"; and {len(silent) - 4} more" if len(silent) > 4 else ""
        return "; ".join(shown) + more

    def open_board(self, store: Any = None) -> FailureBoard:
        """The failures of this run, by a new connection if none is passed."""
        key = f"{self.attempt}/{self._run}"
        return FailureBoard(store or connect(CONNECT_SECONDS), key, self.num_processes)

    def _key(self, rank: int) -> str:
        return f"surefit-beat/{self.attempt}/{rank}"

    def _read_all(self, store: Any) -> list[Beat]:
        found = store.multi_get([self._key(rank) for rank in range(self.num_processes)])
        return [_parse(one)[0] for one in found]

    def _exchange(self) -> None:
        """Send a beat and read others, again and again; may wait in the store for ever."""
        last = time.monotonic()
        while not self._ended.wait(self.interval_seconds):
            now = time.monotonic()
            # Longer than two beats: this process was itself stopped, or starved.
            awake, last = min(now - last, 2 * self.interval_seconds), now
            with suppress(RuntimeError):  # the store is gone: `_guard` counts how long
                self._look_at_self(awake)
                self._send()
                self._hear(awake)
                self._rounds += 1
        with suppress(RuntimeError):
            self._beat = replace(self._beat, state="ended")
            self._send()

    def _look_at_self(self, awake: float) -> None:
        finished = self._counted != NOTES.count
        self._counted = NOTES.count
        worked = self._activity.has_worked() and not waits_for_devices(self._thread)
        self._unfinished_seconds = 0.0 if finished else self._unfinished_seconds + awake
        self._quiet_seconds = 0.0 if finished or worked else self._quiet_seconds + awake
        waits = waits_for_others(self._thread)
        limit = self.limit_seconds * (1 if NOTES.is_training else PLANNING_FACTOR)
        is_endless = NOTES.is_training and self._unfinished_seconds > BUSY_FACTOR * limit
        stuck = not waits and (self._quiet_seconds > limit or is_endless)
        quiet = self._unfinished_seconds if is_endless else self._quiet_seconds
        state = "stuck" if stuck else "waits" if waits else "works"
        self._beat = replace(
            self._beat,
            doing=NOTES.describe(),
            place=describe_place(self._thread) if quiet > self.limit_seconds / 2 else "",
            state="rests" if self._is_resting else state,
            quiet_seconds=round(quiet, 1),
            tick=self._beat.tick + 1,
        )

    def _send(self) -> None:
        said: dict[str, Any] = asdict(self._beat)
        if self.rank == 0 and self.verdict is not None:
            said["verdict"] = asdict(self.verdict)
        self.store.set(self._key(self.rank), json.dumps(said))

    def _hear(self, awake: float) -> None:
        if self.rank == 0:
            heard = dict(enumerate(self._read_all(self.store)))
            verdict = None
        else:
            beat, verdict = _parse(self.store.get(self._key(0)))
            heard = {0: beat}
        for rank, beat in heard.items():
            moved = beat.tick != self._peers[rank].tick
            self._silence[rank] = 0.0 if moved else self._silence[rank] + awake
            self._peers[rank] = beat
        judged = judge(heard, dict(enumerate(self._silence)), self.limit_seconds, self.rank)
        self.verdict = self.verdict or verdict or judged
        if self.failure is None and not self._is_resting:
            board = self.open_board(self.store)
            self._waited_seconds += awake
            if not waits_for_others(self._thread):
                self._waited_seconds = 0.0
            elif self._waited_seconds > GONE_SECONDS:
                self._post_lost(board)
            self.failure = board.first()
            if self.failure is not None:
                board.note_heard(self.rank)

    def _post_lost(self, board: FailureBoard) -> None:
        """Tell all processes of one that was killed on this machine, if this one waits for it."""
        if self._neighbours is None:
            beats = self._read_all(self.store)
            own = self._beat
            self._neighbours = [b for b in beats if b.space == own.space and b.rank != self.rank]
        for each in self._neighbours:
            if not is_gone(each.pid):
                continue
            last = _parse(self.store.get(self._key(each.rank)))[0]
            if last.state not in ("ended", "rests"):
                board.post(as_lost(last.rank, last.host, last.doing))
                return

    def _guard(self) -> None:
        """End this process when a process was named, or when the store does not answer."""
        rounds, unanswered, last = self._rounds, 0.0, time.monotonic()
        ending = waiting = 0.0
        while not self._ended.wait(self.interval_seconds):
            now = time.monotonic()
            awake, last = min(now - last, 2 * self.interval_seconds), now
            unanswered = 0.0 if self._rounds != rounds else unanswered + awake
            rounds = self._rounds
            if self._is_resting:
                unanswered = ending = waiting = 0.0
                continue
            if self.failure is not None and self.failure.rank != self.rank:
                ending += awake
                waiting = waiting + awake if waits_for_others(self._thread) else 0.0
                is_late = ending > ENDING_SECONDS and not self.failure.is_lost
                if waiting > WAITING_SECONDS or is_late:
                    end_after(self.failure, self.rank)
            if unanswered > self._store_seconds():
                self.verdict = self.verdict or self._lost_store(unanswered)
            if self.verdict is not None:
                # The others hear of it by the next beat; process 0, which knew first, ends first.
                time.sleep(3 * self.interval_seconds)
                if not self._ended.is_set():
                    end_process(self.verdict, self.rank, self._beat.host)
                return

    def _store_seconds(self) -> float:
        """How long the store may not answer; a process that held it and is gone never will."""
        first = self._peers[0]
        held_here = first.space == self._beat.space and not has_agent_store()
        waits = waits_for_others(self._thread)
        return GONE_SECONDS if held_here and waits and is_gone(first.pid) else self.limit_seconds

    def _lost_store(self, seconds: float) -> Verdict:
        first, by_agent = self._peers[0], has_agent_store()
        if first.host and not by_agent:  # process 0 holds the store
            return _silent(first, seconds)
        known = f" ({first.name} was last {first.doing})" if first.host else ""
        return Verdict(
            -1,
            f"The store of the run at {self.address} has not answered for {seconds:.0f} s: its "
            f"host or the network is gone{known}. This is {self._beat.name}, {self._beat.doing}.",
            is_store_lost=by_agent,
        )


def _silent(beat: Beat, seconds: float) -> Verdict:
    return Verdict(
        beat.rank,
        f"{beat.name} has not answered for {seconds:.0f} s: it was stopped, or its host or network "
        f"is gone. It was last {beat.doing}.",
        is_silent=True,
        pid=beat.pid,
        host=beat.host,
    )


def _parse(text: bytes) -> tuple[Beat, Verdict | None]:
    said = json.loads(text)
    verdict = said.pop("verdict", None)
    return Beat(**said), Verdict(**verdict) if verdict else None


def judge(
    heard: Mapping[int, Beat], silence: Mapping[int, float], limit_seconds: float, own_rank: int
) -> Verdict | None:
    """Which process keeps the others from going on, if one does.

    >>> heard = {0: Beat(0, "a"), 1: Beat(1, "b", doing="training, step 7")}
    >>> judge(heard, {1: 61.0}, 60, own_rank=0).message
    'Process 1 of host b has not answered for 61 s: it was stopped, or its host or network is \
gone. It was last training, step 7.'
    """
    present = {rank: beat for rank, beat in heard.items() if beat.state not in ("ended", "rests")}
    for rank, beat in present.items():
        if rank != own_rank and silence.get(rank, 0.0) > limit_seconds:
            return _silent(beat, silence[rank])
    for rank, beat in present.items():
        if beat.state == "stuck":
            where = f", at {beat.place}" if beat.place else ""
            return Verdict(
                rank,
                f"{beat.name} is stuck: for {beat.quiet_seconds:.0f} s it has finished nothing, "
                f"and the others wait for it. It is {beat.doing}{where}.",
            )
    if own_rank != 0 or len(present) < 2:
        return None
    if all(b.state == "waits" and b.quiet_seconds > limit_seconds for b in present.values()):
        return Verdict(-1, _describe_deadlock(list(present.values())))
    return None


def _describe_deadlock(beats: Sequence[Beat]) -> str:
    """Who waits where, those at the same place together."""
    places: dict[str, list[int]] = {}
    for beat in beats:
        places.setdefault(f"{beat.doing}, at {beat.place}", []).append(beat.rank)
    shown = "; ".join(f"{name_ranks(ranks)}: {place}" for place, ranks in places.items())
    seconds = min(beat.quiet_seconds for beat in beats)
    return f"All processes have waited for each other for {seconds:.0f} s ({shown})."


def end_after(failure: Failure, rank: int) -> None:
    """End this process, whose main thread did not notice that another one has failed."""
    if rank == (1 if failure.is_lost and failure.rank == 0 else 0):
        shown = "\n".join(map(one_line, failure.message))
        fix = f"fix: {one_line(failure.fix)}\n" if failure.fix else ""
        with suppress(OSError):
            os.write(2, f"\nerror: {shown}\n{fix}".encode(errors="replace"))
    os._exit(failure.exit_code)


def end_process(verdict: Verdict, rank: int, host: str) -> None:
    """Print what happened and end this process at once; its main thread may wait in a collective.

    Of each host, the first process prints; the second does, if the first is the one that is stuck.
    """
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if local == 0 or (local == 1 and verdict.rank == rank - local):
        if NOTES.run:
            resume = f"go on from the latest checkpoint: surefit train --resume {NOTES.run}"
        else:
            resume = "run the command again"
        text = (
            f"\nerror: {verdict.message}\nfix: When that process, its host or its network is "
            f"mended, {resume}. If it was only slow, allow more time with --set stall_seconds=N "
            "(0: never stop for it).\n"
        )
        with suppress(OSError):
            os.write(2, text.encode(errors="replace"))
    if verdict.is_silent and verdict.host == host:
        _kill_sibling(verdict.pid)
    if verdict.is_store_lost and local == 0:
        _end_agent()
    os._exit(1)


def _kill_sibling(pid: int) -> None:
    """End a stopped process that the same launcher started, which would wait for it."""
    import psutil

    with suppress(psutil.Error, OSError):
        if pid > 1 and psutil.Process(pid).ppid() == os.getppid() > 1:
            os.kill(pid, signal.SIGKILL)


def _end_agent() -> None:
    """Kill torchrun's agent, which waits for the same store without a limit of its own.

    Asked to end, it would end its processes and then wait for the store again.
    """
    import psutil

    time.sleep(AGENT_SECONDS)  # its other processes have come to the same end by then
    with suppress(psutil.Error, OSError):
        agent = psutil.Process(os.getppid())
        is_agent = any(name in " ".join(agent.cmdline()) for name in AGENTS)
        if "TORCHELASTIC_RUN_ID" in os.environ and is_agent:
            agent.kill()


def start_watchdog(rank: int, num_processes: int, attempt: str) -> Watchdog:
    """Watch the other processes of a run; all of them must call it."""
    watchdog = Watchdog(connect(STORE_SECONDS), rank, num_processes, attempt)
    watchdog.announce()
    watchdog.start()
    return watchdog
