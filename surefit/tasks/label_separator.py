"""Several classes of a row in one text, such as `red|blue`: the sign between them."""

from __future__ import annotations

from collections.abc import Collection

NONE = "none"
"""The setting with which every text is one class."""
SIGNS = {"|": 0.5, ";": 0.5, ",": 0.8}
"""Signs between classes, the least likely in a name first; each with the share of the classes that
must stand first in some row. A qualifier never does: `fruit`, `fruit, dried`."""


def split_classes(value: str, sign: str) -> list[str]:
    """The classes of a row.

    >>> split_classes("red | blue|", "|")
    ['red', 'blue']
    """
    return [part.strip() for part in value.split(sign) if part.strip()]


def find_separator(names: Collection[str]) -> str | None:
    """The sign that separates several classes in these labels; None where each is one class.

    Rows must differ in their number of classes, and the classes must recur in other combinations.

    >>> find_separator({"red", "blue|red", "blue"}), find_separator({"Austin, TX", "Reno, NV"})
    ('|', None)
    """
    for sign, share in SIGNS.items():
        if not any(sign in name for name in names):
            continue
        rows = [split_classes(name, sign) for name in names]
        classes = {part for row in rows for part in row}
        first = {row[0] for row in rows if row}
        few = len(classes) < len(names) or (share < 0.8 and len(classes) == len(names))
        once = all(len({*row}) == len(row) for row in rows)
        sizes = {len(row) for row in rows}
        if few and once and len(sizes) > 1 and len(first) >= share * len(classes):
            return sign
    return None
