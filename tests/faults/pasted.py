"""The options in the fix of a finding, as a user would paste them."""

from __future__ import annotations

import re
import shlex

from surefit.cli.options import OPTIONS
from surefit.config import config_fields, make_config, parse_setting, spell_out
from surefit.errors import SurefitError
from surefit.findings import check_accepted

KNOWN = {*OPTIONS, "resume", "set", "processes", "device", "trust_code", "text", "debug", "json"}
_VALUE = r"(?:'[^']*'|[^\s';]+)+"
_SET = re.compile(rf"--set ({_VALUE})")
_OPTION = re.compile(r"--([a-z][a-z_-]*)")
_PROSE = re.compile(r"(?<![\w.])([a-z_]+(?:\.[a-z_]+)*)=([\w.\[\]-]+)")
_LINE = re.compile(rf"--(?:set {_VALUE}|[a-z][a-z-]* {_VALUE})(?: --(?:set|[a-z-]+) {_VALUE})*")
PLACEHOLDER = re.compile(r"<\w+>|\b[A-Z]{3,}\b(?![\d=])")
"""What the user has to replace: `<column>`, `FILE.jinja`."""


def wrong_options(fix: str) -> list[str]:
    """What is wrong with the options that a fix names; empty if all of them parse."""
    wrong = [f"--{name}" for name in _OPTION.findall(fix) if name.replace("-", "_") not in KNOWN]
    for given in [*_SET.findall(fix), *_in_prose(fix)]:
        complaint = _complaint(given.rstrip(".,;:)"))
        wrong += [complaint] if complaint else []
    return wrong


def _in_prose(fix: str) -> list[str]:
    """Settings that a fix names without `--set`, such as overlong=drop."""
    keys = {*config_fields()}
    return [f"{key}={value}" for key, value in _PROSE.findall(fix) if key in keys]


def _complaint(given: str) -> str:
    """Why `--set` refuses a setting."""
    try:
        (word,) = shlex.split(given)
        key, value = parse_setting(word)
        config = make_config(spell_out({key: value}))
        check_accepted(config.accept)
    except (SurefitError, ValueError) as error:
        return f"--set {given}: {error}"
    return ""


def lines_in(fix: str) -> list[list[str]]:
    """The options of each alternative that can be pasted as it is; prose is left out."""
    found = []
    for line in _LINE.findall(fix):
        words = shlex.split(line.rstrip(".,;:)"))
        names, values = words[::2], words[1::2]
        known = all(name[2:].replace("-", "_") in KNOWN for name in names)
        if known and not PLACEHOLDER.search(line) and all(map(_is_value, names, values)):
            found.append(words)
    return found


def _is_value(option: str, value: str) -> bool:
    """Whether a word after an option is its value rather than prose."""
    kind = OPTIONS.get(option[2:].replace("-", "_"))
    if option == "--set":
        return "=" in value
    if kind in (int, float):
        return bool(re.fullmatch(r"[\d.e+-]+", value))
    return option == "--task" or (option == "--eval-data" and "." in value)
