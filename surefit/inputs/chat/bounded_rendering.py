"""Limits for chat templates, which come with models of strangers: time, memory and size of text.

A template is rendered in this process, row by row, in about 100 µs. A thread watches the CPU time
of a rendering and interrupts it; the kernel refuses large allocations meanwhile. Powers of
integers, which nothing can interrupt, are refused beforehand.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from surefit.errors import FindingError
from surefit.findings import rule
from surefit.inputs.chat.messages import Message

UNUSABLE_TEMPLATE = rule(
    "SF274",
    "error",
    "unusable template",
    why="It is not valid Jinja, needs what the sandbox forbids, fails on a dialogue, or takes more "
    "time or memory than any template needs.",
    fix="Correct it, or choose another one with template (template=chatml, for example).",
)

MAX_SECONDS = 10.0
"""CPU time of one rendering."""
MAX_BYTES = 1 << 30
"""Memory that one rendering may take."""
MAX_CHARACTERS = 1 << 24
MAX_PRECISION = 20
_LOOK_SECONDS = 0.25
_IDLE_LOOKS = 20

Made = TypeVar("Made")


class _InterruptedRendering(BaseException):
    """Raised in the thread that renders; no handler of `Exception` may catch it."""


def check_template(text: str) -> None:
    """Refuse powers, and rounding to a computed precision: they cannot be interrupted."""
    from jinja2 import Environment, TemplateError

    skipped = ("whitespace", "comment", "comment_begin", "comment_end")
    try:
        tokens = [
            (value, line) for line, kind, value in Environment().lex(text) if kind not in skipped
        ]
    except (TemplateError, RecursionError):
        return  # reported when it is rendered
    for place, (value, line) in enumerate(tokens):
        before = tokens[place - 1][0] if place else ""
        after = [each for each, _ in tokens[place + 1 : place + 4]]
        if value == "**" and before not in ("(", ","):
            raise _exceeds(f"line {line} has a power (**)")
        if value == "round" and before == "|" and after[:1] == ["("] and not _is_small(after):
            raise _exceeds(f"line {line} rounds to more than {MAX_PRECISION} places")


def _is_small(arguments: Sequence[str]) -> bool:
    """Return whether the first argument after a bracket is a small number, or there is none."""
    if arguments[1:2] == [")"] or len(arguments) < 3:
        return True
    _, first, after = arguments
    return (
        after in (",", ")") and first.isdecimal() and len(first) < 3 and int(first) <= MAX_PRECISION
    )


Rendered = tuple[str, list[tuple[int, int]]]
"""The text of a dialogue, and its generation blocks."""


def render_bounded(
    template: str, dialogues: Sequence[Sequence[Message]], tools: Any, more: Mapping[str, Any]
) -> list[Rendered]:
    """Render dialogues of one row; raise an error beyond the bounds of time, memory or size."""
    from transformers.utils.chat_template_utils import render_jinja_template

    chats = [list(messages) for messages in dialogues]
    render = partial(render_jinja_template, chats, tools, chat_template=template, **more)
    try:
        texts, spans = _bounds.run(render)
    except _InterruptedRendering:
        raise _exceeds(f"it takes more than {MAX_SECONDS:g} s for one row") from None
    except MemoryError:
        what = f"it takes more than {MAX_BYTES >> 30} GB of memory for one row"
        raise _exceeds(what) from None
    longest = max(map(len, texts))
    if longest > MAX_CHARACTERS:
        raise _exceeds(f"it writes {longest:,} characters for one row")
    return [
        (text, list(blocks)) for text, blocks in zip(texts, spans or [()] * len(texts), strict=True)
    ]


def _exceeds(what: str) -> FindingError:
    return UNUSABLE_TEMPLATE.error(f"The chat template exceeds its limits: {what}.")


class _Bounds:
    """Runs one rendering at a time: a thread interrupts it, and the kernel refuses it memory.

    The thread ends when there is nothing to watch. A forked process has bounds of its own.
    """

    def __init__(self) -> None:
        self.reset()
        os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Forget what another process was rendering."""
        self.turn, self.lock = threading.Lock(), threading.Lock()
        self.running: int | None = None  # the thread that renders
        self.num_run = 0
        self.thread: threading.Thread | None = None
        self.statm: int | None = None  # of this process; kept open, as it is read for each row

    def run(self, render: Callable[[], Made]) -> Made:
        """Run `render` in this thread, until it has used up its CPU time or memory."""
        with self.turn:
            if self.thread is None:
                self.thread = threading.Thread(
                    target=self._look, name="surefit-template", daemon=True
                )
                self.thread.start()
            self.num_run += 1
            self.running = threading.get_ident()
            try:
                # read anew each time: a process that has grown over the bound is refused memory
                # where CPython cannot report it, and is broken from then on
                with _bounded_memory(self._used_bytes() + MAX_BYTES):
                    return render()
            finally:
                with self.lock:
                    self.running = None

    def _used_bytes(self) -> int:
        """Return the address space of this process; without bound on systems without /proc."""
        try:
            if self.statm is None:
                self.statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
            return int(os.pread(self.statm, 64, 0).split()[0]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            self.statm = None
            return 1 << 62

    def _look(self) -> None:
        """Interrupt a rendering that has used up its CPU time since it was first seen."""
        idle, seen, began = 0, 0, 0.0
        while idle < _IDLE_LOOKS:
            time.sleep(_LOOK_SECONDS)
            with self.lock:
                idle = 0 if self.running else idle + 1
                if self.running is None:
                    continue
                used = _cpu_seconds(self.running)
                if self.num_run != seen:
                    seen, began = self.num_run, used
                elif used > began + MAX_SECONDS:
                    thread = ctypes.c_ulong(self.running)
                    error = ctypes.py_object(_InterruptedRendering)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, error)
                    self.running = None
        self.thread = None


def _cpu_seconds(ident: int) -> float:
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(ident))
    except (AttributeError, OSError):  # not on this system, or the thread has ended
        return 0.0


@contextmanager
def _bounded_memory(bound: int) -> Iterator[None]:
    """Let the kernel refuse address space beyond a bound."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    if before[0] < 0 or bound < before[0]:
        resource.setrlimit(resource.RLIMIT_AS, (bound, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


_bounds = _Bounds()
