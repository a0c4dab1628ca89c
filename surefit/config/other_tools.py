"""Keys and values of other tools: what to write here instead, or why there is no such thing.

`other_tool_keys.yaml` is the table of keys.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path
from typing import Any

from surefit.core.foreign import read_yaml

Settings = Mapping[str, Any]
Translated = Settings | str
"""Settings of ours, or a sentence that says why there are none."""

DEFAULT = "Leave it out: it is the default here."


def truth(value: Any) -> bool:
    """Read a flag as YAML, JSON or a shell writes it.

    >>> truth("True"), truth("no"), truth(1)
    (True, False, True)
    """
    return str(value).strip().lower() not in ("false", "0", "0.0", "no", "off", "n", "none", "")


def translate(entry: Mapping[str, Any], value: Any) -> Translated:
    """Translate a value as an entry of the table says; the first of its ways that fits counts."""
    for way in (_as_number, _as_names, _as_files, _as_same, _as_choice, _as_flag):
        found = way(entry, value)
        if found is not None:
            return DEFAULT if found == "default" else found
    return str(entry.get("otherwise", DEFAULT))


def _as_number(entry: Mapping[str, Any], value: Any) -> Settings | None:
    """Read a count that other tools write as 3.0, or a share of 1."""
    key: str = entry.get("whole", entry.get("number", ""))
    try:
        number = float(value) if key and not isinstance(value, bool) else -1.0
    except (TypeError, ValueError):
        return None
    is_within = entry.get("least", 0) <= number < entry.get("below", float("inf"))
    if not is_within or ("whole" in entry and number != int(number)):
        return None
    return {key: int(number) if "whole" in entry else number}


def _as_names(entry: Mapping[str, Any], value: Any) -> Translated | None:
    """Read several names, as a list or as `a,b`."""
    listed = value.split(",") if isinstance(value, str) else value
    if "names" not in entry or not isinstance(listed, list | tuple | set) or not listed:
        return None
    listed = [str(name).strip() for name in listed]
    return DEFAULT if listed[0] in entry["usual"].split() else {entry["names"]: listed}


def _as_files(entry: Mapping[str, Any], value: Any) -> Settings | None:
    """Read data as a path, several paths, or Axolotl's list of `path:` entries."""
    listed = value if isinstance(value, list | tuple) else [value]
    paths = [item.get("path") if isinstance(item, Mapping) else item for item in listed]
    if "files" not in entry or not all(isinstance(path, str) for path in paths):
        return None
    return {entry["files"]: paths[0] if len(paths) == 1 else paths}


def _as_same(entry: Mapping[str, Any], value: Any) -> Settings | None:
    if "same" not in entry:
        return None
    for prefix in entry["strip"].split():
        value = str(value).removeprefix(prefix)
    return {entry["same"]: value}


def _as_choice(entry: Mapping[str, Any], value: Any) -> Translated | None:
    """Look up a value such as `IntervalStrategy.EPOCH`, `lora` or 4."""
    said = "" if value in ([], {}) else str(value).lower().rsplit(".", 1)[-1]
    choices: Mapping[str, Translated] = entry.get("choices", {})
    return next((found for name, found in choices.items() if fnmatchcase(said, name)), None)


def _as_flag(entry: Mapping[str, Any], value: Any) -> Translated | None:
    flags: Mapping[bool, Settings] = entry.get("flag", {})
    return flags.get(truth(value), DEFAULT) if flags else None


TABLE = Path(__file__).with_name("other_tool_keys.yaml")

VALUES: Mapping[str, Mapping[str, str]] = {
    "precision": {
        **dict.fromkeys(("bf16-mixed", "bf16-true", "bfloat16"), "bf16"),
        **dict.fromkeys(("16", "16-mixed", "16-true", "float16", "half"), "fp16"),
        **dict.fromkeys(("32", "32-true", "float32", "float", "no"), "fp32"),
    },
    "schedule": {"constant_with_warmup": "constant"},
    "adapter": {"lora": "lora.r: 16", "qlora": "lora.r: 16, lora.quantize: 4bit"},
    "loss_on": dict.fromkeys(("completion", "completions", "assistant", "answer"), "answers"),
}
"""Values of other tools for keys that surefit has, too."""


@dataclass(frozen=True)
class Answer:
    """What to write instead of another tool's key: settings of ours, or the reason for none."""

    settings: Settings
    reason: str = ""


@cache
def read_table() -> dict[str, Callable[[Any], Translated]]:
    """Return every key that has an answer, and what translates its value."""
    table = read_yaml(TABLE, dict[str, Any], "Install surefit again.")
    answers: dict[str, Callable[[Any], Translated]] = {}
    for ours, names in table["renamed"].items():
        answers |= dict.fromkeys(names.split(), lambda value, ours=ours: {ours: value})
    for entry in table["translated"]:
        answers |= dict.fromkeys(entry["keys"].split(), partial(translate, entry))
    for entry in table["reasons"]:
        answers |= dict.fromkeys(entry["keys"].split(), lambda value, why=entry["why"]: why)
    return answers


def is_of_other_tool(key: str) -> bool:
    """Return whether the table has the key, by the last part of its name."""
    return _last_name(key) in read_table()


def _last_name(key: str) -> str:
    return key.lower().replace("-", "_").rsplit(".", 1)[-1]


def answer_key(key: str, given: Any, known: Collection[str]) -> Answer | None:
    """Return what surefit has for a key of another tool; `known` are the keys that it has."""
    answers = read_table()
    name = _last_name(key)
    if name in known and name != key:  # a section that surefit does not have: trainer.precision
        return Answer({name: VALUES.get(name, {}).get(str(given), given)})
    if name not in answers:
        near = difflib.get_close_matches(name, answers, n=1, cutoff=0.9)
        if not near:
            return None
        name = near[0]
    found = answers[name](given)
    if isinstance(found, str):
        return Answer({}, found)
    pending = [ours for ours in found if ours not in known and not ours.startswith("columns.")]
    if pending:
        will_be = f"; its name will be {pending[0]}" if pending[0] != key else ""
        return Answer({}, f"Not available yet{will_be}.")
    return Answer(found)


def answer_value(key: str, given: Any) -> str:
    """Return a sentence about another tool's value for a key of ours; empty where there is none."""
    ours = VALUES.get(key, {}).get(str(given).lower())
    shown = ours if ours and ": " in ours else f"{key}: {ours}"
    return f" Here it is {shown}." if ours else ""
