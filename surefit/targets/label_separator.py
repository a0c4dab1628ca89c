"""Several classes of a row in one text, such as `red|blue`: the sign between them."""

from __future__ import annotations

from collections.abc import Collection

NONE = "none"
"""The setting with which every text is one class."""
SIGNS = {"|": 0.5, ";": 0.5, ",": 0.8}
"""Signs between classes, the least likely in a name first; each with the share of the classes that
must stand first in some row. A qualifier never does: `fruit`, `fruit, dried`."""


OTHER_SIGNS = ("/", "+", "&", "\\")
"""Signs that are common within names as well, such as `km/h`: they separate classes only if the
user says so, and are reported where the labels look like it."""
FIRST_SHARE, AGAIN_SHARE, FEWEST = 0.6, 0.8, 3


def split_classes(value: str, sign: str) -> list[str]:
    """Return the classes of a row.

    >>> split_classes("red | blue|", "|")
    ['red', 'blue']
    """
    return [part.strip() for part in value.split(sign) if part.strip()]


def find_separator(names: Collection[str]) -> str | None:
    """Return the sign that separates several classes in these labels; None where each is one class.

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


def likely_separator(names: Collection[str]) -> str | None:
    """Return one of the other signs, if the parts around it recur in several combinations; else
    None.

    >>> likely_separator({"red", "red / blue", "blue / gold", "gold / red", "gold"})
    '/'
    >>> likely_separator({"n/a", "Sci-fi / Fantasy", "Fantasy", "Drama", "km/h"}) is None
    True
    """
    for sign in OTHER_SIGNS:
        rows = [{*split_classes(name, sign)} for name in names]
        sets = [row for row in rows if len(row) > 1]
        if len(sets) < FEWEST or len({len(row) for row in rows}) < 2:
            continue
        parts = {part for row in sets for part in row}
        if all(part.isdecimal() for part in parts):
            continue  # fractions, dates
        again = [part for part in parts if sum(part in row for row in rows) > 1]
        first = {split_classes(name, sign)[0] for name in names if name.strip(f"{sign} ")}
        recur = len(again) >= AGAIN_SHARE * len(parts)
        if recur and len(parts) < len(rows) and len(first & parts) >= FIRST_SHARE * len(parts):
            return sign
    return None
