"""Charts as HTML and SVG: lines, dots, bars, histograms, heat maps. Every text is escaped.

What is shown on hover is the attribute `data-tip` of an element; `page.js` shows it, as text.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

Points = Sequence[tuple[Any, Any]]
WIDTH, HEIGHT = 480, 200
LEFT, RIGHT, TOP, BOTTOM = 58, 10, 10, 34
"""Margins, in units of the drawing."""
MAX_POINTS = 160
"""Of a line; more are averaged in groups."""
LOGARITHMIC_RATIO = 200.0
NUM_COLOURS = 6
LARGEST = 1e300


def known_number(value: Any) -> float | None:
    """Return a value as a number that can be drawn; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -LARGEST < value < LARGEST else None


def show_number(value: float) -> str:
    """Return a number in at most five digits.

    >>> show_number(0.123456), show_number(1234567), show_number(12.0)
    ('0.12346', '1.2346e+06', '12')
    """
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e6 else f"{value:.5g}"


def figure(drawn: str, title: str, lines: Sequence[str] = ()) -> str:
    """Return a chart under its title, with a legend for several lines."""
    named = (
        f"<span class=c{place % NUM_COLOURS}>{escape(name)}</span>"
        for place, name in enumerate(lines)
    )
    legend = f"<div class=legend>{''.join(named)}</div>" if len(lines) > 1 else ""
    return f"<figure><figcaption>{escape(title)}</figcaption>{legend}{drawn}</figure>"


