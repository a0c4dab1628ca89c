"""A text or an exception to the error messages in it, the most likely root cause first.

Of an exception, the shapes of the tensors in its frames are read as well, and never their values.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

MAX_CHARS = 5_000_000
"""Of a longer text the end is read, where the failure is."""
MAX_LINE_CHARS = 4_000
LINE_OVERLAP_CHARS = 400
"""A longer line is read in pieces that overlap, so that a message on a border is still found."""
MAX_MESSAGE_LINES = 40
MAX_MESSAGE_CHARS = 10_000

TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)")
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")
LONE_SURROGATES = re.compile(r"[\ud800-\udfff]")
BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n){2,}")
RANK_PREFIX = re.compile(
    r"[^\S\n]{0,40}(?:\(\w[^()\n]{0,40}pid=\d{1,10}\)[^\S\n]{0,40})?"
    r"\[(?:default|rank)?(?P<rank>\d{1,6})\]:[^\S\n]?"
)
TRACEBACK = "Traceback (most recent call last)"
CHAINED = re.compile(r"direct cause of the following exc|During handling of the above exc")
EXCEPTION_LINE = re.compile(r"[A-Za-z_][\w.]*(?::\s.*|:?)")
NAMED_ERROR = re.compile(
    r"(?:E\s{1,40})?[\w.]{0,200}?(?:Error|Exception|Warning|Interrupt|ArrowInvalid)\s{0,40}:"
)
PROCESS_FAILED = re.compile(
    r"ChildFailedError|SignalException|CalledProcessError|ProcessRaisedException|"
    r"ProcessExitedException|DatasetGenerationError|DatasetGenerationCastError|"
    r"Caught \w{1,60} in (?:DataLoader worker|replica|pin memory)|^SystemExit|^KeyboardInterrupt|"
    r"^BrokenPipeError|^ConnectionResetError|RunFailedError"
)
BOX_DRAWING = "│╭╰┃┏┗|"
TRAINING_LIBRARY = re.compile(
    r"\b(?:torch|transformers|peft|accelerate|datasets|tokenizers|safetensors|trl|lightning|"
    r"pytorch_lightning|deepspeed|diffusers|huggingface_hub|sentence_transformers|surefit)\b"
)


@dataclass(frozen=True)
class Log:
    """The lines of a text without colours and ranks, and the messages of its tracebacks in chains.

    A chain has one message per exception, the first raised first.
    """

    lines: tuple[str, ...]
    chains: tuple[tuple[str, ...], ...]
    has_ranks: bool = False

    @cached_property
    def text(self) -> str:
        """Return all lines."""
        return "\n".join(self.lines)

    @cached_property
    def joined(self) -> str:
        """Return all lines as one, with single spaces: it contains every message."""
        return " ".join(self._filled_lines)

    @cached_property
    def may_be_training(self) -> bool:
        """Return whether a traceback names a training library; a text without frames may be any."""
        return 'File "' not in self.text or TRAINING_LIBRARY.search(self.text) is not None

    def root_messages(self) -> Iterator[str]:
        """Yield the messages of tracebacks, the most likely root cause first.

        In a chain the exception raised first is the root. The last chain counts, and an earlier
        one only if the last reports nothing but a failed process. With several ranks the first
        chain counts, because the rank that failed first made the others fail.
        """
        chains = self.chains if self.has_ranks else self.chains[::-1]
        for chain in chains:
            yield from sorted(chain, key=is_process_report)  # stable: reports come last
            if not self.has_ranks and not all(map(is_process_report, chain)):
                return

    @property
    def only_process_reports(self) -> bool:
        """Return whether the tracebacks, if there are any, report nothing but failed processes."""
        return all(is_process_report(message) for chain in self.chains for message in chain)

    def named_errors(self) -> Iterator[str]:
        """Yield messages outside tracebacks that begin with an error's name, the last first."""
        for number in range(len(self.lines) - 1, -1, -1):
            if NAMED_ERROR.match(self.lines[number]):
                yield _message(self.lines, number)[0]

    def passages(self) -> Iterator[str]:
        """Yield lines alone and with the next one (terminals wrap messages), the last one first."""
        for number in range(len(self._filled_lines) - 1, -1, -1):
            yield self._filled_lines[number]
            yield " ".join(self._filled_lines[number : number + 2])

    @cached_property
    def _filled_lines(self) -> list[str]:
        lines = (single_spaced(line) for line in self.lines)
        return [line for line in lines if line]


def is_process_report(message: str) -> bool:
    """Return whether a message reports only that another process or worker failed."""
    return PROCESS_FAILED.search(message[:300]) is not None


def single_spaced(text: str) -> str:
    """Return the text with each run of white space as one space."""
    return " ".join(text.split())


def read_log(text: str) -> Log:
    """Read the lines and tracebacks of Python, notebooks, rich, pytest and several processes."""
    ranks: dict[str, list[str]] = {}
    rest: list[str] = []
    for line in _clean(text[-MAX_CHARS:]).split("\n"):
        prefix = RANK_PREFIX.match(line)
        stream = rest if prefix is None else ranks.setdefault(prefix["rank"], [])
        stream += _pieces(line if prefix is None else line[prefix.end() :])
    streams = [*ranks.values(), rest]
    chains = [chain for stream in streams for chain in _chains(stream)]
    return Log(tuple(line for stream in streams for line in stream), tuple(chains), bool(ranks))


