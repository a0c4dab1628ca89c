"""Several columns under one name: `[casual, registered]`, as `columns.label` lists them."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from surefit.config.bounded_yaml import load_yaml


def joint_name(columns: Sequence[str]) -> str:
    """One name for several columns; that of a single column is its own.

    >>> joint_name(["casual", "registered"]), joint_name(["label"])
    ('[casual, registered]', 'label')
    """
    if len(columns) == 1:
        return columns[0]
    flow: str = yaml.safe_dump(
        list(columns), default_flow_style=True, allow_unicode=True, width=float("inf")
    )
    return flow.strip()


def joint_parts(name: str) -> list[str]:
    """The columns that one name stands for; none for the name of a single column.

    >>> joint_parts("[casual, registered]"), joint_parts("label")
    (['casual', 'registered'], [])
    """
    if not (name.startswith("[") and name.endswith("]")):
        return []
    try:
        parts = load_yaml(name)
    except (yaml.YAMLError, ValueError):
        return []
    is_list = isinstance(parts, list) and all(isinstance(part, str) for part in parts)
    return list(parts) if is_list and len(parts) > 1 else []
