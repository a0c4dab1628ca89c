"""YAML within bounds: no deep nesting, no aliases that multiply, no key twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

MAX_CHARACTERS = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 100_000
"""Values of a document with all of its aliases written out."""


def load_yaml(text: str) -> Any:
    """The value of a document; a YAMLError for what is not valid, or not within bounds."""
    if len(text) > MAX_CHARACTERS:
        raise yaml.YAMLError(f"it has {len(text):,} characters; expected up to {MAX_CHARACTERS:,}")
    loader = _BoundedLoader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _BoundedLoader(yaml.SafeLoader):
    """Counts what it composes; an alias counts as much as what it stands for."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = 0
        self.counts: dict[int, int] = {}
        """The values in a finished node, by its identity."""
        self.num_nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        is_alias = self.check_event(yaml.AliasEvent)
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        before, self.depth = self.num_nodes, self.depth + 1
        if self.depth > MAX_DEPTH:
            raise _fault(f"nested deeper than {MAX_DEPTH} levels", mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        if is_alias and id(node) not in self.counts:
            raise _fault("an alias stands inside of what it stands for", mark)
        self.num_nodes += self.counts[id(node)] if is_alias else 1
        if self.num_nodes > MAX_NODES:
            raise _fault(f"more than {MAX_NODES:,} values, with aliases written out", mark)
        self.counts.setdefault(id(node), self.num_nodes - before)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if (key.tag, key.value) in seen:
                raise _fault(f"the key {key.value!r} occurs twice", key.start_mark)
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


def _fault(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


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
