"""Sources of training rows, where a path alone does not say how they are read and drawn."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from surefit.config.sections import Section
from surefit.core.foreign import parse_yaml


class DataSource(Section):
    """One of several sources of training rows."""

    path: str
    """Where it is, as for data."""
    name: str | None = Field(None, pattern=r"^\w[\w-]*$")
    """What its metrics are named after, such as NAME_loss. Default: the name of the file."""
    columns: dict[str, str] = Field({})
    """The column of each role in this source."""
    weight: float = Field(1.0, gt=0, le=1000)
    """How often an epoch draws each of its rows. With 0.5, an epoch draws half of them, and the
    next one the other half."""
    cap: int | None = Field(None, ge=1)
    """The most rows that an epoch draws of it."""


Source = Annotated[
    Annotated[str, Tag("[path]")] | Annotated[DataSource, Tag("[source]")],
    Discriminator(lambda given: "[path]" if isinstance(given, str) else "[source]"),
]

SET_NAME = re.compile(r"(\w[\w-]*)=(.+)")
"""A set of rows on the command line: its name and its path."""


def read_source(given: Any) -> Any:
    """Return a path as it is, or the keys of a source: of {path: …}, or of NAME=PATH.

    >>> read_source("math=a.jsonl"), read_source("{path: b.csv, weight: 2}"), read_source("c.csv")
    ({'name': 'math', 'path': 'a.jsonl'}, {'path': 'b.csv', 'weight': 2}, 'c.csv')
    """
    if isinstance(given, Mapping) and isinstance(given.get("path"), PurePath):
        return {**given, "path": str(given["path"])}
    if not isinstance(given, str) or os.path.exists(given):
        return given
    if given.startswith("{"):
        return parse_yaml(given, object, given)
    named = SET_NAME.fullmatch(given)
    return {"name": named[1], "path": named[2]} if named else given


def as_sources(data: Any) -> list[Any] | None:
    """Return paths and the keys of sources; None for anything else, such as rows.

    >>> as_sources([{"path": "a.csv", "cap": 9}]), as_sources([{"path": "a.png", "label": 1}])
    ([{'path': 'a.csv', 'cap': 9}], None)
    """
    given = [data] if isinstance(data, str | PurePath) else data
    if not isinstance(given, list | tuple) or not given:
        return None
    keys = {*DataSource.model_fields}
    for each in given:
        is_source = isinstance(each, Mapping) and "path" in each and {*each} <= keys
        if not (is_source or isinstance(each, str | PurePath | DataSource)):
            return None
    return [read_source(str(each) if isinstance(each, PurePath) else each) for each in given]


def name_sources(data: Sequence[str | DataSource]) -> list[DataSource]:
    """Return data as sources with names of their own; none where all are paths alone.

    >>> [each.name for each in name_sources(["a/x.csv", DataSource(path="b/x.csv")])]
    ['x', 'x-2']
    """
    if all(isinstance(each, str) for each in data):
        return []
    named: dict[str, DataSource] = {}
    for each in data:
        source = DataSource(path=each) if isinstance(each, str) else each
        stem = re.sub(r"\W+", "_", PurePath(source.path).name.split(".")[0]).strip("_")
        name, number = source.name or stem or "data", 1
        while (unique := f"{name}-{number}" if number > 1 else name) in named:
            number += 1
        named[unique] = source.model_copy(update={"name": unique})
    return [*named.values()]
