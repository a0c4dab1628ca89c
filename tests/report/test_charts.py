"""Charts: what is drawn where, what is left out, and that texts stay texts."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from surefit.report.charts import (
    MAX_POINTS,
    bars,
    confusion_table,
    heat_png,
    histogram,
    line_chart,
)

EVIL = "<script>alert(1)</script>\" onload='x'"


def svg_of(chart: str) -> ElementTree.Element:
    """The drawing, parsed after attributes without quotes got them."""
    drawn = re.search(r"<svg.*?</svg>", chart, re.S)
    assert drawn is not None
    return ElementTree.fromstring(re.sub(r"=([\w.-]+)(?=[ />])", r'="\1"', drawn[0]))


def test_a_line_goes_through_its_points() -> None:
    chart = svg_of(line_chart("loss", {"a": [(0, 0.0), (5, 1.0), (10, 2.0)]}))
    (line,) = chart.iter("polyline")
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    (left, low), (middle, half), (right, high) = points
    assert middle == pytest.approx((left + right) / 2)
    assert half == pytest.approx((low + high) / 2)
    assert low > high  # y grows downwards
    tips = [rect.attrib["data-tip"] for rect in chart.iter("rect")]
    assert tips == ["step 0 a: 0", "step 5 a: 1", "step 10 a: 2"]  # XML has no line breaks there


def test_many_points_become_means_and_what_is_no_number_is_left_out() -> None:
    points = [(step, float(step)) for step in range(10_000)]
    chart = svg_of(line_chart("loss", {"a": [*points, (10_001, None), (10_002, math.nan)]}))
    (line,) = chart.iter("polyline")
    assert len(line.attrib["points"].split()) == MAX_POINTS
    assert line_chart("loss", {"a": [(1, None), (2, math.inf), (3, "x"), (4, True)]}) == ""


def test_values_of_very_different_sizes_have_a_logarithmic_axis() -> None:
    chart = svg_of(line_chart("loss", {"a": [(1, 1000.0), (2, 1.0), (3, 0.001)]}))
    assert {"0.01", "100"} <= {text.text for text in chart.iter("text")}
    (line,) = chart.iter("polyline")
    ys = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
    assert ys[1] - ys[0] == pytest.approx(ys[2] - ys[1], abs=0.2)


def test_the_best_step_is_marked_inside_of_the_axis() -> None:
    line = {"a": [(1, 1.0), (3, 2.0)]}
    assert "class=mark" in line_chart("loss", line, mark=2)
    assert "class=mark" not in line_chart("loss", line, mark=9)
    assert "class=mark" not in line_chart("loss", line)


def test_a_histogram_counts_every_number_once() -> None:
    chart = svg_of(histogram("lengths", [1, 1, 2, 5, None, math.nan], "tokens"))
    tips = [rect.attrib["data-tip"] for rect in chart.iter("rect")]
    assert sum(int(tip.rpartition(": ")[2]) for tip in tips) == 4
    assert histogram("lengths", [3, 3, 3], "tokens") == ""


def test_a_confusion_names_true_and_predicted() -> None:
    table = confusion_table("classes", [[3, 1], [0, 4]], ["ham", "spam"])
    assert 'data-tip="ham, predicted spam: 1 (25.0%)"' in table
    assert table.count("class=hit ") == 2


def test_texts_of_the_data_are_escaped() -> None:
    drawn = [
        line_chart(EVIL, {EVIL: [(1, 1.0), (2, 2.0)]}, EVIL),
        bars(EVIL, {EVIL: 2.0}),
        confusion_table(EVIL, [[1, 0], [0, 1]], [EVIL, "b"]),
        histogram(EVIL, [1.0, 2.0], EVIL),
    ]
    for each in drawn:
        assert "<script" not in each
        assert "&lt;script&gt;" in each
        assert '" onload' not in each


def test_a_heat_map_has_a_column_for_each_step() -> None:
    import base64
    import io

    import numpy as np
    from PIL import Image

    values = np.arange(12.0).reshape(6, 2)
    image = np.asarray(Image.open(io.BytesIO(base64.b64decode(heat_png(values)))))
    assert image.shape == (2, 6, 3)
    assert tuple(image[0, 0]) == (68, 1, 84)  # the least
    assert tuple(image[1, 5]) == (253, 231, 37)  # the most
