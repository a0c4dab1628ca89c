"""Regular expressions from a run, an adapter, a config or a command, matched with a limit.

Python's `re` cannot be stopped, and a pattern of a stranger may match for years. So it matches in a
child process, which imports nothing else and has limits of CPU time and memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from surefit.errors import UsageError

T = TypeVar("T")
CPU_SECONDS = 2
"""To compile the pattern, and to match what is asked for at once."""
MEMORY_BYTES = 1 << 30
ASKED_TEXTS, ASKED_CHARACTERS = 1000, 1 << 20
"""How many texts are asked for at once; a longer text is asked for alone."""
_CHILD = """
import json, re, resource, signal, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))

def bounded(work, given):
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # whose signal ends the process
    answer = work(given)
    signal.setitimer(signal.ITIMER_PROF, 0)
    return answer

def say(answer):
    print(json.dumps(answer), flush=True)

try:
    pattern = bounded(re.compile, json.loads(sys.stdin.buffer.readline()))
except (re.error, OverflowError, RecursionError) as error:
    say(str(error).encode("ascii", "backslashreplace").decode() or type(error).__name__)
    sys.exit()
say([pattern.groups, dict(pattern.groupindex)])

def spans(asked):
    how, texts = asked
    matches = map(getattr(pattern, how), texts)
    return [match and [match.span(n) for n in range(pattern.groups + 1)] for match in matches]

for line in sys.stdin.buffer:
    say(bounded(spans, json.loads(line)))
"""


class NoPatternError(Exception):
    """A text that is no regular expression."""


@dataclass(frozen=True)
class Matcher:
    """A regular expression in its process: how many groups it has, and which by name."""

    pattern: str
    key: str
    child: Any
    num_groups: int = 0
    names: tuple[tuple[str, int], ...] = ()

    def each(
        self, items: Iterable[tuple[T, str]], how: str = "fullmatch"
    ) -> Iterator[tuple[T, str, list[str | None] | None]]:
        """Yield each item and text with the match and its groups, or None; `how` as `re` has it."""
        asked: list[tuple[T, str]] = []
        size = 0
        for item in items:
            size += len(item[1])
            if asked and (len(asked) == ASKED_TEXTS or size > ASKED_CHARACTERS):
                yield from self._answers(asked, how)
                asked, size = [], len(item[1])
            asked.append(item)
        yield from self._answers(asked, how)

    def _answers(self, asked: Sequence[tuple[T, str]], how: str) -> Iterator[Any]:
        found = self.ask([how, [text for _, text in asked]])
        for (item, text), spans in zip(asked, found, strict=True):
            groups = [text[a:b] if a >= 0 else None for a, b in spans] if spans else None
            yield item, text, groups

    def ask(self, value: Any) -> Any:
        """Return what the child answers; without an answer, it has met a limit."""
        try:
            line = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
            self.child.stdin.write(line + b"\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            pass
        answer = self.child.stdout.readline()
        if answer:
            return json.loads(answer)
        raise UsageError(
            f"{self.key}: the regular expression {self.pattern!r:.80} takes more than "
            f"{CPU_SECONDS} s of CPU time or {MEMORY_BYTES >> 20} MB.",
            "Write it without nested repetitions.",
        )


@contextmanager
def matcher(pattern: str, key: str) -> Iterator[Matcher]:
    """Give what matches texts with a regular expression; `key` is where it comes from, for errors.

    >>> with matcher("(?P<n>[0-9]+)!?", "read.pattern") as found:
    ...     [groups for _, _, groups in found.each([(0, "12!"), (1, "no")])]
    [['12!', '12'], None]
    """
    limits = f"MEMORY_BYTES, CPU_SECONDS = {MEMORY_BYTES}, {CPU_SECONDS}\n"
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", limits + _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as child:
        try:
            answer = Matcher(pattern, key, child).ask(pattern)
            if isinstance(answer, str):
                raise NoPatternError(answer)
            yield Matcher(pattern, key, child, answer[0], tuple(answer[1].items()))
        finally:
            child.kill()


@lru_cache(maxsize=64)
def num_groups(pattern: str, key: str) -> int:
    """Return how many groups a regular expression has; raise `NoPatternError` if it is none."""
    with matcher(pattern, key) as found:
        return found.num_groups


def matching(pattern: str, names: Sequence[str], key: str) -> frozenset[str]:
    """Return the names that a regular expression matches as a whole; none if it is no such thing.

    >>> sorted(matching("a[12]", ["a1", "a2", "b1"], "freeze")), matching("[", ["["], "freeze")
    (['a1', 'a2'], frozenset())
    """
    return _matching(pattern, tuple(names), key)


@lru_cache(maxsize=64)
def _matching(pattern: str, names: tuple[str, ...], key: str) -> frozenset[str]:
    if not any(sign in pattern for sign in r"\.^$*+?{}[]|()"):
        return frozenset({pattern} & {*names})
    try:
        with matcher(pattern, key) as found:
            matched = found.each((name, name) for name in names)
            return frozenset(name for name, _, groups in matched if groups is not None)
    except NoPatternError:
        return frozenset()
