"""Commands that the page starts: a check, which is waited for, and runs, which go on alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import IO, Any

from pydantic_core import to_jsonable_python

from surefit.config import LOCAL_KEYS, SHORT_KEYS, RunConfig, config_fields
from surefit.core.foreign import parse_json
from surefit.errors import UsageError
from surefit.printable import printable
from surefit.user_code.named_code import is_code_name

NAME = re.compile(r"\w[\w. -]{0,80}")
TAIL_BYTES = 8000
END_SECONDS = 10.0
KEYS_OF_FIX = (r"--(?:set[ =]'?)?([a-zA-Z][\w.-]*\w)", r"\b([a-z]+(?:[_.][a-z]+)+)")
"""How a fix names config keys: as options, or as words that only keys have, like max_seq_length."""


def arguments_of(values: Mapping[str, str]) -> list[str]:
    """Return the fields of the form that are filled in as options of `train` and `check`.

    >>> arguments_of({"lr": "1e-3", "data": "a.csv, b.csv", "seed": " "})
    ['--set=lr=1e-3', '--set=data=[a.csv, b.csv]']
    """
    known, made = config_fields(), list[str]()
    for name, text in values.items():
        value = text.strip()
        if not value:
            continue
        if name not in known:
            raise UsageError(f"There is no config key {name!r}.", "Use the fields of the form.")
        takes_many = "tuple" in str(known[name].annotation)
        if takes_many and ", " in value and value[0] not in "[{":
            value = f"[{value}]"
        made.append(f"--set={name}={value}")
    return made


def filled_in(config: RunConfig, is_own: bool) -> tuple[dict[str, str], list[str]]:
    """Return the fields of a form for a run like another one, and the keys that are left out.

    A run folder may be a stranger's: it sets nothing of this machine, and names no code.
    """
    values, left_out = dict[str, str](), list[str]()
    for key, info in config_fields().items():
        value = attrgetter(key)(config)
        if key.partition(".")[0] in LOCAL_KEYS or value == info.get_default():
            continue
        plain = to_jsonable_python(value)
        text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
        if not is_own and names_code(plain):
            left_out.append(key)
        else:
            values[key] = text
    return values, left_out


def names_code(value: Any) -> bool:
    """Return whether a value of a config, or one inside it, is `module:function`.

    >>> names_code("tiny:llama"), names_code({"f1": {"function": "my:f1"}})
    (False, True)
    """
    if isinstance(value, dict):
        return any(map(names_code, value.values()))
    if isinstance(value, list):
        return any(map(names_code, value))
    return isinstance(value, str) and is_code_name(value)


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "surefit", *arguments]


def check(values: Mapping[str, str]) -> dict[str, Any]:
    """Return what `surefit check --json` answers to a form."""
    done = subprocess.run(
        _command("check", "--json", *arguments_of(values)),
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    if not lines:
        told = done.stderr.decode("utf-8", "replace")[-TAIL_BYTES:]
        raise UsageError(told or f"The check ended with {done.returncode}.", "Check again.")
    return parse_json(lines[-1], dict[str, Any], "the answer of surefit check")


def fields_of(finding: Mapping[str, Any], values: Mapping[str, str]) -> list[str]:
    """Return the config keys that a finding concerns: those its fix or the start of its message
    names, else those whose value it names, else the data if it is about a place there.

    >>> fields_of({"message": "x", "fix": "Accept it: --set accept=SF131.", "where": {}}, {})
    ['accept']
    >>> fields_of({"message": "cut", "fix": "Raise max_seq_length."}, {})
    ['max_seq_length']
    >>> fields_of({"message": "There is no b.csv.", "fix": "Check the path."}, {"data": "b.csv"})
    ['data']
    """
    known = {**{name: name for name in config_fields()}, **SHORT_KEYS}
    fix, message = str(finding.get("fix", "")), str(finding.get("message", ""))
    named = [name for pattern in KEYS_OF_FIX for name in re.findall(pattern, fix)]
    named = [name.replace("-", "_") for name in [*named, message.partition(":")[0]]]
    found = [known[key] for key in named if key in known]
    found += ["columns" for key in named if key.startswith("columns.")]
    if not found:
        found = [key for key, value in values.items() if len(value) > 2 and value in message]
    if not found and finding.get("where"):
        found = ["data"]
    return list(dict.fromkeys(found))


@dataclass
class Job:
    """A run that the page has started or resumed, and what its process has printed."""

    process: subprocess.Popen[bytes]
    log: IO[bytes]
    command: Sequence[str]

    @property
    def exit_code(self) -> int | None:
        """Return the exit code; None while the process runs."""
        return self.process.poll()

    @property
    def printed(self) -> str:
        """Return the end of what the process has printed, with control characters shown."""
        size = os.fstat(self.log.fileno()).st_size
        end = os.pread(self.log.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES))
        lines = end.decode("utf-8", "replace").splitlines()
        return "\n".join(printable(line) for line in lines)


class Jobs:
    """The runs that the page has started, by their names. They go on when the page ends."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.started = folder, dict[str, Job]()

    def train(self, name: str, values: Mapping[str, str]) -> None:
        """Start a new run under a name."""
        if not NAME.fullmatch(name) or name.strip() != name:
            raise UsageError(
                f"{name!r} is no name of a run.", "Use letters, digits, dots, dashes and spaces."
            )
        if os.path.lexists(self.folder / name):
            raise UsageError(f"There is a {name!r} already.", "Choose another name.")
        wanted = {key: value for key, value in values.items() if key != "output"}
        output = f"--output={self.folder / name}"
        self._start(name, ["train", *arguments_of(wanted), output])

    def resume(self, name: str, path: Path) -> None:
        """Resume a run that has stopped."""
        self._start(name, ["train", f"--resume={path}"])

    def _start(self, name: str, arguments: Sequence[str]) -> None:
        running = self.started.get(name)
        if running is not None:
            try:  # one that was stopped may still be ending
                running.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                raise UsageError(
                    f"{name} has been started already.", "Wait for it, or stop it."
                ) from None
        log = tempfile.TemporaryFile()  # noqa: SIM115 - read as long as the page is served
        process = subprocess.Popen(
            _command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C ends the page, not the runs
        )
        self.started[name] = Job(process, log, ("surefit", *arguments))
