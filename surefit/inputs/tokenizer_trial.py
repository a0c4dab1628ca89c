"""A tokenizer that is new on this machine is first used in a process of its own, under limits.

The file `tokenizer.json` of a stranger may multiply text, match without end, or make the library
of tokenizers abort, and nothing in this process could stop that. So its bytes go to this file, run
as a script that imports `tokenizers` alone, which encodes a few texts. Files that held are
remembered by their digest in `$XDG_STATE_HOME/surefit/tokenizers.json`, outside of all runs.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

KEPT = 1000
"""Digests that are remembered; those that were tried the longest ago are forgotten."""
CPU_SECONDS, SECONDS_PER_MB = 10, 1
"""CPU time of a trial; to read a vocabulary takes 0.05 s for each megabyte of the file."""
MEMORY_BYTES, BYTES_PER_BYTE = 1 << 30, 40
"""Address space of a trial, and what is added for each byte of the file."""
WAIT_SECONDS = 300
"""A busy machine may take far longer than the CPU time."""
MOST_TOKENS, TOKENS_PER_BYTE = 1000, 64
"""Tokens of a text: special tokens around it, and what one byte may become if it is normalized."""
TEXTS = (
    "",
    "The quick brown fox jumps over the lazy dog; it's 3,500.75 m from Zürich — naïve, isn't it?\n",
    "def f(x):\n    return {'a': [x ** 2, \"b\"]}  # 北京 مرحبا 👍🏽 \u200d\ufdfa\u0301\t\r\n",
    " ".join(chr(code) * 48 for code in range(33, 127)),
    "a" * 4000 + " " * 4000 + "word " * 400,
)
"""Prose, code and other scripts, and repetitions, on which a careless regex never ends."""

_held: set[str] = set()
"""Digests that this process knows to hold."""


def try_tokenizer(path: Path) -> str | None:
    """Return why a `tokenizer.json` cannot be used here; None if it holds, now or earlier."""
    from surefit.user_code.run_code import hash_code

    content = path.read_bytes()
    digest = hash_code(content)
    if digest in _held or digest in _remembered():
        _held.add(digest)
        return None
    reason = _run(content, [sys.executable, "-P", __file__])
    if reason is None:
        _held.add(digest)
        _remember(digest)
    return reason


def _record() -> Path:
    from surefit.user_code.run_code import records_folder

    return records_folder().with_name("tokenizers.json")


def _remembered() -> list[str]:
    from surefit.core.foreign import read_json
    from surefit.errors import UsageError

    with suppress(UsageError):  # none yet; one that cannot be read permits nothing
        return read_json(_record(), list[str])
    return []


def _remember(digest: str) -> None:
    from surefit.core import files
    from surefit.errors import UsageError

    with suppress(OSError, UsageError):  # without a place for it, it is tried again
        path = _record()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        files.write_json(path, [*_remembered(), digest][-KEPT:])


def _run(content: bytes, command: Sequence[str]) -> str | None:
    """Give the file to the trial; None where it ends well."""
    try:
        done = subprocess.run(
            command, input=content, capture_output=True, timeout=WAIT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"a trial on five short texts did not end within {WAIT_SECONDS} s"
    if done.returncode == 0:
        return None
    limit = _limits(len(content))
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"a trial on five short texts took more than {limit[0]} s of CPU time"
    if b"memory allocation" in done.stderr or b"MemoryError" in done.stderr:
        return f"a trial on five short texts took more than {limit[1] / 1e9:.1f} GB of memory"
    if done.returncode < 0:
        return f"a trial of it was ended by {signal.Signals(-done.returncode).name}"
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else f"a trial of it failed with exit code {done.returncode}"


def _limits(num_bytes: int) -> tuple[int, int]:
    """Return the seconds of CPU time and the bytes of memory for a file of this size."""
    seconds = CPU_SECONDS + SECONDS_PER_MB * (num_bytes >> 20)
    return seconds, MEMORY_BYTES + BYTES_PER_BYTE * num_bytes


def main() -> int:
    """Encode the texts under limits; print what fails."""
    content = sys.stdin.buffer.read()
    with suppress(ImportError):
        import resource

        seconds, num_bytes = _limits(len(content))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception:  # transformers reads some files that the library alone does not
        return 0
    for text in TEXTS:
        num_bytes = len(text.encode())
        try:
            num_tokens = len(tokenizer.encode(text).ids)
        except Exception:  # a word without a token: the rows will tell
            continue
        if num_tokens > MOST_TOKENS + TOKENS_PER_BYTE * num_bytes:
            print(f"it makes {num_tokens:,} tokens of a text of {num_bytes:,} bytes")
            return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise
        print(
            f"{type(error).__name__}: {error}".partition("\n")[0]
        )  # a panic, which is no Exception
        sys.exit(1)