def line_chart(
    title: str,
    lines: Mapping[str, Points],
    x_name: str = "step",
    *,
    dots: bool = False,
    mark: float | None = None,
) -> str:
    """Return lines over one axis, with a vertical mark; nothing where no point can be drawn.

    With `dots`, points are not joined. Where the largest value is far from most, the axis is
    logarithmic.
    """
    known = {name: _thinned(points, keep=dots) for name, points in lines.items()}
    known = {name: points for name, points in known.items() if points}
    if not known:
        return ""
    every = [point for points in known.values() for point in points]
    x_low, x_high = _bounds([x for x, _ in every])
    values = [y for _, y in every]
    is_skewed = max(values) > LOGARITHMIC_RATIO * median(values)
    logs = not dots and min(values) > 0 and is_skewed
    scaled = [math.log10(value) for value in values] if logs else values
    y_low, y_high = _bounds(scaled)

    def place(x: float, y: float) -> tuple[float, float]:
        y = math.log10(y) if logs else y
        across = (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
        up = (y - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)
        return LEFT + across, HEIGHT - BOTTOM - up

    parts = [_axes((x_low, x_high), (y_low, y_high), logs, x_name)]
    if mark is not None and x_low <= mark <= x_high:
        x, _ = place(mark, every[0][1])
        parts.append(f'<line class=mark x1={x:.1f} x2={x:.1f} y1={TOP} y2="{HEIGHT - BOTTOM}"/>')
    tips: dict[float, list[str]] = {}
    for number, (name, points) in enumerate(known.items()):
        colour = f"c{number % NUM_COLOURS}"
        placed = [place(*point) for point in points]
        if not dots:
            joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
            parts.append(f'<polyline class="{colour}" points="{joined}"/>')
        if dots or len(points) <= 40:
            parts += [
                f'<circle class="{colour}" cx={x:.1f} cy={y:.1f} r=2.5 '
                f'data-tip="{escape(_tip(x_name, point, name))}"></circle>'
                for (x, y), point in zip(placed, points, strict=True)
            ]
        for x, y in points:
            tips.setdefault(x, []).append(f"{name}: {show_number(y)}")
    if not dots:
        parts.append(_hit_areas(tips, lambda x: place(x, every[0][1])[0], x_name))
    return figure(_svg(title, parts), title, [*known])


def _tip(x_name: str, point: tuple[float, float], name: str) -> str:
    return f"{x_name} {show_number(point[0])}\n{name}: {show_number(point[1])}"


def _hit_areas(tips: Mapping[float, Sequence[str]], place: Any, x_name: str) -> str:
    """Return what is hovered over: a column of the chart around each x."""
    xs = sorted(tips)
    placed = [place(x) for x in xs]
    middles = [(a + b) / 2 for a, b in pairwise(placed)]
    edges = [LEFT, *middles, WIDTH - RIGHT]
    return "".join(
        f'<rect class=hit x={start:.1f} y={TOP} width="{max(end - start, 0.1):.1f}" '
        f'height="{HEIGHT - TOP - BOTTOM}" '
        f'data-tip="{escape(chr(10).join([f"{x_name} {show_number(x)}", *tips[x]]))}"></rect>'
        for x, start, end in zip(xs, edges, edges[1:], strict=False)
    )


def _thinned(points: Points, keep: bool) -> list[tuple[float, float]]:
    """Return the points that can be drawn; of many on a line, the means of neighbours."""
    found = [(known_number(x), known_number(y)) for x, y in points]
    known = [(x, y) for x, y in found if x is not None and y is not None]
    if keep or len(known) <= MAX_POINTS:
        return known
    groups = np.array_split(np.array(known), MAX_POINTS)
    return [(float(group[-1, 0]), float(group[:, 1].mean())) for group in groups]


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low == high:
        room = abs(low) * 0.1 or 1.0
        return low - room, high + room
    return low, high


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers between two.

    >>> _ticks(0.0, 10.0), _ticks(1.0, 1.4)
    ([0.0, 5.0, 10.0], [1.0, 1.2, 1.4])
    """
    step = 10.0 ** math.floor(math.log10((high - low) / 2))
    step *= next((n for n in (5, 2) if (high - low) / (step * n) > 1.999), 1)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(n * step, 12) for n in range(first, min(last, first + 12) + 1)]


def _axes(x: tuple[float, float], y: tuple[float, float], logs: bool, x_name: str) -> str:
    parts = []
    for value in _ticks(*y):
        at = HEIGHT - BOTTOM - (value - y[0]) / (y[1] - y[0]) * (HEIGHT - TOP - BOTTOM)
        shown = show_number(10**value if logs else value)
        parts.append(f'<line class=grid x1={LEFT} x2="{WIDTH - RIGHT}" y1={at:.1f} y2={at:.1f} />')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" class=end>{shown}</text>')
    for value in _ticks(*x):
        at = LEFT + (value - x[0]) / (x[1] - x[0]) * (WIDTH - LEFT - RIGHT)
        parts.append(
            f'<text x={at:.1f} y="{HEIGHT - BOTTOM + 15}" class=mid>{show_number(value)}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x={middle} y="{HEIGHT - 4}" class=mid>{escape(x_name)}</text>')
    return "".join(parts)


def _svg(title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role=img aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )


def histogram(title: str, values: Sequence[Any], x_name: str, bins: int = 24) -> str:
    """Return how many values are in each of equal ranges; nothing where all are one."""
    known = [number for value in values if (number := known_number(value)) is not None]
    if len(set(known)) < 2:
        return ""
    if all(value == int(value) for value in known):  # ranges of whole numbers
        bins = min(bins, int(max(known) - min(known)) + 1)
    counts, edges = np.histogram(known, bins=bins)
    return counted(title, counts.tolist(), edges.tolist(), x_name)


def counted(title: str, counts: Sequence[int], edges: Sequence[float], x_name: str) -> str:
    """Return a histogram of what was counted between the edges."""
    if not counts or len(edges) != len(counts) + 1 or not edges[0] < edges[-1]:
        return ""
    highest, span = max(1, *counts), edges[-1] - edges[0]
    parts = [_axes((edges[0], edges[-1]), (0.0, float(highest)), False, x_name)]
    for count, start, end in zip(counts, edges, edges[1:], strict=False):
        x = LEFT + (start - edges[0]) / span * (WIDTH - LEFT - RIGHT)
        width = (end - start) / span * (WIDTH - LEFT - RIGHT)
        height = count / highest * (HEIGHT - TOP - BOTTOM)
        tip = f"{show_number(start)} to {show_number(end)}: {count:,}"
        parts.append(
            f'<rect class=c0 x={x:.1f} y="{HEIGHT - BOTTOM - height:.1f}" '
            f'width="{max(width - 1, 0.5):.1f}" height="{height:.1f}" '
            f'data-tip="{escape(tip)}"></rect>'
        )
    return figure(_svg(title, parts), title)


def bars(title: str, values: Mapping[str, float], total: float | None = None) -> str:
    """Return a bar for each named number, as long as it is; nothing without numbers."""
    if not values:
        return ""
    most = total or max(max(values.values()), 1e-12)
    rows = (
        f"<div><span>{escape(name)}</span><b><i style='width:{max(0.0, value / most):.2%}'></i></b>"
        f"<span>{show_number(value)}</span></div>"
        for name, value in values.items()
    )
    return figure(f"<div class=bars>{''.join(rows)}</div>", title)


def confusion_table(title: str, cells: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """Return a heat map with a row per true class and a column per predicted one."""
    head = "".join(f"<th scope=col>{escape(name)}</th>" for name in names)
    rows = []
    for name, line in zip(names, cells, strict=False):
        whole = max(sum(line), 1)
        drawn = "".join(
            f"<td class={'hit' if other == name else 'miss'} style='--share:{count / whole:.3f}' "
            f'data-tip="{escape(f"{name}, predicted {other}: {count:,} ({count / whole:.1%})")}">'
            f"{count:,}</td>"
            for other, count in zip(names, line, strict=False)
        )
        rows.append(f"<tr><th scope=row>{escape(name)}</th>{drawn}</tr>")
    table = (
        f"<div class=wide><table class=heat><tr><th>true \\ predicted</th>{head}</tr>"
        f"{''.join(rows)}</table></div>"
    )
    return figure(table, title)


HEAT = np.array([(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)], float)
"""Colours from the least value to the most."""
HEAT_SIDE = 96


def heat_png(values: npt.NDArray[Any]) -> str:
    """Return a matrix as a small image, a column per row of it: PNG in base64."""
    from PIL import Image

    steps = [-(-size // HEAT_SIDE) for size in values.shape]
    shown = np.nan_to_num(np.asarray(values[:: steps[0], :: steps[1]], np.float64)).T
    low, high = np.quantile(shown, (0.02, 0.98)) if shown.size else (0.0, 1.0)
    place = ((shown - low) / max(high - low, 1e-12)).clip(0, 1) * (len(HEAT) - 1)
    below = place.astype(int).clip(0, len(HEAT) - 2)
    share = (place - below)[..., None]
    pixels = HEAT[below] * (1 - share) + HEAT[below + 1] * share
    file = io.BytesIO()
    Image.fromarray(pixels.round().astype(np.uint8)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


SPARK_WIDTH, SPARK_HEIGHT = 200, 60


def small_lines(lines: Sequence[Sequence[float]]) -> str:
    """Return channels as lines from left to right, without axes."""
    known = [[known_number(value) or 0.0 for value in line] for line in lines]
    every = [value for line in known for value in line]
    if not every:
        return ""
    low, span = min(every), max(max(every) - min(every), 1e-9)
    drawn = []
    for number, line in enumerate(known):
        x = np.linspace(0, SPARK_WIDTH, len(line))
        y = SPARK_HEIGHT - (np.array(line) - low) / span * SPARK_HEIGHT
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
        drawn.append(f'<polyline class="c{number % NUM_COLOURS}" points="{points}"/>')
    return (
        f'<svg class=spark width="{SPARK_WIDTH}" height="{SPARK_HEIGHT}" '
        f'viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}">{"".join(drawn)}</svg>'
    )
