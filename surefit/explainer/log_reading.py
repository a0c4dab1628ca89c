"""Text of any kind to the error messages in it, the likeliest root cause first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
RANK = re.compile(r"^\s*(?:\(\w[^()]{0,40}pid=\d+\)\s*)?\[(?:default|rank)?(\d+)\]:\s?")
START = "Traceback (most recent call last)"
CHAINED = re.compile(r"direct cause of the following exc|During handling of the above exc")
RAISED = re.compile(r"^[A-Za-z_][\w.]*(?::\s.*|:?)$")
NAMED = re.compile(
    r"^(?:E\s+)?(?:[\w.]+\.)?[A-Za-z_]*(?:Error|Exception|Warning|Interrupt|ArrowInvalid)\s*:"
)
WRAPPERS = re.compile(
    r"ChildFailedError|SignalException|CalledProcessError|ProcessRaisedException|"
    r"ProcessExitedException|DatasetGenerationError|DatasetGenerationCastError|"
    r"Caught \w+ in (?:DataLoader worker|replica|pin memory)|^SystemExit|^KeyboardInterrupt|"
    r"^BrokenPipeError|^ConnectionResetError|RunFailedError"
)
BORDER = "│╭╰┃┏┗|"
LONGEST_MESSAGE = 40
"""Lines after which a message is taken to be over."""


@dataclass(frozen=True)
class Log:
    """A text: its lines without colour and rank, and the messages of its tracebacks in chains."""

    lines: tuple[str, ...]
    chains: tuple[tuple[str, ...], ...]
    has_ranks: bool = False

    def roots(self) -> Iterator[str]:
        """The messages of tracebacks, the likeliest root cause first.

        Of a chain the exception raised first is the root. The last chain counts; one before it
        only where the last tells of nothing but a process that failed. Of several processes
        the one that failed first is the cause.
        """
        if self.has_ranks:
            chains: Sequence[tuple[str, ...]] = self.chains
        else:
            chains = self.chains[::-1]
        for chain in chains:
            yield from sorted(chain, key=is_wrapper)  # stable: wrappers last
            if not self.has_ranks and not all(map(is_wrapper, chain)):
                return

    @property
    def only_wrappers(self) -> bool:
        """Whether the tracebacks, if any, tell of nothing but processes that failed."""
        return all(is_wrapper(message) for chain in self.chains for message in chain)

    def named_errors(self) -> Iterator[str]:
        """Lines outside tracebacks that begin like an error's last line, the last one first."""
        for number in range(len(self.lines) - 1, -1, -1):
            if NAMED.match(self.lines[number]):
                yield _message(self.lines, number)[0]

    def passages(self) -> Iterator[str]:
        """Each line, then it with the one after it (messages get wrapped), the last one first."""
        for number in range(len(self.lines) - 1, -1, -1):
            if self.lines[number].strip():
                yield _single(self.lines[number])
                yield _single(" ".join(self.lines[number : number + 2]))


def is_wrapper(message: str) -> bool:
    """Whether a message says only that another process or worker failed."""
    return WRAPPERS.search(message[:300]) is not None


def read_log(text: str) -> Log:
    """Lines and tracebacks of a text: plain, of notebooks, of rich, of several processes."""
    raw = ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    ranks: dict[str, list[str]] = {}
    for line in raw:
        found = RANK.match(line)
        if found is not None:
            ranks.setdefault(found[1], []).append(line[found.end() :])
    lines = [line for line in raw if RANK.match(line) is None]
    streams = [*ranks.values(), lines]
    chains = [chain for stream in streams for chain in _chains(stream)]
    return Log(tuple(line for stream in streams for line in stream), tuple(chains), bool(ranks))


def _chains(lines: Sequence[str]) -> Iterator[tuple[str, ...]]:
    chain: list[str] = []
    number = 0
    while number < len(lines):
        if START not in lines[number]:
            number += 1
            continue
        nested = "Original " + START in lines[number]
        before = [line for line in lines[max(0, number - 4) : number] if line.strip()]
        if chain and not nested and not any(CHAINED.search(line) for line in before):
            yield tuple(chain)
            chain = []
        last = _last_line(lines, number + 1)
        if last is None:
            break
        message, number = _message(lines, last)
        chain.append(message)
    if chain:
        yield tuple(chain)


def _last_line(lines: Sequence[str], number: int) -> int | None:
    """The line that names the exception: the first one that is not indented and looks so."""
    for place in range(number, len(lines)):
        line = lines[place].removeprefix("E   ")
        if RAISED.match(line):
            return place
        if START in line:
            return None if place == number else _last_line(lines, place + 1)
    return None


def _message(lines: Sequence[str], number: int) -> tuple[str, int]:
    """The message that begins at a line, as one line, and the number of the line after it."""
    taken = [lines[number].strip()]
    place = number + 1
    while place < min(len(lines), number + LONGEST_MESSAGE):
        line = lines[place]
        empty = not line.strip()
        if START in line or CHAINED.search(line) or (empty and not taken[-1].endswith(":")):
            break
        if NAMED.match(line) or line.startswith("```") or (line[:1] in BORDER and not empty):
            break
        if not empty:
            taken.append(line.strip())
        place += 1
    return _single(" ".join(taken)), place


def _single(text: str) -> str:
    return " ".join(text.split())