def _clean(text: str) -> str:
    """Return a text with plain line ends, without terminal codes and unprintable characters."""
    text = TERMINAL_CODES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    text = LONE_SURROGATES.sub("\ufffd", CONTROL_CHARACTERS.sub("", text))
    return BLANK_LINES.sub("\n\n", text)


def _pieces(line: str) -> list[str]:
    """Cut a long line into pieces; later pieces are indented, so that none names an error."""
    if len(line) <= MAX_LINE_CHARS:
        return [line]
    starts = range(0, len(line), MAX_LINE_CHARS - LINE_OVERLAP_CHARS)
    pieces = [line[start : start + MAX_LINE_CHARS] for start in starts]
    return [pieces[0], *(" " + piece for piece in pieces[1:])]


def _chains(lines: Sequence[str]) -> Iterator[tuple[str, ...]]:
    chain: list[str] = []
    number = 0
    while number < len(lines):
        if TRACEBACK not in lines[number]:
            number += 1
            continue
        is_nested = "Original " + TRACEBACK in lines[number]
        before = lines[max(0, number - 4) : number]
        if chain and not is_nested and not any(CHAINED.search(line) for line in before):
            yield tuple(chain)
            chain = []
        last = _exception_line(lines, number + 1)
        if last is None:
            break
        message, number = _message(lines, last)
        chain.append(message)
    if chain:
        yield tuple(chain)


def _exception_line(lines: Sequence[str], start: int) -> int | None:
    """Return the line that names the exception: the first not indented that looks like one."""
    for number in range(start, len(lines)):
        if EXCEPTION_LINE.fullmatch(lines[number].removeprefix("E   ")):
            return number
    return None


def _message(lines: Sequence[str], start: int) -> tuple[str, int]:
    """Return the message that begins at a line, and the number of the line after it."""
    taken = [lines[start].strip()]
    number = start + 1
    while number < min(len(lines), start + MAX_MESSAGE_LINES):
        line = lines[number]
        if line.strip():
            if _begins_something_else(line):
                break
            taken.append(line.strip())
        elif not taken[-1].endswith(":"):
            break
        number += 1
    return single_spaced(" ".join(taken)[:MAX_MESSAGE_CHARS]), number


def _begins_something_else(line: str) -> bool:
    return (
        TRACEBACK in line
        or line.startswith("```")
        or line[0] in BOX_DRAWING
        or NAMED_ERROR.match(line) is not None
        or CHAINED.search(line) is not None
    )


MAX_SHAPES = 12
MAX_FRAMES = 6
MAX_PART_CHARS = 20_000
"""Characters of one frame or one message of a traceback; of a longer one the beginning is read."""

BATCH_CLASSES = ("BatchEncoding", "BatchFeature")
"""Mappings besides dict that are read. Reading another mapping may load data."""


def format_error(error: BaseException) -> str:
    """Return the traceback of an exception and of those that caused it, as Python prints it."""
    try:
        parts = traceback.format_exception(error)
    except Exception:  # the class overrides what the traceback module needs
        parts = [object.__repr__(error)]
    header = "" if any(TRACEBACK in part for part in parts) else f"{TRACEBACK}:\n"
    return header + "".join(
        part if len(part) <= MAX_PART_CHARS else part[:MAX_PART_CHARS] + "\n" for part in parts
    )


def tensor_shapes(error: BaseException) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of tensors in the innermost frames, the innermost first."""
    shapes: dict[str, tuple[int, ...]] = {}
    with suppress(Exception):  # the class overrides what is read of it
        frames = [frame for frame, _ in traceback.walk_tb(_first_of(error).__traceback__)]
        for frame in frames[: -MAX_FRAMES - 1 : -1]:
            for name, value in _named_items(frame.f_locals):
                for label, shape in _named_shapes(name, value):
                    shapes.setdefault(label, shape)
    return dict(list(shapes.items())[:MAX_SHAPES])


def _first_of(error: BaseException) -> BaseException:
    """Return the exception that the others of a chain followed from."""
    seen = {id(error)}
    while True:
        before = error.__cause__
        if before is None and not error.__suppress_context__:
            before = error.__context__
        if before is None or id(before) in seen:
            return error
        seen.add(id(before))
        error = before


def _named_shapes(name: str, value: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the shape of a variable that is a tensor, or those of the tensors of a batch."""
    is_batch = type(value) is dict or type(value).__name__ in BATCH_CLASSES
    members = _named_items(value)[:MAX_SHAPES] if is_batch else []
    for label, member in [(name, value), *members]:
        shape = _shape(member)
        if shape:
            yield label, shape


def _named_items(mapping: Any) -> list[tuple[str, Any]]:
    """Return the items of a mapping whose keys are plain strings; none if it cannot be read."""
    try:
        return [(key, value) for key, value in mapping.items() if type(key) is str]
    except Exception:  # a class of one's own, or another thread that changes the mapping
        return []


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a tensor or array; None for anything else and for tensors that hide
    theirs.

    A lazy parameter and a nested tensor raise when they are asked for a shape. Only the libraries
    that are loaded already are looked at.
    """
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    found = (getattr(torch, "Tensor", None), getattr(numpy, "ndarray", None))
    if not issubclass(type(value), tuple(kind for kind in found if isinstance(kind, type))):
        return None
    try:
        return tuple(int(size) for size in value.shape)
    except Exception:
        return None
