"""Regular expressions from a run, an adapter or a command, matched with a limit.

Python's `re` cannot be stopped, and a pattern of a stranger may match for years. So it matches in a
child process, which imports nothing else and has limits of CPU time and memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache

from surefit.errors import UsageError

CPU_SECONDS = 2
WAIT_SECONDS = 120
"""A busy machine may take far longer than the CPU time."""
MEMORY_BYTES = 1 << 29
_CHILD = f"""
import json, re, sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, ({CPU_SECONDS}, {CPU_SECONDS} + 1))
    resource.setrlimit(resource.RLIMIT_AS, ({MEMORY_BYTES}, {MEMORY_BYTES}))
except ImportError:
    pass
pattern, names = json.load(sys.stdin)
try:
    match = re.compile(pattern).fullmatch
except (re.error, OverflowError):
    print("null")
else:
    print(json.dumps([place for place, name in enumerate(names) if match(name)]))
"""


def matching(pattern: str, names: Sequence[str], key: str) -> frozenset[str]:
    """Return the names that a regular expression matches as a whole; none if it is no such thing.

    `key` is where the pattern comes from, for the error about one that never ends.

    >>> sorted(matching("a[12]", ["a1", "a2", "b1"], "freeze")), matching("[", ["["], "freeze")
    (['a1', 'a2'], frozenset())
    """
    return _matching(pattern, tuple(names), key)


@lru_cache(maxsize=64)
def _matching(pattern: str, names: tuple[str, ...], key: str) -> frozenset[str]:
    if not any(sign in pattern for sign in r"\.^$*+?{}[]|()"):
        return frozenset({pattern} & {*names})
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _CHILD],
            input=json.dumps([pattern, names]),
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _endless(pattern, key) from None
    if done.returncode != 0:
        raise _endless(pattern, key)
    found = json.loads(done.stdout)
    return frozenset(names[place] for place in found or ())


def _endless(pattern: str, key: str) -> UsageError:
    return UsageError(
        f"{key}: the regular expression {pattern!r:.80} takes more than {CPU_SECONDS} s of "
        f"CPU time or {MEMORY_BYTES >> 20} MB to match names of the model.",
        "Write names or wildcards, or a regular expression without nested repetitions.",
    )
