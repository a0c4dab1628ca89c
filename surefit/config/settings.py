"""Settings to a RunConfig: YAML files, `--set key=value` and Python options, validated at once."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from surefit.config.other_tools import (
    answer_key,
    answer_value,
    is_of_other_tool,
)
from surefit.config.run_config import SHORT_KEYS, RunConfig
from surefit.core import foreign
from surefit.core.files import refuse_special
from surefit.errors import UsageError


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the keys of a config file; its relative paths stay relative to the working folder."""
    refuse_special(path)
    if not path.is_file():
        raise UsageError(f"There is no config file {path}.", "Check the path.")
    loaded = foreign.read_yaml(path, object, "Correct the YAML there.")
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise UsageError(
            f"{path} holds a {type(loaded).__name__}; expected keys and values.",
            "Write one `key: value` per line.",
        )
    return loaded


def parse_setting(text: str) -> tuple[str, Any]:
    """Split `key=value` of `--set`; the value is read as YAML.

    >>> parse_setting("early_stopping.patience=2")
    ('early_stopping.patience', 2)
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"--set expects key=value, found {text!r}.", "Write --set key=value.")
    try:
        return key.strip().replace("-", "_"), foreign.parse_yaml(value, object, text)
    except UsageError:
        return key.strip().replace("-", "_"), value


def set_option(key: str, value: Any) -> str:
    """Return the option that sets a key, to be pasted into a shell.

    >>> set_option("ignore", "my column"), set_option("eval_share", 0.2)
    ("--set 'ignore=my column'", '--set eval_share=0.2')
    """
    return f"--set {shlex.quote(f'{key}={_as_yaml(value)}')}"


def nest(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted keys into sections; later keys win.

    >>> nest({"early_stopping.patience": 2, "lr": 0.1})
    {'early_stopping': {'patience': 2}, 'lr': 0.1}
    """
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        *sections, last = str(key).split(".")  # YAML reads the keys `on` and `1` as other types
        place = nested
        for section in sections:
            inner = place.get(section)
            place[section] = dict(inner) if isinstance(inner, Mapping) else {}
            place = place[section]
        if isinstance(value, Mapping) and isinstance(place.get(last), Mapping):
            value = {**place[last], **value}
        place[last] = value
    return nested


def spell_out(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Replace short keys by their full names; refuse two values for one key.

    >>> spell_out({"lora_r": 16})
    {'lora.r': 16}
    """
    spelled = {key: value for key, value in settings.items() if key not in SHORT_KEYS}
    for short, key in SHORT_KEYS.items():
        if short not in settings:
            continue
        section, name = key.split(".")
        inner = spelled.get(section)
        nested = inner.get(name) if isinstance(inner, Mapping) else None
        other = spelled.get(key, nested)
        if other is not None and other != settings[short]:
            raise UsageError(
                f"{short} is {settings[short]!r} and {key} is {other!r}.",
                "They are the same setting; keep one of them.",
            )
        spelled[key] = settings[short]
    return spelled


def make_config(settings: Mapping[str, Any]) -> RunConfig:
    """Validate `settings` (dotted or nested keys); all errors are reported together."""
    try:
        return RunConfig.model_validate(nest(spell_out(settings)))
    except ValidationError as error:
        raise describe_faults(
            [fault for each in error.errors() for fault in _spread(each)]
        ) from None


@cache
def config_fields(section: type[BaseModel] = RunConfig, prefix: str = "") -> dict[str, FieldInfo]:
    """Return every key of a config, sections as dotted names, with its type and its help."""
    fields: dict[str, FieldInfo] = {}
    for name, info in section.model_fields.items():
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            fields |= config_fields(inner, f"{prefix}{name}.")
        else:
            fields[prefix + name] = info
    return fields


@dataclass(frozen=True)
class Fault:
    """A key that was given: its value, and what is wrong with it; empty if the key is unknown."""

    key: str
    value: Any
    message: str = ""


def describe_faults(
    faults: Iterable[Fault], instead: Mapping[str, Any] | None = None
) -> UsageError:
    """Return all faults as one error; its fix has the settings to use `instead`, to be pasted."""
    lines: list[str] = []
    better = dict(instead or {})
    for fault in faults:
        line, settings = _describe(fault)
        lines.append(line)
        better |= settings
    listed = "`surefit train --help` and docs/config.md list the keys."
    options = " ".join(set_option(key, value) for key, value in better.items())
    return UsageError(lines, f"Use {options}. {listed}" if options else listed)


def _spread(error: Any) -> Iterator[Fault]:
    """Yield one fault of pydantic; a section that surefit does not have is taken key by key."""
    key = ".".join(str(part) for part in error["loc"] if str(part)[:1] != "[")
    if error["type"] != "extra_forbidden" and error["loc"][-1:] != ("[key]",):
        what = error["msg"].removeprefix("Value error, ")
        message = f"{what[0].lower()}{what[1:]}; found {error['input']!r}."
        yield Fault(key, error["input"], message + answer_value(key, error["input"]))
    elif (
        isinstance(error["input"], Mapping)
        and error["input"]
        and answer_key(key, error["input"], ()) is None
    ):
        yield from (Fault(f"{key}.{name}", value) for name, value in error["input"].items())
    else:
        yield Fault(key, error["input"])


def _describe(fault: Fault) -> tuple[str, Mapping[str, Any]]:
    """Return a fault in words, and the settings to use instead."""
    if fault.message:
        return f"{fault.key}: {fault.message}", {}
    known = [*RunConfig.model_fields, *SHORT_KEYS, *config_fields()]
    unknown = f"Unknown key {fault.key!r}."
    misspelt = not is_of_other_tool(fault.key) and _close(fault.key, known, 0.8)
    answer = None if misspelt else answer_key(fault.key, fault.value, known)
    if answer is not None and answer.settings:
        here = ", ".join(f"{key}: {_as_yaml(value)}" for key, value in answer.settings.items())
        return f"{unknown} Here it is {here}", answer.settings
    if answer is not None:
        return f"{unknown} {answer.reason}", {}
    close = _close(fault.key, known, 0.6)
    return f"{unknown} Did you mean {close!r}?" if close else unknown, {}


def _close(key: str, known: Sequence[str], cutoff: float) -> str | None:
    return next(iter(difflib.get_close_matches(key, known, n=1, cutoff=cutoff)), None)


def _as_yaml(value: Any) -> str:
    """Return a value as a line of YAML has it.

    >>> _as_yaml(["q_proj"]), _as_yaml(True), _as_yaml("2e-5")
    ('[q_proj]', 'true', '2e-5')
    """
    try:
        text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=1000)
    except yaml.YAMLError:
        return repr(value)  # an object passed from Python
    return text.removesuffix("\n").removesuffix("\n...")


def config_yaml(config: RunConfig) -> str:
    """Return the resolved config as YAML, as the run's folder keeps it."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
