"""The help of the options: the docstrings under the config fields.

They are read from the source: importing the config loads pydantic, which takes longer than all
else that `surefit --help` does.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

CONFIG = Path(__file__).parents[1] / "config"
SOURCES = tuple(
    CONFIG / f"{name}.py" for name in ("run_config", "training_options", "array_changes")
)


@dataclass(frozen=True)
class KeyHelp:
    """What a config key means, and its default as text; empty where there is none."""

    text: str
    default: str


@cache
def read_help() -> dict[str, KeyHelp]:
    """The help of every config key, sections as dotted names, and of the short keys.

    >>> read_help()["epochs"]
    KeyHelp(text='Passes over the training rows.', default='3')
    """
    trees = [ast.parse(source.read_text("utf-8")) for source in SOURCES]
    body = [node for tree in trees for node in tree.body]
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    keys = dict(_keys(classes, "RunConfig", ""))
    return keys | {short: keys[key] for short, key in _short_keys(trees[0]).items()}


def _short_keys(tree: ast.Module) -> dict[str, str]:
    """The value of SHORT_KEYS."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SHORT_KEYS":
            return dict(ast.literal_eval(node.value))
    return {}


def _keys(
    classes: dict[str, ast.ClassDef], section: str, prefix: str
) -> Iterator[tuple[str, KeyHelp]]:
    """The keys of a section, in their order."""
    for field, under in pairwise(classes[section].body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(under, ast.Expr):
            continue
        name = f"{prefix}{ast.unparse(field.target)}"
        kind = ast.unparse(field.annotation)
        if kind in classes:
            yield from _keys(classes, kind, f"{name}.")
        elif isinstance(under.value, ast.Constant):
            text = " ".join(str(under.value.value).split())
            yield name, KeyHelp(text, _default(field.value))


def _default(value: ast.expr | None) -> str:
    """A default that is written in the source, as such or as the first argument of Field."""
    if isinstance(value, ast.Call) and value.args:
        value = value.args[0]
    shown = value.value if isinstance(value, ast.Constant) else None
    return "" if shown is None or shown is False else str(shown)
