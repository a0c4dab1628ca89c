"""The JSON Schema of config files, for editors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from surefit.config.run_config import SHORT_KEYS, RunConfig
from surefit.config.settings import config_fields

TEXTS = {"type": "array", "items": {"type": "string"}}


def config_schema() -> dict[str, Any]:
    """Return the schema of what a config file may hold: every key with its help and its values.

    It allows what reading a config allows: one value where several are, `on` and `off` as YAML
    reads them, and keys of sections with dots.
    """
    made = RunConfig.model_json_schema()
    sections = [made, *made["$defs"].values()]
    for section in sections:
        for key in section.get("properties", {}).values():
            if "description" in key:
                key["description"] = " ".join(key["description"].split())
            _allow(key)
    keys = made["properties"]
    keys["columns"]["additionalProperties"] = {"anyOf": [{"type": "string"}, TEXTS]}
    keys["metrics"] = {**_without_type(keys["metrics"]), "anyOf": [TEXTS, {"type": "object"}]}
    for name in [*SHORT_KEYS, *config_fields()]:
        keys.setdefault(name, {"description": _help(SHORT_KEYS.get(name, name))})
    # One level below a mapping, such as columns.prompt and lr_by.classifier.
    open_keys = "|".join(n for n, key in keys.items() if "additionalProperties" in key)
    made["patternProperties"] = {rf"^({open_keys})\..+$": {}}
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "surefit config"}
    return {**about, **{name: part for name, part in made.items() if name != "title"}}


def _help(name: str) -> str:
    return " ".join((config_fields()[name].description or "").split())


def _without_type(key: dict[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in key.items() if n not in ("type", "additionalProperties")}


def _allow(key: dict[str, Any]) -> None:
    """Allow one value for a list of them, and true and false for on and off."""
    more: list[dict[str, Any]] = []
    for part in _parts(key):
        if part.get("type") == "array" and "items" in part:
            more.append(part["items"])
        if "on" in part.get("enum", ()):
            more.append({"type": "boolean"})
    if not more:
        return
    if "anyOf" in key:
        key["anyOf"] += more
        return
    own = {name: key.pop(name) for name in ("type", "items", "enum") if name in key}
    key["anyOf"] = [own, *more]


def _parts(key: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from key.get("anyOf", [key])
