"""Figures of several folds as one: mean and spread, element by element where they have several."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

PER_CLASS = "_per_class"
"""How metrics end that list a figure for each class."""


def summarise(
    figures: Iterable[Mapping[str, Any]], classes: Sequence[Sequence[Any] | None] = ()
) -> dict[str, dict[str, Any]]:
    """The mean of each figure, its standard deviation between folds, and its values.

    `mean` and `spread` have the form of the figure: those of a dict or a list have the mean and the
    spread of each of its numbers. `classes` are those of each fold, by which figures of classes are
    named: the training rows of a fold may lack one. Matrices of counts per class are summed.

    >>> summarise([{"loss": 1.0}, {"loss": 3.0}])
    {'loss': {'mean': 2.0, 'spread': 1.414..., 'values': [1.0, 3.0]}}
    >>> summarise([{"each": [1.0, 2.0]}, {"each": [3.0, 2.0]}])["each"]["mean"]
    [2.0, 2.0]
    >>> counts = [{"confusion": [[1, 0], [0, 2]]}, {"confusion": [[3]]}]
    >>> summarise(counts, [["a", "b"], ["b"]])["confusion"]["sum"]
    [[1, 0], [0, 5]]
    """
    every = list(figures)
    known = [*classes, *[None] * (len(every) - len(classes))]
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(name for one in every for name in one):
        values = [one.get(name) for one in every]
        if _are_counts(values, known):
            found[name] = _summed(values, known)
        else:
            if name.endswith(PER_CLASS):
                values = [_by_class(v, n) for v, n in zip(values, known, strict=True)]
            found[name] = {**_mean_and_spread(values), "values": values}
    return found


def _by_class(value: Any, names: Sequence[Any] | None) -> Any:
    """A list with a figure for each class as a dict by their names."""
    if not isinstance(value, list) or names is None or len(value) != len(names):
        return value
    return dict(zip(map(str, names), value, strict=True))


def _mean_and_spread(values: Sequence[Any]) -> dict[str, Any]:
    """Both in the form of the values; None where a part has no number."""
    given = [value for value in values if value is not None]
    if given and all(isinstance(value, Mapping) for value in given):
        keys = dict.fromkeys(key for value in given for key in value)
        parts = {key: _mean_and_spread([value.get(key) for value in given]) for key in keys}
        return {what: {k: p[what] for k, p in parts.items()} for what in ("mean", "spread")}
    if given and all(isinstance(value, list) for value in given):
        if len({len(value) for value in given}) > 1:
            return {"mean": None, "spread": None}  # elements of no common meaning
        each = [_mean_and_spread(column) for column in zip(*given, strict=True)]
        return {what: [part[what] for part in each] for what in ("mean", "spread")}
    numbers = [float(v) for v in given if isinstance(v, int | float) and math.isfinite(v)]
    spread = statistics.stdev(numbers) if len(numbers) > 1 else None
    return {"mean": statistics.fmean(numbers) if numbers else None, "spread": spread}


def _are_counts(values: Sequence[Any], classes: Sequence[Sequence[Any] | None]) -> bool:
    """Whether all values are matrices of whole numbers, with a line and a column per class."""
    given = [(v, names) for v, names in zip(values, classes, strict=True) if v is not None]
    return bool(given) and all(
        names is not None and _is_matrix(value, len(names)) for value, names in given
    )


def _is_matrix(value: Any, size: int) -> bool:
    if not isinstance(value, list) or len(value) != size:
        return False
    lines = all(isinstance(line, list) and len(line) == size for line in value)
    return lines and all(_is_count(number) for line in value for number in line)


def _is_count(number: Any) -> bool:
    return isinstance(number, int | float) and number >= 0 and float(number).is_integer()


def _summed(values: Sequence[Any], classes: Sequence[Sequence[Any] | None]) -> dict[str, Any]:
    """The sum of matrices with a line per true class, and the classes of its lines."""
    known = [[str(name) for name in each] for each in classes if each]
    known.sort(key=len, reverse=True)  # the order of a fold that has all of them
    names = list(dict.fromkeys(name for each in known for name in each))
    total = [[0] * len(names) for _ in names]
    for value, own in zip(values, classes, strict=True):
        places = [names.index(str(name)) for name in own or ()]
        for place, line in zip(places, value or (), strict=False):
            for other, number in zip(places, line, strict=True):
                total[place][other] += int(number)
    return {"sum": total, "classes": names, "values": list(values)}


def flat_figures(metrics: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Any, Any, list[Any]]]:
    """Name, mean, spread and values of each number; parts are named `recall_per_class: bird`.

    >>> flat_figures(summarise([{"a": {"b": 1.0}}]))
    [('a: b', 1.0, None, [1.0])]
    """
    rows: list[tuple[str, Any, Any, list[Any]]] = []
    for name, figures in metrics.items():
        if "mean" in figures:
            rows += _flat(name, figures["mean"], figures["spread"], figures["values"])
    return rows


def _flat(name: str, mean: Any, spread: Any, values: list[Any]) -> list[Any]:
    if not isinstance(mean, Mapping | list):
        return [(name, mean, spread, values)]
    keys = list(mean) if isinstance(mean, Mapping) else range(len(mean))
    return [
        row
        for key in keys
        for row in _flat(f"{name}: {key}", mean[key], spread[key], [_part(v, key) for v in values])
    ]


def _part(value: Any, key: Any) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None if value is None else value[key]
