"""Keys and values of other tools: what to write here instead, or why there is no such thing.

`other_tool_keys.yaml` is the table of keys.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from surefit.config.other_tool_values import TRANSLATIONS, Settings, Translator

TABLE = Path(__file__).with_name("other_tool_keys.yaml")

VALUES: Mapping[str, Mapping[str, str]] = {
    "precision": {
        **dict.fromkeys(("bf16-mixed", "bf16-true", "bfloat16"), "bf16"),
        **dict.fromkeys(("16", "16-mixed", "16-true", "float16", "half"), "fp16"),
        **dict.fromkeys(("32", "32-true", "float32", "float", "no"), "fp32"),
    },
    "schedule": {"constant_with_warmup": "constant"},
    "loss_on": dict.fromkeys(("completion", "completions", "assistant", "answer"), "answers"),
}
"""Values of other tools for keys that surefit has, too."""

KEPT_VALUES: Mapping[str, tuple[str, ...]] = {"loss_on": ("last",)}
"""Values that are kept for later."""


@dataclass(frozen=True)
class Answer:
    """What to write instead of another tool's key: settings of ours, or the reason for none."""

    settings: Settings
    reason: str = ""


@cache
def read_table() -> dict[str, Translator]:
    """Every key that has an answer, and what translates its value."""
    table = yaml.safe_load(TABLE.read_text("utf-8"))
    answers: dict[str, Translator] = {}
    for ours, names in table["renamed"].items():
        answers |= dict.fromkeys(names.split(), lambda value, ours=ours: {ours: value})
    for translation, names in table["translated"].items():
        answers |= dict.fromkeys(names.split(), TRANSLATIONS[translation])
    for entry in table["reasons"]:
        answers |= dict.fromkeys(entry["keys"].split(), lambda value, why=entry["why"]: why)
    return answers


def is_of_other_tool(key: str) -> bool:
    """Whether the table has the key, by the last part of its name."""
    return _last_name(key) in read_table()


def _last_name(key: str) -> str:
    return key.lower().replace("-", "_").rsplit(".", 1)[-1]


def answer_key(key: str, given: Any, known: Collection[str]) -> Answer | None:
    """What surefit has for a key of another tool; `known` are the keys that it has."""
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
    """A sentence about another tool's value for a key of ours; empty where there is none."""
    said = str(given).lower()
    if said in KEPT_VALUES.get(key, ()):
        return f" {key}: {said} is not available yet."
    ours = VALUES.get(key, {}).get(said)
    return f" Here it is {key}: {ours}." if ours else ""
